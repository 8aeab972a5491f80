"""A real Prometheus scrapes a real coordinator: it takes every rule and every expression of the
dashboard, and tells of a lost site."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fleet import Fleet
from tests.support.secured import free_ports

DEPLOY = Path(__file__).parents[2] / "ops" / "deploy"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="Prometheus is not installed (Debian: prometheus)",
)
# Of a run that evaluates nothing, these have no value.
VALUELESS = {"atoll_heldout_perplexity"}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that scrapes one endpoint each second."""

    url: str

    def ask(self, call: str, **query: str) -> Any:
        """An answer of its API, which says `success`."""
        url = f"{self.url}/api/v1/{call}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            found = json.loads(answer.read())
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, str]]:
        """Labels of what an expression finds now."""
        return [one["metric"] for one in self.ask("query", query=expression)["result"]]

    def is_up(self) -> bool:
        try:
            return bool(self.query("up == 1"))
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    folder.mkdir(parents=True)
    port = free_ports(1)[0]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "alerts.yml")],
        "scrape_configs": [{"job_name": "atoll", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


def dashboard(run: str) -> list[str]:
    """What the dashboard asks for, of one run."""
    board = json.loads((DEPLOY / "grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [text.replace("$run", run) for text in found]


async def test_prometheus_takes_rules_dashboard_and_metrics_and_tells_of_a_lost_site(
    fleet: Fleet,
) -> None:
    fleet.start("coordinator", "coordinate", fleet.run, "--metrics", "0")
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 120.0)
    (url,) = re.findall(r"metrics at (http://\S+)", fleet.log_of("coordinator").read_text())
    served = urllib.request.urlopen(url, timeout=10.0).read()
    checked = subprocess.run([str(PROMTOOL), "check", "metrics"], input=served, capture_output=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    host = urllib.parse.urlsplit(url).netloc
    with prometheus(fleet.root / "prometheus", host) as server:
        await fleet.until(lambda _: server.is_up(), "Prometheus")
        # a rate needs two samples of a site's metric
        merged = "rate(atoll_site_merged_tokens_total[1h])"
        await fleet.until(lambda _: len(server.query(merged)) == 2, "two sites' metrics")
        asked = dashboard(fleet.run)
        empty = [text for text in asked if not server.query(text)]
        assert [text for text in empty if not any(name in text for name in VALUELESS)] == []
        (group,) = server.ask("rules")["groups"]
        assert len(group["rules"]) == 10
        await fleet.until(lambda _: healths(server) == {"ok"}, "every rule to be evaluated")
        rules = [rule["query"] for rule in group["rules"]]
        names = {name for text in asked + rules for name in re.findall(r"\batoll_\w+", text)}
        assert {name for name in names - VALUELESS if not server.query(name)} == set()
        firing = 'ALERTS{alertname="AtollSiteLost",alertstate="firing"}'
        assert server.query(firing) == []

        fleet.kill_site("alpha")
        await fleet.until(lambda _: server.query(firing), "the alert", within_s=90.0)
        assert {one["code"] for one in server.query(firing)} == {"lost"}
        assert {one["run"] for one in server.query(firing)} == {fleet.run}
    await fleet.finish()


def healths(server: Prometheus) -> set[str]:
    (group,) = server.ask("rules")["groups"]
    return {rule["health"] for rule in group["rules"]}
