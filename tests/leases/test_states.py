"""The life of a block: the fold makes the table's moves and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventlog.events import BlockQuarantined, LeaseReclaimed, LeaseStolen
from leases.states import FINAL, MOVES
from tests.support.scenario import Scenario

STATES = ("available", "leased", "training", "trained", "delivered", "merged", "quarantined")
# The picture of the rules, written down once more by hand.
RULES = {
    ("available", "grant"): "leased",
    ("leased", "start"): "training",
    ("training", "complete"): "trained",
    ("trained", "deliver"): "delivered",
    ("delivered", "merge"): "merged",
    ("leased", "steal"): "available",
    ("leased", "reclaim"): "available",
    ("training", "reclaim"): "available",
    ("trained", "reclaim"): "available",
    ("delivered", "refuse"): "available",
    ("available", "quarantine"): "quarantined",
}


def bring_to(state: str) -> Scenario:
    """A run whose block 0 is in a state; site a holds it where anybody does."""
    run = Scenario()
    run.arrive("a")
    run.open(a=3)
    steps: dict[str, Callable[[], object]] = {
        "leased": lambda: run.grant("a", 0),
        "training": lambda: run.says("a", run.starting(0)),
        "trained": lambda: run.says("a", run.completing(0)),
        "delivered": lambda: run.deliver("a", 0),
        "merged": run.commit,
    }
    if state == "quarantined":
        run.decide(BlockQuarantined(epoch=0, block=0, reason="a test"))
    elif state != "available":
        for name, step in steps.items():
            step()
            if name == state:
                break
    assert run.state(0) == state
    return run


def attempt(run: Scenario, move: str) -> None:
    """Whatever event asks for the move of block 0, on behalf of site a."""
    one = {"incarnation": run.sites["a"], "site": "a", "reason": "a test"}
    deltas = run.view.deltas("undecided", "cut", "merged")
    match move:
        case "grant":
            run.grant("a", 0)
        case "start":
            run.says("a", run.starting(0))
        case "complete":
            run.says("a", run.completing(0))
        case "deliver":
            run.says("a", run.delivery(0, last=True))
        case "merge":
            if deltas and run.view.round() is not None:
                run.decide(run.closing())
            if run.view.round() is not None:
                run.decide(run.committing())
        case "steal":
            run.decide(LeaseStolen.model_validate({**one, "epoch": 0, "blocks": [0]}))
        case "reclaim":
            run.decide(LeaseReclaimed.model_validate({**one, "blocks": [(0, 0)]}))
        case "refuse":
            run.refuse(deltas[0].token if deltas else (1, "none"), "a")
        case "quarantine":
            run.decide(BlockQuarantined(epoch=0, block=0, reason="a test"))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("move", sorted({move for _, move in RULES}))
def test_the_fold_makes_the_moves_of_the_table_and_no_other(state: str, move: str) -> None:
    run = bring_to(state)
    num_void = sum(map(bool, run.why.values()))
    attempt(run, move)
    assert run.state(0) == RULES.get((state, move), state)
    moved = (state, move) in RULES
    asked = not (move == "merge" and run.view.round() is None)
    assert (sum(map(bool, run.why.values())) == num_void) == (moved or not asked)


def test_the_table_is_that_of_the_rules() -> None:
    assert MOVES == RULES
    assert set(FINAL) == set(STATES) - {state for state, _ in RULES}
