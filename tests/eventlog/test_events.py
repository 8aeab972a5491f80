"""Each event: it round-trips, refuses what is wrong, and says who may write it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from eventlog.chain import Record
from eventlog.codec import Envelope, decode, encode
from eventlog.events import AGENT, COORDINATOR, EVENTS, OPERATOR, PLANNER, SITE, Event

D1, D2 = "1" * 64, "a" * 64
TOKEN = (5, "e5")
WHY = {"reason": "because"}
LEASE = {"incarnation": TOKEN, "site": "a", "epoch": 0, "blocks": (0, 3), **WHY}
SHAPE = {"nodes": 2, "walltime_s": 3600, "partition": "gpu"}

# One example of every event, as plain data.
EXAMPLES: dict[str, dict[str, Any]] = {
    "run.created": {
        "config": {"name": "r", "deep": {"list": [1, 2.5, "x"]}},
        "config_digest": D1,
        "data": {
            "manifest_digest": D2,
            "num_sequences": 100,
            "sequence_tokens": 256,
            "block_sequences": 8,
        },
        "parameters_blob": D1,
        "parameters_digest": D2,
        "num_parameters": 1_000_000,
        "arithmetic": {"decode": D1, "merge": D2},
        "arithmetic_digest": D1,
        "lineage": {"run": "old", "version": 3, "parameters_digest": D2},
    },
    "run.keys_named": {
        "keys": ({"subject": "site.alpha", "key": "U" + 55 * "A"},),
        "dropped": ({"subject": "operator", "key": "U" + 55 * "B"},),
        **WHY,
    },
    "run.paused": WHY,
    "run.resumed": WHY,
    "run.stopped": WHY,
    "run.drain_requested": {"site": "a", **WHY},
    "run.finished": {
        "outcome": "target",
        "version": 8,
        "tokens": 4096,
        "undecided": (TOKEN,),
        "num_returned": 3,
        "parameters_digest": D1,
        "momentum_digest": D2,
        "residual_digest": D1,
        **WHY,
    },
    "coordinator.elected": {"holder": "host:1", **WHY},
    "coordinator.tick": {"tick": 1},
    "site.joined": {
        "hardware": {"cpu": "x"},
        "software": {"torch": "2"},
        "manifest_digest": D1,
        "arithmetic": {"decode": D2},
        "walltime_left_s": 60.0,
        "predecessor": TOKEN,
        "successor": True,
    },
    "site.admitted": {"site": "a", "join": TOKEN, **WHY},
    "site.refused": {"site": "a", "join": TOKEN, "code": "twin", "final": False, **WHY},
    "round.opened": {
        "round": 1,
        "base_version": 0,
        "quotas": ({"incarnation": TOKEN, "blocks": 2},),
        "quorum": 1,
        "grace_ticks": 0,
        "deadline_ticks": 9,
        **WHY,
    },
    "lease.granted": {**LEASE, "quota": 4},
    "lease.reclaimed": {**LEASE, "blocks": ((0, 3), (1, 0))},
    "lease.stolen": LEASE,
    "site.heartbeat": {
        "phase": "training",
        "step": 5,
        "tokens": 1024,
        "tokens_per_s": 100.5,
        "version": 2,
        "walltime_left_s": 9.0,
    },
    "block.started": {"epoch": 0, "block": 7, "lease": TOKEN},
    "block.completed": {"epoch": 0, "block": 7, "lease": TOKEN, "loss": 2.5, "seconds": 0.5},
    "delta.published": {
        "base_version": 0,
        "blocks": ({"epoch": 0, "block": 7, "lease": TOKEN, "tokens": 2048},),
        "blob": D1,
        "num_bytes": 10,
        "codec": "bf16",
        "norm": 1.5,
        "max_abs": 0.5,
        "last": True,
    },
    "delta.refused": {"delta": TOKEN, "site": "a", "code": "stale", "values": False, **WHY},
    "round.closed": {
        "round": 1,
        "base_version": 0,
        "deltas": ({"delta": TOKEN, "site": "a", "tokens": 2048, "weight": 1.0},),
        "tokens": 2048,
        **WHY,
    },
    "round.committed": {
        "round": 1,
        "cut": TOKEN,
        "version": 1,
        "update_blob": D1,
        "update_bytes": 10,
        "update_codec": "bf16",
        "parameters_digest": D1,
        "momentum_digest": D2,
        "residual_digest": D1,
        "tokens": 2048,
        "through": 12,
        "log_digest": D2,
        "seconds": {"merge": 0.25},
        **WHY,
    },
    "epoch.closed": {"epoch": 0, "blocks": 9, "tokens": 999, "num_quarantined": 0, **WHY},
    "block.quarantined": {"epoch": 0, "block": 7, **WHY},
    "version.applied": {
        "version": 1,
        "parameters_digest": D1,
        "source": "update",
        "seconds": {"download": 0.5},
        "stall_s": 0.75,
    },
    "snapshot.saved": {"version": 1, "blob": D1, "num_bytes": 10, "seconds": 0.5, **WHY},
    "blobs.released": {"blobs": (D1, D2), **WHY},
    "evaluation.completed": {
        "version": 1,
        "split": "heldout",
        "num_tokens": 10,
        "loss": 2.0,
        "perplexity": 7.4,
        "bits_per_byte": 1.5,
    },
    "site.departing": {"code": "walltime", **WHY},
    "site.departed": {"incarnation": TOKEN, "site": "a", "code": "lost", **WHY},
    "placement.probed": {
        "shape": SHAPE,
        "outcome": "estimated",
        "start_epoch_s": 1_700_000_000,
        "message": "",
    },
    "queue.observed": {
        "partition": "gpu",
        "at_epoch_s": 1_800_000_000,
        "total_nodes": 8,
        "free_nodes": 2,
        "down_nodes": 1,
        "up": True,
        "complete": True,
        "running": ({"nodes": 5, "limit_s": 3600, "at_epoch_s": 1_800_000_600},),
        "pending": ({"nodes": 2, "limit_s": 60, "ours": True, "held": True, "job_id": "17"},),
        "reservations": (
            {"start_epoch_s": 1_800_009_000, "end_epoch_s": 1_800_009_900, "nodes": 8},
        ),
    },
    "agent.reported": {"state": "troubled", "message": "no account", "trouble": "permanent"},
    "job.intended": {"job_name": "j", "shape": SHAPE, "after": "i", "chain": 1, "index": 2, **WHY},
    "job.submitted": {"job_name": "j", "job_id": "17"},
    "job.observed": {
        "job_name": "j",
        "job_id": "17",
        "phase": "running",
        "nodes": 2,
        "walltime_s": 60,
        "started_epoch_s": 1_800_000_000,
        "end_by_epoch_s": 1_800_000_060,
    },
    "job.ended": {"job_name": "j", "job_id": "17", "outcome": "completed", "message": "ok"},
    "placement.planned": {"actions": ({"do": "submit"},), "estimates": ({"s": 1.5},), **WHY},
}

WRITERS = {
    OPERATOR: "run.created run.keys_named run.paused run.resumed run.stopped run.drain_requested"
    " evaluation.completed",
    COORDINATOR: "run.paused run.finished coordinator.elected coordinator.tick site.admitted"
    " site.refused round.opened lease.granted lease.reclaimed lease.stolen delta.refused"
    " round.closed round.committed epoch.closed block.quarantined snapshot.saved blobs.released"
    " site.departed",
    SITE: "site.joined site.heartbeat block.started block.completed delta.published"
    " version.applied evaluation.completed site.departing",
    AGENT: "placement.probed queue.observed agent.reported job.intended job.submitted "
    "job.observed job.ended",
    PLANNER: "placement.planned",
}


def build(name: str, **changes: Any) -> Event:
    return EVENTS[name].model_validate({**EXAMPLES[name], **changes})


def test_there_is_an_example_of_every_event() -> None:
    assert EXAMPLES.keys() == EVENTS.keys()


def test_who_may_write_what_is_the_table_of_the_design() -> None:
    for source, names in WRITERS.items():
        assert {n for n, kind in EVENTS.items() if source in kind.by} == set(names.split())


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_comes_back_from_the_log_as_it_was(name: str) -> None:
    event = build(name)
    envelope = Envelope("id", name, EVENTS[name].schema_version, "r", "operator", 1, 0.0)
    entry = decode(Record(1, "operator", 0, encode(event, envelope)))
    assert entry.problem == ""
    assert entry.event == event
    assert type(entry.event) is EVENTS[name]


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_frozen_and_refuses_wrong_fields(name: str) -> None:
    event = build(name)
    for field, info in EVENTS[name].model_fields.items():
        with pytest.raises(ValidationError):
            setattr(event, field, getattr(event, field))
        with pytest.raises(ValidationError):
            build(name, **{field: object()})
        if info.is_required():
            rest = {key: value for key, value in EXAMPLES[name].items() if key != field}
            with pytest.raises(ValidationError):
                EVENTS[name].model_validate(rest)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run.paused", {"reason": ""}),
        ("run.finished", {"outcome": "tired"}),
        ("run.finished", {"parameters_digest": "1" * 63}),
        ("run.finished", {"parameters_digest": "A" * 64}),
        ("coordinator.tick", {"tick": 0}),
        ("site.admitted", {"site": "Upper"}),
        ("site.admitted", {"site": "a.b"}),
        ("site.admitted", {"join": (5,)}),
        ("lease.granted", {"blocks": ()}),
        ("lease.granted", {"blocks": (-1,)}),
        ("lease.reclaimed", {"blocks": ((0, -1),)}),
        ("site.heartbeat", {"tokens_per_s": float("nan")}),
        ("site.heartbeat", {"phase": "dreaming"}),
        ("delta.published", {"blocks": ()}),
        ("delta.published", {"num_bytes": 0}),
        ("round.closed", {"deltas": ()}),
        ("round.closed", {"deltas": ({**EXAMPLES["round.closed"]["deltas"][0], "weight": 1.5},)}),
        ("round.committed", {"version": 0}),
        ("blobs.released", {"blobs": ("..",)}),
    ],
)
def test_a_value_outside_its_bounds_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        build(name, **change)


def test_a_loss_that_is_no_number_can_be_reported() -> None:
    event = build("block.completed", loss=float("inf"))
    envelope = Envelope("id", event.type, 1, "r", "site.a", 1, 0.0)
    assert decode(Record(1, "site.a", 0, encode(event, envelope))).event == event
