"""Histories for tests of the live view, with times: one event each half second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from eventlog.chain import Record
from eventlog.events import RunFinished
from eventlog.export import write_export
from tests.support.scenario import RUN, Scenario, finish, name

START_NS = 1_764_432_000_000_000_000  # 2025-11-29T16:00:00 UTC
STEP_S = 0.5


def records(scenario: Scenario, step_s: float = STEP_S) -> list[Record]:
    """The scenario's log, its events `step_s` apart."""
    found = finish(scenario.log.read(0, limit=100_000))
    step_ns = int(step_s * 1e9)
    return [replace(one, time_ns=START_NS + n * step_ns) for n, one in enumerate(found)]


def at_work() -> Scenario:
    """10 blocks of 32 tokens; round 1 merged two; in round 2 alpha has delivered and beta trains
    its second block; gamma was lost with one block."""
    run = Scenario(num_sequences=40, target={"epochs": 1})
    run.arrive("alpha", "beta", "gamma")
    assert run.open(alpha=1, beta=1, gamma=1) == ""
    run.work("alpha", 0)
    run.work("beta", 1)
    assert run.grant("gamma", 2) == ""
    run.commit()
    assert run.depart("gamma") == ""
    assert run.apply("alpha", 1) == "" and run.apply("beta", 1) == ""
    assert run.open(alpha=2, beta=3) == ""
    run.work("alpha", 3, 4)
    assert run.grant("beta", 5, 6, 7) == ""
    run.train("beta", 5)
    assert run.says("beta", run.starting(6)) == ""
    return run


def over() -> Scenario:
    """A run of one round that has finished."""
    run = Scenario(target={"rounds": 1}, num_sequences=40)
    run.arrive("alpha")
    assert run.open(alpha=1) == ""
    run.work("alpha", 0)
    run.commit()
    digests = {
        f"{what}_digest": name(f"{what} 1") for what in ("parameters", "momentum", "residual")
    }
    end = {"outcome": "target", "version": 1, "tokens": 32, "num_returned": 0}
    assert run.decide(RunFinished.model_validate({**end, **digests, "reason": "target met"})) == ""
    return run


async def append(url: str, history: Sequence[Record], create: bool = False) -> None:
    """Put the records' payloads on their subjects of the run `tests`, in their order."""
    async with await connect(url, name="tests") as connection:
        if create:
            await (await JetStreamLog.create(connection, "tests")).close()
            await (await JetStreamBlobs.create(connection, "tests")).close()
        log = await JetStreamLog.open(connection, "tests")
        for record in history:
            last = await log.last(record.subject)
            await log.append(record.subject, [record.payload], last.sequence if last else 0)
        await log.close()


def exported(folder: Path, scenario: Scenario, step_s: float = STEP_S) -> Path:
    """The scenario's log as a file."""

    async def batches():
        yield records(scenario, step_s)

    target = folder / "run.atoll"
    asyncio.run(write_export(RUN, batches(), target))
    return target
