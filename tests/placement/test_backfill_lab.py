"""Our backfill of one look at a queue beside `squeue --start`, against what a real Slurm then did.

Random queues: jobs that run and wait, half of which end before their limit, and a job of ours last.
Both are asked at the same instant. The record goes to the file that ATOLL_RECORD names; a case
holds the queue as it was seen, so that whoever doubts our figure works it out again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.placement import backfill
from ops.placement.shapes import Shape
from ops.placement.slurm.client import Slurm
from ops.placement.slurm.commands import Shell
from ops.placement.slurm.queues import Phase, Queued
from ops.placement.snapshot import observed, snapshot
from tests.support.slurm import Cluster, Lab, lab

NUM_CLUSTERS, NUM_NODES = 10, 4
SEEDS = range(1001, 1049)  # all of them are waited for: who stops early has the short waits
MINUTE_S = 60.0
RECORD = Path(__file__).parents[2] / "docs" / "results" / "backfill-lab.jsonl"
_LOOKS = 60  # for the first plan of Slurm's own backfill


@dataclass
class Case:
    """What was expected of our job, in seconds from the look on, and what came."""

    seed: int
    ours_s: float
    squeue_s: float
    true_s: float
    num_running: int
    num_pending: int
    ends_early: bool  # whether any job before it was to
    job_id: str
    shape: tuple[int, int]
    queue: dict[str, Any]  # a QueueObserved


def lasting(rng: random.Random, minutes: int) -> tuple[str, bool]:
    """What a background job does: half of them run into their limit."""
    if rng.random() < 0.5:
        return "sleep 3600", False
    return f"sleep {minutes * MINUTE_S * rng.uniform(0.2, 0.9):.0f}", True


def fill(cluster: Cluster, rng: random.Random) -> tuple[Shape, str, bool]:
    """A random queue with a job of ours last: (its shape, its id, whether others end early)."""
    early, left = False, NUM_NODES
    while left:
        nodes, minutes = rng.randint(1, left), rng.randint(1, 3)
        command, ends = lasting(rng, minutes)
        cluster.submit("runs", nodes, minutes, command)
        early, left = early or ends, left - nodes
    for _ in range(rng.randint(1, 2)):
        minutes = rng.randint(1, 2)
        command, ends = lasting(rng, minutes)
        cluster.submit("waits", rng.randint(1, NUM_NODES), minutes, command)
        early = early or ends
    shape = Shape(rng.randint(1, NUM_NODES), 60 * rng.randint(1, 2))
    job_id = cluster.submit("ours", shape.nodes, shape.walltime_s // 60, "sleep 20")
    return shape, job_id, early


async def one_case(cluster: Cluster, seed: int) -> Case | None:
    """A queue, asked and awaited; None where our job started before anybody had a plan."""
    rng = random.Random(seed)
    await asyncio.to_thread(cluster.clean)
    shape, job_id, early = await asyncio.to_thread(fill, cluster, rng)
    slurm = Slurm(Shell(environment={**os.environ, "SLURM_CONF": cluster.conf}))
    for _ in range(_LOOKS):
        now = time.time()
        jobs, machine = await slurm.queue(), await slurm.machine()
        assert isinstance(jobs, list) and hasattr(machine, "nodes"), (jobs, machine)
        mine = next((one for one in jobs if one.job_id == job_id), None)
        if mine is None or mine.phase is not Phase.PENDING:
            return None
        if mine.start_s is not None:
            break
        await asyncio.sleep(1)
    else:
        return None
    seen = observed("gpu", jobs, machine, {job_id}, int(now))
    queue = seen.model_dump(mode="json", exclude_defaults=True)
    started = await start_of(slurm, job_id)
    return Case(
        seed,
        expected_s(queue, job_id, shape),
        max(0.0, mine.start_s - now),
        started - now,
        sum(one.phase is Phase.RUNNING for one in jobs),
        sum(one.phase is Phase.PENDING for one in jobs),
        early,
        job_id,
        (shape.nodes, shape.walltime_s),
        queue,
    )


def expected_s(queue: dict[str, Any], job_id: str, shape: Shape) -> float:
    """Our forecast, in seconds from the look on."""
    return backfill.survey(snapshot(queue), (), {job_id: [shape]}).own[job_id, shape]


async def start_of(slurm: Slurm, job_id: str) -> float:
    """When the job started, as Slurm tells it."""
    until = time.monotonic() + 1500
    while time.monotonic() < until:
        jobs = await slurm.queue()
        assert isinstance(jobs, list), jobs
        mine: Queued | None = next((one for one in jobs if one.job_id == job_id), None)
        if mine is not None and mine.phase in (Phase.RUNNING, Phase.ENDING):
            assert mine.start_s is not None
            return float(mine.start_s)
        if mine is None:
            told = await slurm.told([job_id], 0)
            assert isinstance(told, dict) and told[job_id][0].start_s
            return float(told[job_id][0].start_s or 0)
        await asyncio.sleep(1)
    raise AssertionError(f"job {job_id} never started")


async def serve(cluster: Cluster, seeds: list[int]) -> list[Case]:
    found = []
    while seeds:
        case = await one_case(cluster, seeds.pop(0))
        if case is not None:
            found.append(case)
            record([case])
    return found


@pytest.mark.soak
async def test_our_backfill_is_no_worse_than_squeue_start(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sizes = [(f"c{chr(97 + number)}", NUM_NODES) for number in range(NUM_CLUSTERS)]
    with lab(tmp_path_factory.mktemp("many"), sizes) as made:
        cases = await gather(made)
    check_enough(cases)
    worse = [farther_s(case) for case in cases]
    error = statistics.stdev(worse) / len(worse) ** 0.5
    assert statistics.mean(worse) <= 2 * error, "farther from the truth, case by case"
    assert statistics.median(worse) <= 5.0


def test_the_record_is_what_we_make_of_those_queues_and_no_worse_than_squeue_start() -> None:
    cases = [Case(**json.loads(line)) for line in RECORD.read_text().splitlines()]
    check_enough(cases)
    for case in cases:
        assert expected_s(case.queue, case.job_id, Shape(*case.shape)) == case.ours_s, case.seed
    ours = [abs(case.ours_s - case.true_s) for case in cases]
    squeue = [abs(case.squeue_s - case.true_s) for case in cases]
    assert statistics.mean(ours) <= statistics.mean(squeue)
    assert statistics.median(ours) <= statistics.median(squeue)
    assert statistics.median(map(farther_s, cases)) <= 0.0


def check_enough(cases: list[Case]) -> None:
    assert len({case.seed for case in cases}) == len(cases) >= 30
    assert sum(case.ends_early for case in cases) >= 10


def farther_s(case: Case) -> float:
    """By how much our forecast was farther from the truth than squeue's."""
    return abs(case.ours_s - case.true_s) - abs(case.squeue_s - case.true_s)


async def gather(made: Lab) -> list[Case]:
    seeds = list(SEEDS)
    served = await asyncio.gather(*[serve(one, seeds) for one in made.clusters.values()])
    return [case for cases in served for case in cases]


def record(cases: list[Case]) -> None:
    """One line a case, for whoever wants to see them."""
    path = os.environ.get("ATOLL_RECORD")
    if path:
        with Path(path).open("a") as file:
            file.writelines(json.dumps(asdict(case)) + "\n" for case in cases)
