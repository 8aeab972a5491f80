"""A rolling upgrade in mid-run (R17): broker, sites, then coordinator, to a build that knows one
event type more and writes it; a build that was left behind looks on, and says what to do."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.events import COORDINATOR, CoordinatorElected, SiteJoined
from sitehub.spawn import PRELOAD_VARIABLE
from tests.support.fleet import Answer, Fleet
from tests.support.forkserver import start_anew
from tests.support.mutants import Mutant, copy
from tests.support.server import Served
from tests.support.watched import History

PATCH = Path(__file__).parents[1] / "builds" / "newer.patch"
NEW = "source.greeted"
START_S = 600  # an interpreter of its own imports torch: minutes, on a machine that is busy


@pytest.fixture
def newer() -> Iterator[Path]:
    """A copy of the code in which that type exists."""
    with copy(Mutant(PATCH, "R17", "", "", "", 0, False)) as folder:
        (folder / "pyproject.toml").write_text("")
        yield folder


async def newly(fleet: Fleet, build: dict[str, str], *arguments: str) -> Answer:
    """A command of the newer build, run to its end."""
    out, err = (fleet.log_of(f"{arguments[0]}-{arguments[1]}.{end}") for end in ("out", "err"))
    began = time.monotonic()
    process = start_anew(arguments, fleet.environment() | build, out, err)
    await fleet.until(lambda _: process.poll() is not None, " ".join(arguments), START_S)
    said = (out.read_text(), err.read_text())
    return Answer(int(process.returncode), *said, time.monotonic() - began)


def greeted(history: History, source: str) -> list[int]:
    """Where a source has written what this build does not know."""
    return [
        entry.record.sequence
        for entry in history.entries
        if entry.newer and entry.record.subject == source and NEW in entry.problem
    ]


@pytest.mark.soak
@pytest.mark.own_interpreters
async def test_r17_a_run_is_upgraded_while_it_goes_on(
    own_broker: Served, fleet: Fleet, newer: Path
) -> None:
    build = {"PYTHONPATH": str(newer), "PYTHONSAFEPATH": "1", PRELOAD_VARIABLE: ""}
    fleet.coordinate("old")
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.new_versions(0) >= 2, "two versions", 180)

    own_broker.stop()  # the broker: on the same store, under the same address
    own_broker.start()
    mark = fleet.history.last
    await fleet.until(lambda log: log.new_versions(mark) >= 1, "a version after it", 90)

    for site in ("alpha", "beta"):  # then the sites, one by one, under the old coordinator
        fleet.signal(site, signal.SIGTERM)
        await fleet.ended(site, 60)
        fleet.own[site] = build
        fleet.site(site)
        await fleet.until(lambda log, site=site: greeted(log, f"site.{site}"), "it", START_S)
        mark = fleet.history.last
        await fleet.until(lambda log, at=mark: log.new_versions(at) >= 2, "versions", 120)
    assert fleet.history.view.run().read_only == "", "what sites say of the new is recorded only"

    fleet.own["new"] = build  # last the coordinator: a standby of the new build takes over
    fleet.coordinate("new")
    said = fleet.log_of("new")
    await fleet.until(lambda _: "standing by" in said.read_text(), "a standby", START_S)
    fleet.signal("old", signal.SIGTERM)
    await fleet.ended("old", 120)
    await fleet.until(lambda log: greeted(log, COORDINATOR), "the new one's word", 120)
    (at, *_) = greeted(fleet.history, COORDINATOR)
    assert f"sequence {at}" in fleet.history.view.run().read_only

    fleet.leaving |= {"late", "gamma"}  # what was left behind: nothing is written, all is said
    fleet.coordinate("late")
    assert await fleet.ended("late", 120) != 0
    assert "too old for the run" in fleet.log_of("late").read_text()
    fleet.site("gamma")
    assert await fleet.ended("gamma", 120) == 6
    assert "upgrade atoll" in fleet.log_of("gamma").read_text()
    assert not fleet.history.of(SiteJoined, "site.gamma")

    joins = [one for _, one in fleet.history.of(SiteJoined)]
    claims = [one for _, one in fleet.history.of(CoordinatorElected)]
    assert all(one.software["atoll"] and one.software["torch"] for one in joins)
    assert all(one.software and one.software["atoll"] for one in claims)
    assert len(joins) == 4

    again = await newly(fleet, build, "run", "stop", fleet.run)
    assert again.code == 0, again
    for name in ("alpha", "beta", "new"):
        assert await fleet.ended(name, 90) == 0, fleet.said()
    found = await newly(fleet, build, "audit", fleet.run, "--json")
    assert found.json()["violations"] == []
    old = await fleet.atoll("audit", fleet.run)
    assert old.code != 0 and "upgrade" in old.out + old.err
