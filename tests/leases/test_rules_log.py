"""Rules of the log: what is judged where, who may speak, what is void (R1, R3, R5, R6, R17-R20)."""

from __future__ import annotations

import math

import msgpack
import pytest

from eventlog.codec import content_digest, pack
from eventlog.events import (
    COORDINATOR,
    OPERATOR,
    EvaluationCompleted,
    Heartbeat,
    RunPaused,
    SiteDeparted,
)
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.schema import table_digest
from leases.table import LeaseTable
from leases.view import View
from outer.rounds import Facts, decide
from tests.support.scenario import RUN, Scenario, config, created, finish, name

BEAT = Heartbeat(phase="training", step=1, tokens=32, tokens_per_s=8.0)


def test_r1_each_block_of_a_grant_is_judged_by_itself() -> None:
    run = Scenario()
    run.arrive("a", "b")
    assert run.grant("a", 1) == ""
    assert run.grant("b", 0, 1, 0, 99).startswith("in part: 0:1 is leased; 0:0 is")
    assert run.states(0, 1) == ["leased", "leased"]
    assert [block.block for block in run.view.held(run.sites["b"][0])] == [0]


def test_r1_a_grant_of_which_nothing_holds_leaves_no_trace() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=3)
    run.grant("a", *range(6))
    void = run.granting("a", 6, 7, epoch=1).model_copy(update={"quota": 2})
    assert "not in the epoch" in run.decide(void)
    assert [row["epoch"] for row in run.view.epochs()] == [0]
    assert run.projection.db.execute("SELECT count(*) FROM leases").fetchone() == (1,)


def test_r1_one_bad_block_voids_a_delta_and_the_coordinator_gives_the_blocks_back() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=3)
    run.grant("a", 0, 1, 2)
    run.train("a", 0, 1)
    void = run.says("a", run.delivery(0, 1, 2))
    assert "block 0:2 is leased" in void
    assert run.states(0, 1, 2) == ["trained", "trained", "leased"]
    decided = decide(run.view, Facts())
    assert [(one.type, one.code, one.values) for one in decided] == [
        ("delta.refused", "void", False)
    ]
    assert run.decide(*decided) == ""
    assert run.states(0, 1, 2) == ["available", "available", "leased"]
    assert run.says("a", run.starting(2)) == ""


def test_r1_a_void_delta_takes_no_block_that_was_trained_after_it() -> None:
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0, 1)
    run.train("a", 0)
    assert run.says("a", run.delivery(0, 1)) != ""
    void = run.last
    run.train("a", 1)
    assert run.refuse(void, "a", "void") == ""
    assert run.states(0, 1) == ["available", "trained"]


@pytest.mark.parametrize("huge", [2**63, 2**64 - 1, 2**62 + 1])
def test_r1_the_fold_bears_numbers_beyond_what_its_database_holds(huge: int) -> None:
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0)
    wire = {
        "id": "x", "type": "block.started", "v": 1, "run": RUN, "source": "site.a", "n": 3,
        "at": 0.0, "incarnation": run.sites["a"],
        "data": {"epoch": 0, "block": 0, "lease": [huge, "x"]},
    }  # fmt: skip
    assert run.raw("site.a", pack(wire)) != ""
    lease = {"epoch": 0, "block": 0, "lease": run.lease(0, 0)}
    absurd = {**wire, "n": run.view.pen("site.a")[0] + 1, "data": lease, "incarnation": [huge, "x"]}
    assert run.raw("site.a", pack(absurd)) != ""
    departed = {"incarnation": (huge, "x"), "site": "a", "code": "lost", "reason": "gone"}
    event = SiteDeparted.model_construct(**departed)
    assert run.forged(COORDINATOR, event) != ""
    assert run.state(0) == "leased"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_r1_the_fold_bears_numbers_that_are_none(value: float) -> None:
    run = Scenario()
    run.arrive("a")
    evaluation = EvaluationCompleted(
        version=0, num_tokens=8, loss=value, perplexity=value, bits_per_byte=value
    )
    assert run.says("a", evaluation) == ""
    run.grant("a", 0)
    assert run.says("a", run.starting(0)) == ""
    assert run.says("a", run.completing(0, loss=value)) == ""
    assert run.says("a", run.delivery(0, norm=value, max_abs=value)) == ""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"target": {}}, "is invalid"),
        ({"seed": "none"}, "is invalid"),
        ({"unknown": 1}, "is invalid"),
        ({"model": {"model_type": "x", "deep": {b"a": 1, "b": 2}}}, "has digest"),
        ({"lease_s": 0.5}, "is invalid"),
    ],
)
def test_r1_no_run_is_made_of_a_configuration_that_cannot_be_read(broken: dict, says: str) -> None:
    log = MemoryLog(RUN)
    projection = Projection(":memory:", [LeaseTable()], RUN)
    content = config().model_dump(mode="json", exclude_none=True)
    event = created(config()).model_copy(update={"config": {**content, **broken}})
    wire = {
        "id": "x", "type": "run.created", "v": 1, "run": RUN, "source": OPERATOR, "n": 1,
        "at": 0.0, "data": event.model_dump(exclude_none=True),
    }  # fmt: skip
    finish(log.append(OPERATOR, [msgpack.packb(wire)], 0))
    ((_, (void,)),) = projection.apply(finish(log.read(0)))
    assert void.startswith(f"its configuration {says}")
    assert not View(projection.db).exists()


