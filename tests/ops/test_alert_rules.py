"""Each alert rule fires for what it is about and for nothing else, as Prometheus evaluates it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[2] / "ops" / "deploy" / "alerts.yml"
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)"
)

# Two hours of a healthy run, a value a minute: a coordinator that leads, and one that stands by.
# "0x9 1x8" are ten noughts, then nine ones.
LEADS, STANDS_BY = 'run="r",instance="one"', 'run="r",instance="two"'
HEALTHY = {
    f'atoll_build_info{{{LEADS},version="1"}}': "1x120",
    f"atoll_coordinator_leading{{{LEADS}}}": "1x120",
    f"atoll_coordinator_leading{{{STANDS_BY}}}": "0x120",
    f"atoll_sites_live{{{LEADS}}}": "3x120",
    f"atoll_version_age_seconds{{{LEADS}}}": "600x120",
    f"atoll_broker_up{{{LEADS}}}": "1x120",
    f'atoll_departures_total{{{LEADS},code="lost"}}': "0x120",
    f'atoll_departures_total{{{LEADS},code="drained"}}': "0x100 1x19",
    f'atoll_site_silent_seconds{{{LEADS},site="alpha"}}': "9x120",
    f"atoll_training_loss_nats{{{LEADS}}}": "9-0.05x120",
    f'atoll_deltas{{{LEADS},state="refused"}}': "2x60 3x59",
    f'atoll_disk_free_bytes{{{LEADS},path="/x"}}': "50x120",
    f'atoll_disk_size_bytes{{{LEADS},path="/x"}}': "100x120",
    f"atoll_alerts_failed_total{{{LEADS}}}": "0x120",
}
ILL = {
    "AtollNoCoordinator": {f"atoll_coordinator_leading{{{LEADS}}}": "1x100 0x19"},
    "AtollStalled": {f"atoll_version_age_seconds{{{LEADS}}}": "3601x120"},
    "AtollBrokerDown": {f"atoll_broker_up{{{LEADS}}}": "1x110 0x9"},
    "AtollSiteLost": {f'atoll_departures_total{{{LEADS},code="lost"}}': "0x110 1x9"},
    "AtollSiteSilent": {f'atoll_site_silent_seconds{{{LEADS},site="alpha"}}': "9x100 61x19"},
    "AtollDiverged": {f"atoll_training_loss_nats{{{LEADS}}}": "3x100 4.1x19"},
    "AtollDeltasRefused": {f'atoll_deltas{{{LEADS},state="refused"}}': "2x100 6x19"},
    "AtollDiskFillsUp": {f'atoll_disk_free_bytes{{{LEADS},path="/x"}}': "4x120"},
    "AtollAlertsUndelivered": {f"atoll_alerts_failed_total{{{LEADS}}}": "0x110 1x9"},
}


def unlike(tmp_path: Path, series: dict[str, str], expected: set[str]) -> str:
    """What speaks against that these alerts, and no others, fire two hours on; '' for nothing."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)]
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "2h",
                        "exp_samples": samples,
                    }
                ],
            }
        ],
    }
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump(case))
    done = subprocess.run([str(PROMTOOL), "test", "rules", file], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    done = subprocess.run([str(PROMTOOL), "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0 and "10 rules found" in done.stdout, done


def test_a_healthy_run_fires_nothing(tmp_path: Path) -> None:
    assert unlike(tmp_path, HEALTHY, set()) == ""


@pytest.mark.parametrize("alert", ILL)
def test_an_alert_fires_for_what_it_is_about_and_no_other_does(alert: str, tmp_path: Path) -> None:
    assert ILL[alert].keys() <= HEALTHY.keys()
    assert unlike(tmp_path, HEALTHY | ILL[alert], {alert}) == ""


def test_a_loss_that_is_no_number_has_diverged(tmp_path: Path) -> None:
    loss = {f"atoll_training_loss_nats{{{LEADS}}}": "3x110" + 9 * " NaN"}
    assert unlike(tmp_path, HEALTHY | loss, {"AtollDiverged"}) == ""


def test_deltas_refused_in_the_first_hour_are_seen(tmp_path: Path) -> None:
    """With nothing to compare from an hour before."""
    refused = f'atoll_deltas{{{LEADS},state="refused"}}'
    assert unlike(tmp_path, HEALTHY | {refused: "_x90 0x10 4x18"}, {"AtollDeltasRefused"}) == ""


def test_nothing_to_scrape_is_an_alert_by_itself(tmp_path: Path) -> None:
    assert unlike(tmp_path, {}, {"AtollCoordinatorGone"}) == ""


def test_every_rule_is_tried_here() -> None:
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert {rule["alert"] for rule in rules} == {*ILL, "AtollCoordinatorGone"}
