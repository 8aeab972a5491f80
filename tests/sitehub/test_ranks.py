"""Two ranks of a site train as one does, and end as one does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from outer.codecs import decode
from sitehub.corpus import Corpus
from sitehub.evaluate import evaluate
from sitehub.model import build_model
from sitehub.ranks import RanksInvalid, layout_of
from sitehub.spawn import Ranks, _descendants
from sitehub.training import InnerLoop
from tests.sitehub.conftest import StartHub
from tests.sitehub.support import TABLE, Hub, run_config, save_initial

TOLERANCE = 5e-5  # sums of fp32 in another order, over a few steps of rate 1e-2
INNER = {"steps": 8, "batch_sequences": 5, "accumulate": 1, "lr": 1e-2}  # an odd number of rows


def settings() -> dict[str, object]:
    return {"inner": INNER, "data": {"path": "data", "block_sequences": 15}}


def begun(start_hub: StartHub, corpus: Corpus, num: int, sharding: str, **more: object) -> Hub:
    hub = start_hub(run_config(**settings()), ranks=Ranks(num, sharding), **more)
    ready = hub.read()
    assert ready["say"] == "ready", ready
    assert ready["hardware"]["ranks"] == ("1" if num == 1 else f"{num} ({sharding})")
    path = save_initial(corpus, hub.config, hub.directory / "initial")
    assert "error" not in hub.ask(do="load", version=0, path=str(path), kind="initial")
    return hub


def delta(hub: Hub, name: str) -> dict[str, torch.Tensor]:
    answer = hub.ask(do="publish", path=name, codec="fp32", tag=name, label=name)
    assert "error" not in answer
    return decode(hub.directory / "work" / name)


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=TOLERANCE)


def story(hub: Hub) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """What a round and more does to a trainer: blocks, a delta, a version in the middle of training
    on, a refusal, a reclaim; the losses and deltas of it."""
    losses, deltas = [hub.train(block)["loss"] for block in (0, 1)], [delta(hub, "first")]
    losses.append(hub.train(2)["loss"])
    assert "error" not in hub.ask(do="apply", progress=0.5, version=1, path="first")
    losses += [hub.train(3)["loss"], hub.ask(do="evaluate", max_tokens=200)["loss"]]
    deltas.append(delta(hub, "second"))
    losses.append(hub.train(4)["loss"])
    assert hub.ask(do="rebase", reset=False) == {"did": "rebase"}
    losses.append(hub.train(5)["loss"])
    assert hub.ask(do="discard") == {"did": "discard"}
    assert "error" in hub.train(10_000)  # refused at every rank, which goes on
    losses.append(hub.train(6)["loss"])
    deltas.append(delta(hub, "third"))
    return losses, deltas


def save(hub: Hub, folder: Path) -> None:
    answer = hub.ask(do="save", folder=str(folder), state={"format": "atoll site checkpoint 1"})
    assert "error" not in answer, answer


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_two_ranks_train_as_one_and_hand_their_state_to_one(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path, sharding: str
) -> None:
    one, two = (begun(start_hub, corpus, num, sharding) for num in (1, 2))
    (losses, deltas), (again, others) = story(one), story(two)
    assert again == pytest.approx(losses, rel=1e-4)
    for first, second in zip(deltas, others, strict=True):
        assert_near(first, second)

    save(two, tmp_path / "saved")
    path, after = str(tmp_path / "saved" / "00000001"), []
    for hub in (begun(start_hub, corpus, 1, sharding), two):
        initial = str(hub.directory / "initial")
        if hub is two:  # as it was when it saved
            assert hub.ask(do="rebase", reset=True) == {"did": "rebase"}
            assert "error" not in hub.ask(do="load", version=0, path=initial, kind="initial")
        assert "error" not in hub.ask(do="resume", path=path, own=True, saved=False)
        hub.train(7)
        after.append(delta(hub, "after"))
    assert_near(*after)

    assert_dies_with_a_rank(two)


def assert_dies_with_a_rank(hub: Hub) -> None:
    """One rank is killed: all are gone, which the hub sees."""
    everyone = _descendants(hub.trainer.pid)
    ranks = [pid for pid in everyone if b"sitehub.trainer" in _command(pid)]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert hub.trainer.wait(60) and hub.trainer.returncode() != 0
    until = time.monotonic() + 30
    while any(map(_lives, ranks)):
        assert time.monotonic() < until, "a rank outlives the others"
        time.sleep(0.1)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _lives(pid: int) -> bool:
    return b"sitehub.trainer" in _command(pid)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def losses_around_an_evaluation(loop: InnerLoop, corpus: Corpus) -> list[float]:
    """An evaluation, a block, an evaluation, other parameters, a block."""
    layout, losses = loop.layout, list[float]()
    for block in (0, 1):
        losses.append(evaluate(loop.model, corpus, 200).loss)
        for value in layout.local.values():
            value.mul_(0.5)
        layout.spread()
        losses.append(loop.train_block(block, (0.1, 0.2), lambda _: None).loss)
        layout.gather()
    return losses


@pytest.mark.usefixtures("alone")
def test_what_is_spread_after_an_evaluation_is_what_trains(corpus: Corpus) -> None:
    """No rank holds on to the parameters that it gathered for a forward pass without a backward."""
    inner, found = run_config(**settings()).inner, []
    for sharding in (None, "fsdp2"):
        model = build_model(TABLE, corpus.vocab_size, 0)
        layout = layout_of(model, sharding, inner) if sharding else None
        found.append(
            losses_around_an_evaluation(InnerLoop(model, corpus, inner, 15, layout), corpus)
        )
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.usefixtures("alone")
def test_ranks_that_cannot_share_a_run_are_refused() -> None:
    model = build_model(TABLE, 300, 0)
    muon = run_config(**settings() | {"inner": {**INNER, "optimizer": "muon"}}).inner
    with pytest.raises(RanksInvalid, match="--sharding ddp"):
        layout_of(model, "fsdp2", muon)
