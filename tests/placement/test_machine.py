"""A machine through time: scheduling by hand, conservation of nodes, our jobs among others'."""

from __future__ import annotations

from random import Random

import pytest

from ops.placement.backfill import CONSERVATIVE
from ops.placement.machine import Machine, TraceJob
from ops.placement.shapes import Shape


def drain(machine: Machine, until_s: float) -> dict[object, float]:
    """When each job of ours started, up to a time."""
    found = {}
    while machine.next_s < until_s:
        for key in machine.step():
            found[key] = machine.now_s
    return found


def test_a_job_waits_for_real_ends_not_for_limits() -> None:
    machine = Machine(4, [TraceJob(1.0, 4, 1000.0, 100.0, 0.0)], 0.0)
    machine.step()
    assert machine.submit(2.0, "ours", Shape(4, 50)) == []
    assert machine.snapshot(2.0).running[0].end_by_s == 1001.0  # what users see
    assert drain(machine, 1e6) == {"ours": 101.0}


def test_a_small_job_backfills_and_does_not_delay_the_first_in_the_queue() -> None:
    jobs = [TraceJob(0.0, 3, 100.0, 100.0, 0.0), TraceJob(1.0, 4, 50.0, 50.0, 99.0)]
    machine = Machine(4, jobs, 0.5)
    machine.step()
    assert machine.submit(2.0, "fits", Shape(1, 90)) == ["fits"]
    machine.withdraw(10.0, "fits")
    assert machine.submit(11.0, "too long", Shape(1, 95)) == []
    assert drain(machine, 1e6) == {"too long": 150.0}  # behind the one of four nodes, from 100


def test_the_state_at_the_beginning_is_that_of_the_trace() -> None:
    jobs = [TraceJob(0.0, 2, 500.0, 300.0, 10.0), TraceJob(5.0, 4, 100.0, 60.0, 305.0)]
    machine = Machine(4, jobs, 100.0)
    assert (machine.free, len(machine.snapshot(100.0).pending)) == (2, 1)
    assert machine.next_s == 310.0


def test_a_copy_lives_its_own_life() -> None:
    machine = Machine(4, [TraceJob(1.0, 4, 100.0, 100.0, 0.0)], 0.0)
    machine.step()
    other = machine.copy()
    other.submit(2.0, "there", Shape(1, 10))
    drain(other, 1e6)
    assert machine.snapshot(2.0).pending == () and machine.free == 0
    assert machine.next_s == 101.0


def test_a_pending_job_that_is_reshaped_keeps_its_place() -> None:
    machine = Machine(4, [TraceJob(1.0, 3, 100.0, 100.0, 0.0)], 0.0)
    machine.step()
    machine.submit(2.0, "ours", Shape(4, 100))
    machine.submit(3.0, "behind", Shape(4, 100))
    assert machine.reshape(4.0, "ours", Shape(1, 50)) == ["ours"]


@pytest.mark.parametrize("depth", [1, 3, CONSERVATIVE])
def test_nodes_are_never_given_twice_and_everybody_starts(depth: int) -> None:
    random = Random(depth)
    jobs = [
        TraceJob(
            20.0 * k, random.randint(1, 16), limit := random.uniform(10, 900), limit * 0.6, 0.0
        )
        for k in range(400)
    ]
    machine = Machine(16, jobs, -1.0, depth)
    while machine.next_s < 1e9:
        machine.step()
        seen = machine.snapshot(machine.now_s)
        assert sum(job.nodes for job in seen.running) + seen.free_nodes == 16
        assert seen.free_nodes >= 0
    assert machine.snapshot(1e9).pending == () and machine.free == 16


def test_more_jobs_of_ours_make_others_wait_longer() -> None:
    jobs = [TraceJob(50.0 * k, 2, 100.0, 100.0, 0.0) for k in range(100)]
    alone, shared = Machine(4, jobs, -1.0), Machine(4, jobs, -1.0)
    assert shared.submit(0.0, "ours", Shape(2, 10_000)) == ["ours"]
    drain(alone, 3000.0)
    drain(shared, 3000.0)
    assert len(shared.snapshot(3000.0).pending) > len(alone.snapshot(3000.0).pending)
