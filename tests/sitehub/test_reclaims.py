"""A hub gives up its trainer's local progress exactly where started blocks were taken back (R4)."""

from __future__ import annotations

import pytest

from eventlog.codec import decode
from eventlog.events import LeaseReclaimed
from sitehub.logic import HubLogic
from sitehub.state import HubState
from tests.support.scenario import Scenario, finish


@pytest.mark.parametrize(
    ("named", "is_discarded"),
    [((0, 1, 2), True), ((0, 1), False), ((2,), False), ((1,), False)],
)
def test_progress_is_discarded_only_with_the_started_blocks(
    named: tuple[int, ...], is_discarded: bool
) -> None:
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0, 1, 2)
    assert run.says("a", run.starting(0)) == ""
    assert run.says("a", run.starting(1)) == ""
    logic = HubLogic(HubState("a", run.view, incarnation=run.sites["a"]))
    logic.hub.claimed = {(0, block, run.lease(0, block)[0]) for block in (0, 1)}
    said = run.decide(
        LeaseReclaimed(
            incarnation=run.sites["a"],
            site="a",
            blocks=tuple((0, block) for block in named),
            reason="a test",
        )
    )
    record = finish(run.log.at(run.last[0]))
    assert record is not None
    logic.on_entry(decode(record), said)
    assert logic.hub.discard is is_discarded
    assert bool(logic.hub.claimed) is not is_discarded
    assert run.states(0, 1) == (["available"] * 2 if is_discarded else ["training"] * 2)
