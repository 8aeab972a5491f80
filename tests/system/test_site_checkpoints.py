"""A site that dies, shrinks, moves and leaves goes on as the same site, and the audit holds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from eventlog.events import BlockCompleted, BlockStarted, SiteAdmitted
from sitehub import saved
from tests.support.fleet import Fleet
from tests.support.watched import History

SITE = "site.alpha"


@pytest.mark.settings("inner.steps=16", "outer.delta_codec=int8")
async def test_two_ranks_killed_in_mid_block_go_on_as_one_and_then_elsewhere(
    fleet: Fleet, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    options = ("--checkpoints", str(kept), "--checkpoint-every", "1s")
    folder = kept / fleet.run / "alpha"
    fleet.coordinate()
    fleet.site("alpha", "--ranks", "2", *options)
    await fleet.until(lambda log: log.view.run().version >= 2, "version 2 by two ranks", 240)
    await fleet.until(lambda _: saved.newest(folder), "a checkpoint of two ranks", 60)
    _, state = _saved(folder)
    assert state["ranks"] == 2
    hardware = fleet.history.view.ask("SELECT hardware FROM incarnations")[0][0]
    assert b"2 (ddp)" in hardware

    await fleet.until(lambda log: _in_block(log), "a block in work", 60)
    fleet.kill_site("alpha")
    after = fleet.history.last
    fleet.site("alpha", *options)
    await fleet.until(lambda log: len(log.of(BlockCompleted, SITE, after)) > 2, "one rank", 120)
    assert "takes up" in fleet.log_of("alpha").read_text()
    await fleet.audit()

    fleet.signal("alpha", signal.SIGUSR1)
    assert await fleet.ended("alpha", 60) == 75
    path, state = _saved(folder)
    assert state["ranks"] == 1
    after = fleet.history.last
    other = fleet.elsewhere(tmp_path / "elsewhere")
    other.site("alpha", *options)
    await fleet.until(lambda log: len(log.of(BlockCompleted, SITE, after)) > 2, "a new node", 120)
    assert f"takes up {path}" in other.log_of("alpha").read_text()
    assert len(fleet.history.of(SiteAdmitted)) == 3
    assert (await fleet.atoll("run", "stop", fleet.run)).code == 0
    await fleet.until(lambda log: log.view.run().state == "finished", "the end of the run", 60)
    assert await other.ended("alpha") == 0
    await fleet.audit("--deep")
    other.close()


def _saved(folder: Path) -> tuple[Path, dict[str, object]]:
    found = saved.newest(folder)
    assert found is not None
    return found


def _in_block(log: History) -> bool:
    """More blocks are begun than completed, as between two steps of one."""
    return len(log.of(BlockStarted, SITE)) > len(log.of(BlockCompleted, SITE))
