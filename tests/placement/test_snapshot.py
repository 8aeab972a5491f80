"""A look at a queue as an event, without anybody's name, and what estimates are made from."""

from __future__ import annotations

from dataclasses import replace

from eventlog.codec import pack
from eventlog.events import JobShape
from ops.placement.scheduler import Machine
from ops.placement.slurm.nodes import Nodes, Partition, Reserved
from ops.placement.slurm.probes import Estimate
from ops.placement.slurm.queues import Phase, Queued
from ops.placement.slurm.troubles import Kind, Trouble
from ops.placement.snapshot import observed, probed, snapshot

NOW = 1_800_000_000
RUNS = Queued(
    "7", "R", Phase.RUNNING, 2, 3600, NOW - 600, NOW - 600, NOW + 3000, 9, "gpu", "ann", "secret",
    "None",
)  # fmt: skip
WAITS = replace(RUNS, job_id="8", state="PD", phase=Phase.PENDING, start_s=None, end_s=None)
OURS = replace(WAITS, job_id="9", user="me", name="atoll-1", nodes=1)
MACHINE = Machine(
    (
        Nodes("gpu", True, "allocated", 2),
        Nodes("gpu", True, "idle", 3),
        Nodes("gpu", True, "drained", 1),
        Nodes("cpu", True, "idle", 9),
    ),
    (Partition("gpu", "UP"), Partition("cpu", "DOWN")),
    (Reserved("maint", NOW + 600, NOW + 900, 99, ""),),
)


def test_a_look_counts_nodes_and_says_nobodys_name() -> None:
    seen = observed("gpu", [RUNS, WAITS, OURS], MACHINE, {"9"}, NOW)
    assert (seen.total_nodes, seen.free_nodes, seen.down_nodes) == (6, 3, 1)
    assert (seen.up, seen.complete) == (True, True)
    assert [(one.nodes, one.at_epoch_s, one.job_id) for one in seen.running] == [
        (2, NOW + 3000, None)
    ]
    assert [(one.ours, one.job_id) for one in seen.pending] == [(False, None), (True, "9")]
    packed = pack(seen.model_dump())
    for secret in (b"ann", b"secret", b"atoll-1"):
        assert secret not in packed


def test_those_who_wait_stand_in_the_order_of_their_priority_then_of_their_coming() -> None:
    low = replace(WAITS, job_id="1", nodes=4, priority=1)
    late = replace(WAITS, job_id="2", nodes=3, submitted_s=NOW)
    seen = observed("gpu", [low, late, WAITS], MACHINE, (), NOW)
    assert [one.nodes for one in seen.pending] == [2, 3, 4]


def test_other_partitions_count_by_the_nodes_that_they_keep_busy() -> None:
    elsewhere = replace(RUNS, partition="cpu", nodes=50)
    seen = observed("gpu", [elsewhere], MACHINE, (), NOW)
    assert [(one.nodes, one.at_epoch_s) for one in seen.running] == [(2, None)]
    assert observed("gpu", [replace(WAITS, partition="cpu,gpu")], MACHINE, (), NOW).pending


def test_reservations_are_those_of_the_partition_and_no_larger() -> None:
    (kept,) = observed("gpu", [], MACHINE, (), NOW).reservations
    assert (kept.name, kept.nodes, kept.start_epoch_s) == ("maint", 6, NOW + 600)
    other = replace(MACHINE.reservations[0], partition="cpu")
    machine = replace(MACHINE, reservations=(other,))
    assert observed("gpu", [], machine, (), NOW).reservations == ()


def test_a_partition_is_up_only_if_sinfo_and_scontrol_say_so() -> None:
    assert not observed("cpu", [], MACHINE, (), NOW).up
    assert not observed("nosuch", [], MACHINE, (), NOW).up


def test_where_others_are_hidden_a_look_is_not_complete() -> None:
    machine = replace(MACHINE, hides_jobs=True)
    assert not observed("gpu", [OURS], machine, {"9"}, NOW).complete


def test_a_look_comes_back_from_the_log_as_what_is_simulated() -> None:
    held = replace(WAITS, job_id="3", reason="JobHeldUser", submitted_s=None)
    endless = replace(RUNS, job_id="4", end_s=None, limit_s=None)
    event = observed("gpu", [RUNS, endless, held, OURS], MACHINE, {"9"}, NOW)
    back = snapshot(event.model_dump(exclude_none=True))
    assert (back.now_s, back.total_nodes, back.free_nodes) == (float(NOW), 6, 3)
    first, last = back.running
    assert first.end_by_s == NOW + 3000 and last.end_by_s > NOW + 86_400 * 7
    assert {(one.job_id, one.held, one.eligible_s) for one in back.pending} == {
        (None, True, None),
        ("9", False, float(NOW - 600)),
    }
    assert [one.nodes for one in back.reservations] == [6]


def test_what_a_probe_was_told_is_never_0_where_it_is_unknown() -> None:
    shape = JobShape(nodes=1, walltime_s=60)
    known = probed(shape, Estimate(NOW + 5, "n1"), NOW)
    assert (known.outcome, known.start_epoch_s, known.asked_epoch_s) == ("estimated", NOW + 5, NOW)
    for said, outcome, trouble in (
        (Estimate(None), "unknown", None),
        (Trouble(Kind.TRANSIENT, "busy", True), "unknown", "transient"),
        (Trouble(Kind.OURS, "no such account"), "unknown", "ours"),
        (Trouble(Kind.PERMANENT, "too many nodes"), "refused", "permanent"),
    ):
        event = probed(shape, said, NOW)
        assert (event.outcome, event.start_epoch_s, event.trouble) == (outcome, None, trouble)
