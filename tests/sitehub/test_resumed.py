"""A trainer that takes up a checkpoint goes on as one that was never disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outer.codecs import decode
from outer.versions import OuterState, load_parameters, save_snapshot
from sitehub.corpus import Corpus
from sitehub.saved import FORMAT
from tests.sitehub.conftest import StartHub
from tests.sitehub.support import BLOCK_SEQUENCES, Hub, run_config, save_initial

INNER = {"steps": 8, "batch_sequences": 8, "lr": 1e-2}
STATE = {"format": FORMAT}


def begun(start_hub: StartHub, corpus: Corpus, **inner: object) -> Hub:
    hub = start_hub(run_config(inner={**INNER, **inner}))
    assert hub.read()["say"] == "ready"
    return hub


def first_version(hub: Hub, corpus: Corpus, folder: Path) -> Path:
    """A trainer's first round, of which it is the only one; the snapshot that others start from."""
    path = save_initial(corpus, hub.config, folder / "initial")
    hub.ask(do="load", version=0, path=str(path), kind="initial")
    for block in range(3):
        hub.train(block)
    hub.ask(do="publish", path="delta", codec="fp32", tag="t", label="1:0:0:9")
    assert "error" not in hub.ask(do="apply", progress=0.5, version=1, path="delta")
    initial, delta = load_parameters(path), decode(hub.directory / "work" / "delta")
    theta = {name: initial[name] - delta[name] for name in initial}
    zeros = {name: torch.zeros_like(value) for name, value in theta.items()}
    save_snapshot(OuterState(1, theta, zeros, zeros), folder / "snapshot")
    return folder / "snapshot"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_loss_goes_on_where_it_was(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path, optimizer: str
) -> None:
    twin = begun(start_hub, corpus, optimizer=optimizer)
    snapshot = first_version(twin, corpus, tmp_path)
    saved = twin.ask(do="save", folder=str(tmp_path / "kept"), state=STATE)
    assert (saved["steps"], Path(saved["path"]).name) == (6, "00000001")
    undisturbed = [twin.train(block)["loss"] for block in (3, 4, 5)]

    found = {}
    for path in (saved["path"], None):
        hub = begun(start_hub, corpus, optimizer=optimizer)
        hub.ask(do="load", version=1, path=str(snapshot), kind="snapshot")
        assert "error" not in hub.ask(do="resume", path=path, own=True, saved=True)
        found[path] = [hub.train(block)["loss"] for block in (3, 4, 5)]
    assert found[saved["path"]] == undisturbed
    assert found[None] != undisturbed  # cold moments show at once


def test_residual_is_taken_up_with_what_is_not_decided(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path
) -> None:
    hub = begun(start_hub, corpus)
    first_version(hub, corpus, tmp_path)
    hub.train(3)
    hub.ask(do="publish", path="lossy", codec="4-bit", tag="t", label="1:0:3:9")
    path = hub.ask(do="save", folder=str(tmp_path / "kept"), state=STATE)["path"]
    other = begun(start_hub, corpus)
    other.ask(do="load", version=1, path=str(tmp_path / "snapshot"), kind="snapshot")
    for counts, pending in ((False, []), (True, ["1:0:3:9"])):
        answer = other.ask(do="resume", path=path, own=True, saved=counts)
        assert (answer["pending"], answer["notice"]) == (pending, "")


def test_state_of_another_optimizer_is_refused_and_training_begins_without(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path
) -> None:
    hub = begun(start_hub, corpus, optimizer="muon")
    first_version(hub, corpus, tmp_path)
    path = hub.ask(do="save", folder=str(tmp_path / "kept"), state=STATE)["path"]
    other = begun(start_hub, corpus)
    other.ask(do="load", version=1, path=str(tmp_path / "snapshot"), kind="snapshot")
    answer = other.ask(do="resume", path=path, own=True, saved=False)
    assert "momentum_buffer is no state of this model's inner optimizer" in answer["notice"]
    assert other.train(3)["steps"] == BLOCK_SEQUENCES // 8


def test_a_checkpoint_that_can_not_be_written_is_told_and_nothing_else(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path
) -> None:
    hub = begun(start_hub, corpus)
    first_version(hub, corpus, tmp_path)
    (tmp_path / "file").write_text("no folder")
    answer = hub.ask(do="save", folder=str(tmp_path / "file"), state=STATE)
    assert "cannot be written" in answer["error"]
    assert "error" not in hub.train(3)


def test_joiner_takes_its_first_step_at_the_rate_of_the_run(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path
) -> None:
    schedule = {"schedule": "wsd", "warmup": 0.1, "decay": 0.4, "final_lr": 0.0}
    hub = begun(start_hub, corpus, batch_sequences=BLOCK_SEQUENCES, weight_decay=0, **schedule)
    path = save_initial(corpus, hub.config, tmp_path / "initial")
    hub.ask(do="load", version=0, path=str(path), kind="initial")
    # one step, from 0.70 to 0.72 of the run: 0.28 of it are left, of the 0.4 that it decays over
    answer = hub.train(0, progress_from=0.70, progress_to=0.72)
    rate = 1e-2 * 0.28 / 0.4
    assert (answer["steps"], answer["lr"]) == (1, pytest.approx(rate))
    hub.ask(do="publish", path="first", codec="fp32", tag="t", label="1:0:0:9")
    delta = decode(hub.directory / "work" / "first")
    moved = torch.cat([value.flatten().abs() for value in delta.values()])
    # AdamW's first step moves each parameter by the rate, or by less where its gradient is tiny
    assert float(moved[moved > rate / 2].median()) == pytest.approx(rate, rel=1e-2)
    assert float(moved.max()) < 1.01 * rate
