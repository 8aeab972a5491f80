"""Which site evaluates a version: in turn, and the same for every hub."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.events import EvaluationCompleted
from eventlog.projector import Projection
from leases.evaluators import evaluations, evaluator
from leases.table import LeaseTable
from leases.view import View
from tests.leases.stories import audited, records
from tests.support.scenario import RUN, Scenario


def committed(run: Scenario, num: int, *, arrives: str = "") -> None:
    """So many versions, each from one block of `a`; somebody arrives in the midst of the round."""
    for _ in range(num):
        version = run.view.run().version
        epoch, block = divmod(version, 6)
        assert run.open(a=1) == ""
        if arrives:
            run.arrive(arrives)
        run.work("a", block, epoch=epoch)
        run.commit()
        assert run.apply("a", version + 1) == ""


def story(every: int = 1, **changes: Any) -> Scenario:
    run = Scenario({"epochs": 9}, evaluation={"every_rounds": every, **changes})
    run.arrive("a", "b", "c")
    return run


def turns(view: View, *versions: int) -> list[str]:
    found = []
    for version in versions:
        seq = evaluator(view, version)
        one = None if seq is None else view.incarnation(seq)
        found.append(one.site if one else "-")
    return found


def measured(version: int, loss: float = 2.0, seconds: float = 0.5) -> EvaluationCompleted:
    fields = {"version": version, "num_tokens": 8, "loss": loss, "seconds": seconds}
    return EvaluationCompleted.model_validate({**fields, "perplexity": 7.4, "bits_per_byte": 1.0})


def test_sites_that_lived_through_a_round_take_turns() -> None:
    run = story()
    committed(run, 2)
    assert run.depart("b") == ""
    committed(run, 2)
    committed(run, 1, arrives="b")
    committed(run, 1)
    assert turns(run.view, 1, 2, 3, 4, 5, 6) == ["a", "b", "a", "c", "a", "c"]
    assert turns(run.view, 0, 7) == ["-", "-"], "nothing is committed there"


@pytest.mark.parametrize(("every", "expected"), [(0, "------"), (2, "-a-b-c"), (3, "--a--b")])
def test_only_each_so_manieth_version_is_evaluated(every: int, expected: str) -> None:
    run = story(every)
    committed(run, 6)
    assert "".join(turns(run.view, *range(1, 7))) == expected


def test_every_hub_computes_the_same_turn_from_its_part_of_the_log() -> None:
    run = story()
    committed(run, 3)
    assert run.depart("c") == ""
    committed(run, 2)
    for site in ("a", "b", "c"):
        with Projection(":memory:", [LeaseTable(scope=site)], RUN, contiguous=False) as projection:
            subjects = ("coordinator", "operator", f"site.{site}")
            projection.apply([one for one in records(run) if one.subject in subjects])
            assert turns(View(projection.db), 1, 2, 3, 4, 5) == turns(run.view, 1, 2, 3, 4, 5)


def test_what_evaluations_say_is_told_by_the_audit() -> None:
    run = story()
    committed(run, 2)
    assert run.says("b", measured(1, 2.5)) == ""
    assert run.operator(measured(2, 2.25)) == ""
    assert "there is no version 3" in run.says("a", measured(3))
    assert [(one.version, one.source, one.loss) for one in evaluations(run.view)] == [
        (1, "site.b", 2.5),
        (2, "operator", 2.25),
    ]
    assert audited(run).as_json()["evaluations"][1]["loss"] == 2.25
