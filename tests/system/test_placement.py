"""A run that lives on queues: three real Slurms, agents, a planner, chains of one-minute jobs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.events import (
    JobIntended,
    JobSubmitted,
    PlacementPlanned,
    PlacementProbed,
    QueueObserved,
    SiteAdmitted,
    SiteDeparted,
)
from leases.jobs import jobs
from sitehub.spawn import PRELOAD_VARIABLE
from tests.support.fleet import Fleet
from tests.support.slurm import Cluster, Lab, lab
from tests.support.watched import History

ROOT = Path(__file__).parents[2]
NAMES = ("snellius", "lumi", "frontier")
TEMPLATE = """\
#!/bin/bash
{{directives}}
cd %s
export PYTHONPATH=. OMP_NUM_THREADS=1 ATOLL_HOME="%s/job-$SLURM_JOB_ID" %s="%s"
exec {{command}}
"""
SITE = """
[[site]]
name = "%s"
partition = "gpu"
speed = 1000
shapes = [{nodes = 1, walltime = "1m"}]
template = "job.tmpl"
slurm_conf = "%s"
command = "%s -m ops"
data = "%s"
broker = "%s"
start_up = "5s"
[site.limits]
max_pending = 1
min_walltime = "10s"
fast_failure = "3s"
[site.etiquette]
poll = "2s"
settle = "10s"
backoff = "1s"
"""


@pytest.fixture(scope="module")
def slurms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    sizes = [(name, 3) for name in NAMES]
    with lab(tmp_path_factory.mktemp("slurms"), sizes) as made:
        yield made


def write_sites(fleet: Fleet, clusters: list[Cluster], folder: Path) -> Path:
    """What planner and agents read: each site at its own Slurm, with the real `atoll site run`."""
    text = TEMPLATE % (ROOT, folder, PRELOAD_VARIABLE, fleet.preload)
    (folder / "job.tmpl").write_text(text)
    tables = [
        SITE % (one.name, one.conf, sys.executable, fleet.data, fleet.url) for one in clusters
    ]
    path = folder / "sites.toml"
    path.write_text('replan = "20s"\n' + "".join(tables))
    return path


def admissions(log: History, site: str) -> int:
    return sum(event.site == site for _, event in log.of(SiteAdmitted))


async def test_chains_at_two_queues_and_a_third_that_comes_back(
    fleet: Fleet, slurms: Lab, tmp_path: Path
) -> None:
    snellius, lumi, frontier = (slurms.clusters[name] for name in NAMES)
    for cluster in (snellius, lumi, frontier):
        cluster.submit("background", 2, 60)
    frontier.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    sites = write_sites(fleet, [snellius, lumi, frontier], tmp_path)
    fleet.coordinate()
    fleet.start("planner", "place", "planner", fleet.run, "--sites", str(sites))
    for name in NAMES:
        fleet.start(f"agent-{name}", "place", "agent", fleet.run, name, "--sites", str(sites))
    await fleet.until(
        lambda log: admissions(log, "snellius") and admissions(log, "lumi"), "two sites", 120
    )
    log = fleet.history
    assert not admissions(log, "frontier") and not frontier.named("atoll-")
    frontier.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    await fleet.until(
        lambda log: admissions(log, "snellius") >= 2 and admissions(log, "lumi") >= 2,
        "successors at both",
        180,
    )
    await fleet.until(lambda log: admissions(log, "frontier"), "the third one", 120)
    left = [event for _, event in log.of(SiteDeparted) if event.site in ("snellius", "lumi")]
    assert len(left) >= 2 and {event.code for event in left} <= {"walltime", "replaced", "lost"}
    told = await fleet.atoll("place", "why", fleet.run, "--json")
    account = told.json()
    assert {one["site"] for one in account["sites"]} == set(NAMES)
    assert all(one["agent"]["state"] == "working" for one in account["sites"])
    await stop_well(fleet, [snellius, lumi, frontier])
    check_books(log)
    audit = await fleet.audit()
    assert audit["ok"]
    await check_report(fleet, tmp_path)


async def stop_well(fleet: Fleet, clusters: list[Cluster]) -> None:
    """The run is stopped: agents and planner end by themselves, and no queue holds a job of it."""
    stopped = await fleet.atoll("run", "stop", fleet.run)
    assert stopped.code == 0, stopped
    await fleet.until(lambda log: log.view.run().state == "finished", "the end of the run", 90)
    for name in list(fleet.processes):
        assert await fleet.ended(name, 120) == 0, f"{name}\n{fleet.said()}"
    await asyncio.sleep(1)
    for cluster in clusters:
        assert not cluster.named("atoll-"), cluster.name


async def check_report(fleet: Fleet, folder: Path) -> None:
    """What the report says of these queues is what `place calibration` and the log say."""
    log, page = folder / "queued.atoll", folder / "queued.html"
    exported = await fleet.atoll("log", "export", fleet.run, "-o", str(log))
    assert exported.code == 0, exported
    made = await fleet.atoll("report", str(log), "-o", str(page))
    assert made.code == 0, made
    (text,) = re.findall(r'id="facts">(.*?)</script>', page.read_text())
    queues = json.loads(text)["queues"]
    books = {job.name: job for job in jobs(fleet.history.view.db)}
    assert {one["job"] for one in queues["jobs"]} == set(books)
    started = [one for one in queues["jobs"] if one["started_s"] is not None]
    assert {one["site"] for one in started} == set(NAMES)
    assert all(one["wait_s"] >= 0 for one in started)
    told = (await fleet.atoll("place", "calibration", str(log), "--json")).json()
    assert len(queues["starts"]) == told["forecasts"]
    assert queues["bounds"] == told["bounds"] and queues["from_prior"] == told["from_prior"]
    assert "<h2>Placement</h2>" in page.read_text()


def check_books(log: History) -> None:
    """Every job was intended once, submitted at most once and ended; probes kept to their cap."""
    intended = [event.job_name for _, event in log.of(JobIntended)]
    submitted = [event.job_name for _, event in log.of(JobSubmitted)]
    assert len(intended) == len(set(intended)) and len(submitted) == len(set(submitted))
    assert len({event.job_id for _, event in log.of(JobSubmitted)}) >= 2
    ended = jobs(log.view.db)
    assert {job.name for job in ended} == set(intended)
    assert all(job.state == "ended" for job in ended)
    assert not any(job.outcome in ("failed", "never_submitted") for job in ended)
    assert {job.after for job in ended} & set(intended), "no job followed another one"
    for name in NAMES:
        asked = sorted(
            event.asked_epoch_s or 0 for _, event in log.of(PlacementProbed, f"agent.{name}")
        )
        assert asked, f"{name} was never probed"
        for at in asked:
            assert sum(at <= one < at + 600 for one in asked) <= 12
        seen = [event for _, event in log.of(QueueObserved, f"agent.{name}")]
        assert seen and all(event.complete for event in seen)
    assert not log.of(QueueObserved, "agent.frontier")[0][1].up
    holders = {event.holder for _, event in log.of(PlacementPlanned)}
    assert len(holders) == 1
