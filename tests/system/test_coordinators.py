"""The coordinator can be killed at any time; any number may run; the log is the only truth."""

from __future__ import annotations

import signal
from importlib.metadata import version

from eventlog.events import COORDINATOR, CoordinatorElected, RunFinished
from tests.support.fleet import Fleet
from tests.support.watched import History


async def test_the_run_goes_on_under_a_coordinator_started_again_and_then_under_its_standby(
    fleet: Fleet,
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1")
    await fleet.until(_in_mid_round, "training in mid-round")
    fleet.kill("coordinator")
    fleet.coordinate("again")
    await _goes_on(fleet, num_terms=2)

    fleet.coordinate("standby")
    its_fold = fleet.home / "projections" / fleet.run / "coordinator-2.sqlite"
    await fleet.until(lambda _: its_fold.exists(), "the standby")
    await fleet.until(lambda log: log.new_versions(log.mark) >= 2, "rounds with a standby")
    await fleet.until(_in_mid_round, "training in mid-round again")
    assert len(fleet.history.of(CoordinatorElected)) == 2, "it claimed a term that was held"
    fleet.kill("again")
    await _goes_on(fleet, num_terms=3)

    fleet.signal("standby", signal.SIGTERM)
    assert await fleet.ended("standby") == 75
    fleet.coordinate("last")  # it claims only when the silence has lasted
    await fleet.finish()
    _is_one_history(fleet.history)
    found = await fleet.audit("--deep")
    assert found["model_digest"] == fleet.history.of(RunFinished)[0][1].parameters_digest


def _in_mid_round(log: History) -> bool:
    states = log.states("alpha") + log.states("beta")
    return "trained" in states and "training" in states


async def _goes_on(fleet: Fleet, num_terms: int) -> None:
    """Two more versions are committed in a new term."""
    await fleet.until(
        lambda log: len(log.of(CoordinatorElected)) >= num_terms, f"term number {num_terms}"
    )
    fleet.history.mark = fleet.history.of(CoordinatorElected)[-1][0]
    await fleet.until(lambda log: log.new_versions(log.mark) >= 2, "new versions")


def _is_one_history(log: History) -> None:
    """Each decision of the coordinators holds, in the term that its claim began."""
    assert log.wrong_decisions() == []
    claims, term = dict(log.of(CoordinatorElected)), None
    for entry in log.entries:
        if entry.record.subject == COORDINATOR:
            term = entry.record.sequence if entry.record.sequence in claims else term
            assert entry.envelope is not None
            assert entry.envelope.term in (None, term), entry
    assert len({claim.holder for claim in claims.values()}) == 4
    for claim in claims.values():  # what decides is in the log, as what trains is
        assert claim.software and claim.software["atoll"] == version("atoll")
