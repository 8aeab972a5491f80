"""A real trainer process, told what to do through its socket."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from outer.codecs import decode, encode
from outer.versions import OuterState, digest, load_parameters, save_parameters, save_snapshot
from sitehub.batches import sequences_of_block
from sitehub.corpus import Corpus
from sitehub.wire import write_message
from tests.sitehub.conftest import StartHub
from tests.sitehub.support import Hub, run_config, save_initial


@pytest.fixture
def hub(start_hub: StartHub) -> Hub:
    started = start_hub()
    assert started.read()["say"] == "ready"
    return started


def load(hub: Hub, corpus: Corpus) -> dict[str, torch.Tensor]:
    """Version 0 in the trainer; its parameters."""
    path = save_initial(corpus, hub.config, hub.directory / "initial")
    answer = hub.ask(do="load", version=0, path=str(path), kind="initial")
    parameters = load_parameters(path)
    assert answer["digest"] == digest(parameters)
    return parameters


def delta(hub: Hub, name: str) -> dict[str, torch.Tensor]:
    """What the trainer publishes now, lossless."""
    answer = hub.ask(do="publish", path=name, codec="fp32", tag=name, label=name)
    assert "error" not in answer
    return decode(hub.directory / "work" / name)


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Equal up to the rounding of a few fp32 operations on numbers of order one."""
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6)


def assert_zero(tensors: dict[str, torch.Tensor]) -> None:
    assert all(not value.any() for value in tensors.values())


def test_ready_says_what_a_join_needs(start_hub: StartHub, corpus: Corpus) -> None:
    ready = start_hub().read()
    assert ready["manifest_digest"] == corpus.manifest_digest
    assert ready["threads"] == 1
    assert ready["hardware"]["device"] in ("cpu", "cuda", "rocm")
    assert ready["software"]["torch"] == torch.__version__
    assert set(ready["arithmetic"]) == {"decode", "step"}


