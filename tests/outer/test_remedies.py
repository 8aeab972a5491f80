"""What a run waits for is told apart: what a person must do, and what comes by itself."""

from __future__ import annotations

from eventlog.events import RunPaused, RunStopped
from eventlog.projector import Projection
from leases.table import LeaseTable
from leases.view import View
from outer.waiting import waiting
from tests.outer.test_waiting import two_at_work
from tests.support.scenario import Scenario


def test_what_only_a_person_can_end_is_told_from_what_ends_by_itself() -> None:
    def remedies(scenario: Scenario, silence_s: float | None = None) -> list[str]:
        return [wait.remedy for wait in waiting(scenario.view, silence_s) if wait.remedy]

    assert remedies(Scenario(elect=False)) == ["coordinate", "site"]
    assert remedies(Scenario(), silence_s=3600.0) == ["site"]
    run = two_at_work()
    assert remedies(run) == []
    assert remedies(run, silence_s=9.0) == []  # a standby may take over yet
    assert remedies(run, silence_s=200.0) == ["coordinate"]
    assert run.depart("alpha") == "" and run.depart("beta") == ""
    assert remedies(run) == ["site"]
    run.operator(RunPaused(reason="maintenance"))
    assert remedies(run) == ["resume"]
    run.operator(RunStopped(reason="enough"))
    assert remedies(run) == []
    with Projection(":memory:", [LeaseTable()], "tests") as projection:
        assert [wait.remedy for wait in waiting(View(projection.db))] == ["create"]
