"""P8 with real processes: one of three sites delivers NaN, an infinity, a thousand times too much.

Its trainer is broken by the parent it is forked from (`tests.support.broken_trainers`); everything
else is what everybody runs.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.events import DeltaPublished, DeltaRefused, SiteDeparted
from tests.support.broken_trainers import POISON
from tests.support.fleet import Fleet
from tests.support.watched import History

ROOT = Path(__file__).parent.parent.parent
HARMS = {"nan": "nonfinite", "inf": "nonfinite", "1000": "outlier"}


@pytest.fixture
def broken_parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a parent whose trainers can be poisoned."""
    folder = tmp_path_factory.mktemp("bad")
    socket, log = folder / "p", folder / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.support.broken_trainers", str(socket)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    until = time.monotonic() + 120
    while not socket.exists():
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    yield str(socket)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


def blocks_of(log: History, delta: int) -> set[tuple[int, int]]:
    event = log.entries[delta - 1].event
    assert isinstance(event, DeltaPublished)
    return {(one.epoch, one.block) for one in event.blocks}


def merged_blocks(log: History) -> set[tuple[int, int]]:
    return {
        block for _, member in log.merged() for block in blocks_of(log, member.delta[0])
    }  # fmt: skip


async def test_p8_one_of_three_sites_delivers_what_would_ruin_the_model(
    fleet: Fleet, broken_parent: str
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    healthy, fleet.preload = fleet.preload, broken_parent
    fleet.site("gamma")
    fleet.preload = healthy
    log = fleet.history
    await fleet.until(lambda log: "gamma" in {c.site for _, c in log.merged()}, "gamma's first", 60)
    for harm, code in HARMS.items():
        at = log.last
        (work,) = fleet.site_home("gamma").glob("**/work")
        (work / POISON).write_text(harm)
        await fleet.until(lambda log, a=at: log.of(DeltaRefused, after=a), f"a refusal: {harm}", 60)
        (sequence, refused), *_ = log.of(DeltaRefused, after=at)
        assert (refused.site, refused.code, refused.values) == ("gamma", code, True), refused
        await fleet.until(
            lambda log, s=sequence: {"alpha", "beta"} & {c.site for _, c in log.merged(s)},
            "a commit with the others",
            60,
        )
        back = blocks_of(log, refused.delta[0])
        await fleet.until(lambda log, b=back: b <= merged_blocks(log), "its blocks' merge", 60)
        await fleet.until(
            lambda log, s=sequence: "gamma" in {c.site for _, c in log.merged(s)}, "gamma again", 60
        )
        assert refused.delta not in [one.delta for _, one in log.merged(0)]
    assert log.of(SiteDeparted) == [], "a delta now and then makes nobody unfit"
    evaluated = await fleet.atoll("eval", fleet.run, "--data", str(fleet.data), "--json")
    assert math.isfinite(evaluated.json()["loss"])
    await fleet.finish()
    found = await fleet.audit("--deep")
    assert found["deep"]["ok"], found["deep"]
    assert [one["type"] for one in found["void"] if one["type"].startswith("delta")] == []
