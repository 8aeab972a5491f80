"""Alerts and metrics: what is due is decided purely, names are Prometheus', and rules and dashboard
ask for nothing that is not served."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from ops.alarm import settings
from ops.alarm.due import Firings, causes, due
from ops.alarm.metrics import EndpointFailed, serve
from ops.alarm.reading import Disk, Reading, Surroundings, read
from ops.alarm.settings import Alerts
from ops.configure import ConfigInvalid
from tests.ops.watching import at_work, over
from tests.support.scenario import Scenario

DEPLOY = Path(__file__).parents[2] / "ops" / "deploy"
AROUND = Surroundings(
    version_age_s=5.0, broker_away_s=None, broker_breaks=2, leads=True, disk=Disk("/x", 50, 100)
)
TELL = Alerts(command=("true",), stall_s=100.0, broker_s=30.0, repeat_s=1000.0)


def reading(scenario: Scenario | None = None, **around: Any) -> Reading:
    """A reading of a run under way, with other surroundings."""
    scenario = scenario or at_work()
    found = read(scenario.view, 1, replace(AROUND, **around))
    assert found is not None
    return found


def names(found: Reading, told: Alerts = TELL) -> list[str]:
    return [cause.name for cause in causes(found, told)]


def test_a_reading_counts_what_the_history_did() -> None:
    found = reading()
    assert (found.state, found.version, found.merged_tokens, found.share) == ("running", 1, 64, 0.2)
    assert found.blocks == {
        "available": 3, "leased": 1, "training": 1, "trained": 1, "delivered": 2, "merged": 2,
        "quarantined": 0,
    }  # fmt: skip
    assert (found.granted, found.reclaimed, found.deltas) == (8, 1, {"merged": 2, "undecided": 1})
    assert found.departures == {"lost": 1} and [one.site for one in found.live] == ["alpha", "beta"]
    assert found.waits[0].startswith("round 2 waits for beta")


def test_nothing_is_due_of_a_healthy_run_and_a_lost_site_is_named() -> None:
    healthy = replace(reading(), sites=tuple(one for one in reading().sites if not one.code))
    assert names(healthy) == []
    (cause,) = causes(reading(), TELL)
    assert (cause.name, cause.site) == ("lost_site", "gamma") and "(lost)" in cause.what
    assert names(reading(), replace_told(lost_site=False)) == []


def replace_told(**changes: Any) -> Alerts:
    return TELL.model_copy(update=changes)


@pytest.mark.parametrize(
    ("around", "changes", "name"),
    [
        ({"version_age_s": 99.9}, {}, None),
        ({"version_age_s": 100.0}, {}, "stall"),
        ({"version_age_s": 1e6}, {"state": "paused"}, None),
        ({"broker_away_s": 29.0}, {}, None),
        ({"broker_away_s": 31.0}, {}, "broker"),
        ({"disk": Disk("/x", 4, 100)}, {}, "disk"),
        ({"disk": Disk("/x", 5, 100)}, {}, None),
        ({"disk": None}, {}, None),
        ({}, {"loss": 3.1, "lowest_loss": 2.0}, "divergence"),
        ({}, {"loss": 2.9, "lowest_loss": 2.0}, None),
        ({}, {"loss": math.nan, "lowest_loss": 2.0}, "divergence"),
        ({}, {"loss": math.inf, "lowest_loss": None}, "divergence"),
        ({}, {"loss": None}, None),
    ],
)
def test_each_cause_has_its_bound(around, changes, name) -> None:
    found = replace(reading(**around), sites=(), **changes)
    assert names(found) == ([name] if name else [])


def test_a_stall_says_what_is_waited_for() -> None:
    (cause,) = [one for one in causes(reading(version_age_s=200.0), TELL) if one.name == "stall"]
    assert "no new version for 3 min 20 s: round 2 waits for beta (1 of 3 blocks)" in cause.what
    assert cause.todo == "atoll watch tests says who waits for what"


def test_what_fires_is_told_once_repeated_late_and_resolved() -> None:
    firing: Firings = {}

    def told(found: Reading, now: float) -> list[tuple[str, str]]:
        nonlocal firing
        alerts, firing = due(found, TELL, firing, now)
        return [(alert.cause.name, alert.status) for alert in alerts]

    calm = replace(reading(), sites=())
    stalled = replace(reading(version_age_s=200.0), sites=())
    assert told(calm, 0) == []
    assert told(stalled, 1) == [("stall", "firing")]
    assert told(stalled, 2) == told(stalled, 1000) == []
    assert told(stalled, 1001) == [("stall", "firing")]
    assert told(stalled, 1002) == []
    assert told(calm, 1003) == [("stall", "resolved")]
    assert told(calm, 1004) == []


def test_a_standby_tells_of_its_own_disk_and_link_and_resolves_nothing_of_the_run() -> None:
    firing: Firings = {}
    full = Disk("/x", 1, 100)
    _, firing = due(reading(version_age_s=200.0), TELL, firing, 0)
    standing_by = reading(version_age_s=200.0, leads=False, disk=full, broker_away_s=60.0)
    alerts, firing = due(standing_by, TELL, firing, 1)
    assert [(one.cause.name, one.status) for one in alerts] == [
        ("broker", "firing"), ("disk", "firing"),
    ]  # fmt: skip
    alerts, firing = due(reading(version_age_s=200.0), TELL, firing, 2)
    assert [(one.cause.name, one.status) for one in alerts] == [
        ("broker", "resolved"), ("disk", "resolved"),
    ]  # fmt: skip


def test_after_the_end_what_fired_of_the_run_is_resolved() -> None:
    _, firing = due(reading(version_age_s=200.0), TELL, {}, 0)
    alerts, firing = due(reading(over()), TELL, firing, 1)
    assert {one.status for one in alerts} == {"resolved"} and len(alerts) == 2 and not firing


# -- settings ------------------------------------------------------------------------------------


def test_the_settings_are_read_and_an_option_takes_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('metrics = "0.0.0.0:1"\n[alerts]\nwebhook = "https://x.example/y"\nstall_s = 5')
    found = settings.load(file, "9464")
    assert (settings.place(found.metrics), found.alerts.stall_s) == (("127.0.0.1", 9464), 5.0)
    assert found.alerts.told and not settings.load(None).alerts.told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[alert]\nstall_s = 5", "c.toml: alert: unknown key"),
        ('metrics = "here"', "c.toml: metrics: write [HOST:]PORT"),
        ('[alerts]\nwebhook = "ftp://secret@x"', "c.toml: alerts.webhook: write http://HOST/PATH"),
        ("[alerts]\nstall_s = -1", "c.toml: alerts.stall_s: Input should be greater than 0"),
        ("= 5", "c.toml: not TOML"),
    ],
)
def test_settings_that_are_wrong_are_named_by_file_and_key(tmp_path, text: str, says: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigInvalid) as error:
        settings.load(tmp_path / "c.toml")
    assert says in str(error.value) and "secret" not in str(error.value)


# -- metrics -------------------------------------------------------------------------------------


def scraped(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, then by the values of their labels but `run`."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation or not family.name.startswith("atoll")
        for sample in family.samples:
            labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "run")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.fixture
def samples() -> Iterator[dict[str, dict[tuple[str, ...], float]]]:
    """What the endpoint serves of a run under way."""
    endpoint = serve("127.0.0.1", 0)
    try:
        found = reading()
        sites = [replace(one, walltime_left_s=60.0) for one in found.sites]
        deltas = {**found.deltas, "refused": 1}
        endpoint.readings.newest = replace(found, perplexity=9.0, sites=tuple(sites), deltas=deltas)
        yield scraped(endpoint.url)
    finally:
        endpoint.close()


def test_the_endpoint_serves_the_reading_in_base_units(samples) -> None:
    one = {name: values[()] for name, values in samples.items() if () in values}
    assert one["atoll_version"] == 1 and one["atoll_progress_ratio"] == 0.2
    assert one["atoll_merged_tokens_total"] == 64 and one["atoll_blocks_granted_total"] == 8
    assert one["atoll_broker_up"] == 1 and one["atoll_broker_breaks_total"] == 2
    assert samples["atoll_blocks"][("delivered",)] == 2
    assert samples["atoll_site_up"] == {("alpha",): 1, ("beta",): 1, ("gamma",): 0}
    departures = samples["atoll_departures_total"]
    assert departures.pop(("lost",)) == 1 and len(departures) == 6, "every code from the start"
    assert set(departures.values()) == {0}
    assert samples["atoll_run_state"] == {
        ("running",): 1, ("paused",): 0, ("stopping",): 0, ("finished",): 0,
    }  # fmt: skip
    assert samples["atoll_disk_free_bytes"] == {("/x",): 50}
    for name in samples:
        assert re.fullmatch(r"(atoll|process)_[a-z_]+", name)
        assert not re.search(r"(_ms|_mb|_kb|_percent|_minutes)(_|$)", name)


def test_rules_and_dashboard_ask_for_what_is_served(samples) -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert {"summary", "description"} == set(rule["annotations"])
    board = json.loads((DEPLOY / "grafana.json").read_text())
    expressions += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 30
    asked = {name for text in expressions for name in re.findall(r"\batoll_\w+", text)}
    assert asked - set(samples) == set()
    for text in expressions:
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}")
    spots = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(spots)) == len(spots)


def test_grafana_reads_the_whole_dashboard_by_its_own_types() -> None:
    """What they do not know, or know as something else, would be lost or changed in between."""
    plugins.register_default_plugins()
    board = json.loads((DEPLOY / "grafana.json").read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert not list(_lost(board, read, "dashboard"))


def _lost(ours: Any, theirs: Any, place: str) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from _lost(value, theirs.get(key), f"{place}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from _lost(*pair, f"{place}[{number}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} became {theirs!r}"


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    endpoint = serve("127.0.0.1", 0)
    try:
        with pytest.raises(EndpointFailed, match=r"metrics cannot be served at 127\.0\.0\.1:"):
            serve("127.0.0.1", endpoint.server.server_port)
    finally:
        endpoint.close()
