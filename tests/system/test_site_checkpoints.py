"""A site that dies, shrinks, moves and leaves goes on as the same site, and the audit holds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from eventlog.events import BlockCompleted, BlockStarted, SiteAdmitted
from sitehub import saved
from sitehub.corpus import Corpus
from sitehub.founding import start
from sitehub.training import InnerLoop
from tests.support.fleet import Fleet
from tests.support.watched import History

SITE = "site.alpha"
NEAR = 1e-4  # what the rounding of deltas and versions does to a loss, and ten times that


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


@pytest.mark.settings(
    "inner.steps=16",
    "inner.schedule=constant",
    "inner.warmup=0",
    "outer.optimizer=average",
    "outer.delta_codec=fp32",
    "outer.update_codec=fp32",
)
async def test_loss_of_a_site_that_comes_back_is_that_of_a_twin_that_never_left(
    fleet: Fleet, tmp_path: Path
) -> None:
    """With the mean of one site's deltas as the outer step, and one rate all along, leaving and
    coming back is the only difference between a site and one training of the same blocks."""
    options = ("--checkpoints", str(tmp_path / "kept"))
    fleet.coordinate()
    fleet.site("alpha", *options)
    await fleet.until(lambda log: len(log.of(BlockCompleted)) >= 9, "some blocks", 120)
    fleet.signal("alpha", signal.SIGUSR1)
    assert await fleet.ended("alpha", 60) == 75
    seam = len(fleet.history.of(BlockCompleted))
    other = fleet.elsewhere(tmp_path / "elsewhere")
    other.site("alpha", *options)
    await fleet.until(lambda log: len(log.of(BlockCompleted)) >= seam + 5, "five more", 120)
    done = [block for _, block in fleet.history.of(BlockCompleted)]
    assert fleet.history.view.run().version >= 1
    other.close()

    losses, blocks = [one.loss for one in done], [one.block for one in done]
    assert losses == pytest.approx(_twin(fleet, blocks), rel=NEAR)
    cold = _twin(fleet, blocks, forgets_at=seam)
    assert losses[seam:] != pytest.approx(cold[seam:], rel=4 * NEAR)


def _twin(fleet: Fleet, blocks: list[int], forgets_at: int | None = None) -> list[float]:
    """Losses of blocks that one process trains from the run's initial parameters on; its optimizer
    may forget all at one of them."""
    config, corpus = fleet.history.view.config(), Corpus.open(fleet.data)
    _, model = start(config, corpus)
    loop, losses = InnerLoop(model, corpus, config.inner, config.data.block_sequences), []
    for number, block in enumerate(blocks):
        if number == forgets_at:
            loop.reset()
        losses.append(loop.train_block(block, (0.5, 0.5), lambda _: None).loss)
    return losses


def _saved(folder: Path) -> tuple[Path, dict[str, object]]:
    found = saved.newest(folder)
    assert found is not None
    return found


def _in_block(log: History) -> bool:
    """More blocks are begun than completed, as between two steps of one."""
    return len(log.of(BlockStarted, SITE)) > len(log.of(BlockCompleted, SITE))