def test_loss_falls_and_progress_is_reported(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    before = hub.ask(do="evaluate", max_tokens=100)
    first = hub.train(0, tag=[7, "x"], epoch=3)
    assert (first["epoch"], first["block"], first["tag"]) == (3, 0, [7, "x"])
    assert (first["steps"], first["tokens"]) == (2, 16 * 16)
    assert first["loss"] == pytest.approx(math.log(300), abs=0.5)  # untrained: uniform
    for block in range(1, 10):
        last = hub.train(block)
    assert last["loss"] < first["loss"] - 1.0
    assert (last["step"], last["tokens_total"]) == (20, 20 * 8 * 16)
    assert last["tokens_per_s"] > 0
    assert hub.progress and hub.progress[0]["step"] == 1 and hub.progress[0]["step_s"] > 0
    # θ is evaluated, not local: nothing was applied yet.
    after = hub.ask(do="evaluate", max_tokens=100)
    assert (after["version"], after["loss"]) == (0, before["loss"])
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert after["num_tokens"] == 96


def test_own_delta_with_unit_rate_makes_theta_what_was_published(hub: Hub, corpus: Corpus) -> None:
    initial = load(hub, corpus)
    hub.train(0)
    first = delta(hub, "first")
    assert any(value.any() for value in first.values())
    assert_zero(delta(hub, "again"))  # published is not given again
    answer = hub.ask(do="apply", progress=0.5, version=1, path="first")
    theta = {name: initial[name] - first[name] for name in initial}  # lr 1, no momentum
    assert answer["digest"] == digest(theta)
    # local was initial − delta = θ up to rounding, and P is θ: no progress is left to deliver.
    assert_close(delta(hub, "rest"), {name: 0 * value for name, value in theta.items()})


def test_progress_after_publishing_survives_a_new_version(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    hub.train(0)
    delta(hub, "first")
    hub.train(1)
    # Somebody else's version arrives instead of ours: twice our delta.
    doubled = {name: 2 * value for name, value in decode(hub.directory / "work" / "first").items()}
    encode(doubled, "fp32", hub.directory / "work" / "update")
    twin_publish = hub.ask(do="apply", progress=0.5, version=1, path="update")
    assert "error" not in twin_publish
    kept = delta(hub, "second")
    assert any(value.abs().max() > 1e-4 for value in kept.values())
    assert_zero(delta(hub, "third"))


def test_refusal_keeps_undelivered_progress_and_drops_what_was_refused(
    hub: Hub, corpus: Corpus
) -> None:
    load(hub, corpus)
    hub.train(0)
    delta(hub, "refused")
    hub.train(1)
    assert hub.ask(do="rebase", reset=False) == {"did": "rebase"}
    second = delta(hub, "second")
    assert any(value.any() for value in second.values())
    # Now P = θ + second's progress; applying second at rate 1 must land exactly there.
    hub.ask(do="apply", progress=0.5, version=1, path="second")
    assert_close(delta(hub, "rest"), {name: 0 * value for name, value in second.items()})


def test_reset_begins_at_theta_again(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    hub.train(0)
    once = delta(hub, "once")
    hub.train(1)
    assert hub.ask(do="rebase", reset=True) == {"did": "rebase"}
    assert_zero(delta(hub, "nothing"))
    hub.train(0)
    again = delta(hub, "again")
    for name in once:  # optimizer state and parameters are those of the beginning
        assert torch.equal(once[name], again[name])


def test_discard_gives_up_undelivered_blocks_only(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    hub.train(0)
    first = delta(hub, "first")
    hub.train(1)
    assert hub.ask(do="discard") == {"did": "discard"}
    assert_zero(delta(hub, "nothing"))
    hub.ask(do="apply", progress=0.5, version=1, path="first")
    assert_close(delta(hub, "rest"), {name: 0 * value for name, value in first.items()})


def test_publish_tells_size_and_norm(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    hub.train(0)
    answer = hub.ask(do="publish", path="d", codec="fp32", tag="t", label="d")
    values = torch.cat([value.flatten() for value in decode(hub.directory / "work" / "d").values()])
    assert answer["norm"] == pytest.approx(float(values.double().norm()))
    assert answer["max_abs"] == float(values.abs().max())
    assert answer["num_bytes"] == (hub.directory / "work" / "d").stat().st_size
    assert (answer["path"], answer["tag"], answer["codec"]) == ("d", "t", "fp32")


def test_nonfinite_parameters_give_nonfinite_loss_and_no_delta(hub: Hub, corpus: Corpus) -> None:
    path = save_initial(corpus, hub.config, hub.directory / "initial")
    parameters = load_parameters(path)
    parameters["model.norm.weight"][0] = math.inf
    save_parameters(parameters, path)
    hub.ask(do="load", version=0, path=str(path), kind="initial")
    assert not math.isfinite(hub.train(0)["loss"])
    answer = hub.ask(do="publish", path="d", codec="fp32", tag=1, label="d")
    assert "model.norm.weight" in answer["error"] and answer["did"] == "publish"
    assert not (hub.directory / "work" / "d").exists()


def test_snapshot_brings_momentum(start_hub: StartHub, corpus: Corpus) -> None:
    outer = {"lr": 0.5, "momentum": 0.9, "delta_codec": "fp32", "update_codec": "fp32"}
    hub = start_hub(run_config(outer=outer))
    assert hub.read()["say"] == "ready"
    theta = load(hub, corpus)
    ones = {name: torch.ones_like(value) for name, value in theta.items()}
    zeros = {name: torch.zeros_like(value) for name, value in theta.items()}
    save_snapshot(OuterState(4, theta, ones, zeros), hub.directory / "snapshot")
    answer = hub.ask(do="load", version=4, path=str(hub.directory / "snapshot"), kind="snapshot")
    assert answer["digest"] == digest(theta)
    encode(zeros, "fp32", hub.directory / "work" / "update")
    answer = hub.ask(do="apply", progress=0.5, version=5, path="update")
    # m = 0.9·1 + 0, θ − 0.5·(0 + 0.9·m) in fp32, each product rounded on its own.
    decay, rate = torch.tensor(0.9), torch.tensor(0.5)
    expected = {name: value - rate * (decay * decay) for name, value in theta.items()}
    assert answer["digest"] == digest(expected)


def test_failed_command_is_one_line_and_changes_nothing(hub: Hub, corpus: Corpus) -> None:
    assert "load" in hub.train(0)["error"]
    load(hub, corpus)
    missing = hub.ask(do="apply", progress=0.5, version=1, path="no-such-file")
    assert missing["did"] == "apply" and "\n" not in missing["error"]
    assert (
        "at version 0" in hub.ask(do="apply", progress=0.5, version=7, path="no-such-file")["error"]
    )
    num_blocks = -(-corpus.num_sequences // 16)
    assert f"block {num_blocks}" in hub.train(num_blocks)["error"]
    assert_zero(delta(hub, "nothing"))


def test_short_last_block_trains_its_real_tokens(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    last = (corpus.num_sequences - 1) // 16
    num_sequences = len(sequences_of_block(last, 16, corpus.num_sequences))
    assert num_sequences < 16
    answer = hub.train(last)
    assert answer["tokens"] == num_sequences * 16
    assert answer["steps"] == math.ceil(num_sequences / 8)


def test_exit_ends_it_well(hub: Hub) -> None:
    write_message(hub.sock, {"do": "exit"})
    assert hub.trainer.wait(10)
    assert hub.trainer.returncode() == 0


def test_end_of_the_stream_ends_it_in_the_middle_of_training(hub: Hub, corpus: Corpus) -> None:
    load(hub, corpus)
    for block in range(60):
        command = {"do": "train", "epoch": 0, "block": block % 8, "tag": None}
        write_message(hub.sock, command | {"progress_from": 0.1, "progress_to": 0.2})
    assert hub.read()["say"] == "progress"
    hub.sock.close()
    assert hub.trainer.wait(5)
    assert hub.trainer.returncode() == 4


def test_unusable_model_is_said_before_it_ends(start_hub: StartHub) -> None:
    table = run_config().model | {"hiden_size": 32}
    hub = start_hub(run_config(model=table))
    message = hub.read()
    assert message["say"] == "failed" and "hiden_size" in message["error"]
    assert hub.trainer.wait(10)
    assert hub.trainer.returncode() == 3


def test_changed_byte_in_the_data_is_refused(start_hub: StartHub, corpus: Corpus) -> None:
    path: Path = corpus.directory / "heldout-00000.bin"
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        message = start_hub().read()
    finally:
        path.write_bytes(whole)
    assert message["say"] == "failed" and "heldout-00000.bin" in message["error"]