def test_r1_a_log_stays_a_run_though_a_new_one_would_be_refused_for_its_configuration() -> None:
    content = config().model_dump(mode="json", exclude_none=True)
    content["rounds"] |= {"grace_s": 99.0, "deadline_s": 30.0}
    log = MemoryLog(RUN)
    projection = Projection(":memory:", [LeaseTable()], RUN)
    event = created(config(), config=content, config_digest=content_digest(content))
    finish(Writer(log, OPERATOR).append([event], Stamp()))
    ((_, (void,)),) = projection.apply(finish(log.read(0)))
    assert void == ""
    assert View(projection.db).config().rounds.grace_s == 99.0


def test_p8_no_run_is_made_of_a_configuration_that_is_not_its_digests() -> None:
    event = created(config(), config_digest=name("another configuration"))
    log = MemoryLog(RUN)
    projection = Projection(":memory:", [LeaseTable()], RUN)
    finish(Writer(log, OPERATOR).append([event], Stamp()))
    ((_, (void,)),) = projection.apply(finish(log.read(0)))
    assert void.startswith("its configuration has digest ")
    assert not View(projection.db).exists()


def test_r3_start_completion_and_delivery_check_the_lease_token() -> None:
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0, 1)
    other = (run.lease(0, 0)[0], "another id")
    assert "lease" in run.says("a", run.starting(0).model_copy(update={"lease": other}))
    assert run.says("a", run.starting(0)) == ""
    assert "lease" in run.says("a", run.completing(0).model_copy(update={"lease": other}))
    assert run.says("a", run.completing(0)) == ""
    forged = run.delivery(0)
    part = forged.blocks[0].model_copy(update={"lease": other})
    assert "lease" in run.says("a", forged.model_copy(update={"blocks": (part,)}))
    assert run.state(0) == "trained"


def test_r3_a_lease_ends_with_the_block_it_gave() -> None:
    run = Scenario()
    run.arrive("a", "b")
    run.grant("a", 0)
    late = run.starting(0)
    run.depart("a")
    run.grant("b", 0)
    assert "lease" in run.says("b", late)
    assert run.state(0) == "leased"
    assert run.says("b", run.starting(0)) == ""


def test_r5_a_term_other_than_the_current_one_is_void() -> None:
    run = Scenario()
    run.arrive("a")
    old = run.view.run().term
    new = run.elect("two")
    assert (run.view.run().term, run.view.run().holder) == (new, "two")
    assert run.decide(run.granting("a", 0), term=old) == f"decided in term {old}, the term is {new}"
    assert run.state(0) == "available"
    assert run.decide(run.granting("a", 0), term=new) == ""


def test_r5_each_decision_names_the_one_before() -> None:
    run = Scenario()
    run.arrive("a")
    assert "as the previous decision" in run.forged(
        COORDINATOR, run.granting("a", 0), previous="something else"
    )
    assert run.forged(COORDINATOR, run.granting("a", 0)) == ""


def test_r6_a_counter_that_is_not_the_next_is_void() -> None:
    run = Scenario()
    run.arrive("a")
    n = run.view.pen("site.a")[0]
    for wrong in (n, n + 2, 0, -1, 2**63):
        assert f"counter {wrong} follows {n}" in run.forged("site.a", BEAT, n=wrong)
    assert run.forged("site.a", BEAT, n=n + 1) == ""


def test_r6_a_duplicated_event_counts_once() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=1)
    run.work("a", 0)
    before = run.view.deltas("undecided")
    for record in finish(run.log.read(0)):
        said = run.raw(record.subject, record.payload)
        assert "duplicate" in said
    assert run.view.deltas("undecided") == before
    assert run.states(0, 1) == ["delivered", "available"]


def test_r6_a_payload_that_names_another_source_or_run_is_void() -> None:
    run = Scenario()
    run.arrive("a", "b")
    assert "the payload says source site.b" in run.forged("site.a", BEAT, source="site.b")
    assert "of run other" in run.forged("site.a", BEAT, run="other")
    assert "may not come from site.a" in run.forged("site.a", RunPaused(reason="by nobody"))
    assert run.view.run().state == "running"


def test_r6_void_events_move_only_what_the_next_append_must_expect() -> None:
    run = Scenario()
    run.arrive("a")
    n, last_id, last = run.view.pen("site.a")
    run.raw("site.a", b"no event")
    assert run.view.pen("site.a") == (n, last_id, last + 1)
    assert run.says("a", BEAT) == ""


def test_what_is_void_changes_only_pens_and_speaks() -> None:
    """P4: a zombie's events leave blocks, deltas and rounds as they are."""
    run = Scenario()
    run.arrive("a")
    run.grant("a", 0, 1, 2)
    run.train("a", 0)
    assert run.says("a", run.starting(1)) == ""
    zombie, delta = run.sites["a"], run.delivery(0)
    ending, beginning = run.completing(1), run.starting(2)
    run.depart("a")
    run.arrive("a")
    before = _rows(run)
    for event in (delta, ending, beginning, BEAT):
        assert "does not live" in run.says("a", event, zombie)
    assert _rows(run) == before
    assert len(table_digest(run.projection.db)) == 64


def _rows(run: Scenario) -> list[tuple]:
    return [
        row
        for table in ("blocks", "deltas", "epochs", "rounds", "members", "incarnations")
        for row in run.projection.db.execute(f"SELECT * FROM {table}")
    ]
