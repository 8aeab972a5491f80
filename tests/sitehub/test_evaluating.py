"""A hub whose turn it is has its trainer evaluate a version between two blocks, once."""

from __future__ import annotations

from typing import Any

from eventlog.events import EvaluationCompleted, Heartbeat, SiteDeparting
from leases import policy
from leases.owing import owes
from sitehub.actions import EndTrainer
from tests.support.desk import Desk
from tests.support.scenario import Scenario

FOUND = {"num_tokens": 64, "loss": 2.0, "perplexity": 7.39, "bits_per_byte": 1.1, "seconds": 3.0}


def at_version(version: int = 1, *, walltime_s: float | None = None, **changes: Any) -> Desk:
    """A hub that lived through a round, and whose trainer now holds what it made; it has two blocks
    of the next one."""
    rule = {"every_rounds": 1, "max_tokens": 64, "most_s": 40.0, **changes}
    desk = Desk(Scenario({"epochs": 9}, evaluation=rule, limits={"compile_s": 20.0}))
    desk.come_in()
    assert desk.run.open(a=1) == "" and desk.run.grant("a", 0) == ""
    desk.turn()
    desk.trained(1)
    desk.turn()
    path = desk.told[-1]["path"]
    desk.logic.on_cut()
    said = {"path": path, "codec": "bf16", "norm": 1.0, "max_abs": 0.5, "seconds": 0.1}
    desk.answer(**said, label="none")
    desk.turn()
    desk.logic.on_stored(path, "ab" * 32, 40, 0.1)
    desk.turn()
    desk.run.commit()
    assert desk.run.open(a=2) == "" and desk.run.grant("a", 1, 2) == ""
    desk.turn()
    desk.hub.walltime_end = None if walltime_s is None else desk.now + walltime_s
    desk.hold(version)
    desk.turn()
    return desk


def test_a_version_is_evaluated_between_two_blocks_and_training_goes_on() -> None:
    desk = at_version()
    assert desk.told[-1] == {"do": "evaluate", "max_tokens": 64}
    desk.answer(version=1, **FOUND)
    desk.turn()
    (said,) = desk.says(EvaluationCompleted)
    assert (said.version, said.loss, said.seconds) == (1, 2.0, 3.0)
    assert desk.told[-1]["do"] == "train"
    desk.trained(2)
    desk.turn()
    assert [one["do"] for one in desk.told].count("evaluate") == 1


def test_whose_turn_it_is_not_trains_on() -> None:
    desk = at_version(every_rounds=2)
    assert desk.told[-1]["do"] == "train"
    assert "evaluate" not in [one["do"] for one in desk.told]


def test_who_leaves_lets_its_turn_pass() -> None:
    desk = at_version(every_rounds=2)
    desk.hub.evaluated = 0
    desk.logic.ask_to_leave("drained", "it is asked to", 0)
    desk.turn()
    assert "evaluate" not in [one["do"] for one in desk.told]


def test_p7_a_job_that_ends_before_an_evaluation_would_lets_its_turn_pass() -> None:
    desk = at_version(walltime_s=1000.0)
    assert desk.told[-1]["do"] == "evaluate"
    near = at_version(walltime_s=30.0)  # a margin of 16 s, and 16 s for who has not measured yet
    assert "evaluate" not in [one["do"] for one in near.told]
    assert near.told[-1]["do"] == "train", "there is time for a block of 5 s"


def test_r10_an_evaluation_has_a_bound_of_its_own_at_the_hub() -> None:
    desk = at_version()
    watched = desk.watch(39.0)
    assert not [one for one in watched if isinstance(one, EndTrainer)]
    (end,) = [one for one in desk.watch(3.0) if isinstance(one, EndTrainer)]
    assert "no answer to 'evaluate'" in end.reason
    desk.turn()
    assert [one.code for one in desk.says(SiteDeparting)] == ["trainer"]


def test_r10_the_coordinator_grants_it_and_counts_anew_once_it_is_done() -> None:
    desk = at_version()
    desk.watch(2.0)
    assert desk.says(Heartbeat)[-1].phase == "evaluating"
    one = desk.run.view.live_at("a")
    assert one is not None
    owed = owes(desk.run.view, one)
    assert owed is not None and "evaluating" in owed.what and owed.bound_s == 40.0
    for _ in range(27):  # ticks of 2 s: 40 s, and a lease in which its hub acts
        desk.run.tick()
        desk.watch(0.5)
    assert policy.departures(desk.run.view) == []
    desk.answer(version=1, **FOUND)
    desk.turn()
    one = desk.run.view.live_at("a")
    assert one is not None and (one.stalled_ticks, one.phase) == (0, "training")
