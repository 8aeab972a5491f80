"""The centralised baseline: the run's loop, blocks and parameters; taken up where it was left."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from eventlog.config import RunConfig
from leases.blocks import BlockIndex
from sitehub.baseline import Baseline, BaselineInvalid, Trained, inner_of, plan
from sitehub.corpus import Corpus
from sitehub.founding import data_shape, start
from sitehub.model import parameters_of
from sitehub.training import InnerLoop
from tests.sitehub.support import BLOCK_SEQUENCES, run_config

BLOCK = BLOCK_SEQUENCES * 16  # tokens


def config(**changes: Any) -> RunConfig:
    return run_config(target={"tokens": 4 * BLOCK}, **changes)


def baseline(config: RunConfig, corpus: Corpus, folder: Path) -> Baseline:
    settings, model = start(config, corpus)
    return Baseline(settings, model, corpus, plan(settings, corpus), folder)


def parameters(one: Baseline) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in parameters_of(one._model).items()}


def test_it_is_the_sites_loop_over_the_runs_blocks_in_their_order(
    corpus: Corpus, tmp_path: Path
) -> None:
    settings = config()
    one = baseline(settings, corpus, tmp_path)
    assert one.train(lambda _: True)
    _, model = start(settings, corpus)
    loop = InnerLoop(model, corpus, settings.inner, BLOCK_SEQUENCES)
    index = BlockIndex(settings.seed, data_shape(settings, corpus))
    for place in range(4):
        ends = (place / 4, (place + 1) / 4)
        loop.train_block(index.at(0, place), ends, lambda _: None)
    ours = parameters(one)
    assert all(torch.equal(value, ours[name]) for name, value in parameters_of(model).items())
    assert (one.done.tokens, one.done.steps, one.done.position) == (4 * BLOCK, 8, 4)


def test_interrupted_and_taken_up_it_is_the_same(corpus: Corpus, tmp_path: Path) -> None:
    whole = baseline(config(), corpus, tmp_path / "whole")
    assert whole.train(lambda _: True)
    first = baseline(config(), corpus, tmp_path / "parts")
    assert not first.train(lambda done: done.position < 2)
    second = baseline(config(), corpus, tmp_path / "parts")
    assert second.resumed and second.done.tokens == 2 * BLOCK
    assert second.train(lambda _: True)
    ours = parameters(second)
    assert all(torch.equal(value, ours[name]) for name, value in parameters(whole).items())
    assert [one[0] for one in second.done.curve] == [BLOCK * n for n in (1, 2, 3, 4)]
    assert second.result(64)["loss"] == whole.result(64)["loss"]


def test_a_folder_of_another_baseline_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    baseline(config(), corpus, tmp_path).save()
    with pytest.raises(BaselineInvalid, match="another baseline"):
        baseline(config(inner={"batch_sequences": 8, "lr": 1e-3}), corpus, tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(BaselineInvalid, match="cannot be read"):
        baseline(config(), corpus, tmp_path)


def test_batch_and_rate_of_its_own_and_what_is_derived_is_explained(corpus: Corpus) -> None:
    plain = plan(config(), corpus)
    assert (plain.batch_sequences, plain.lr) == (8, 1e-2) and set(plain.why) == {
        "batch_sequences",
        "lr",
    }
    larger = plan(config(baseline={"batch_sequences": 16}), corpus)
    assert larger.lr == pytest.approx(1e-2 * math.sqrt(2)) and "root of 2" in larger.why["lr"]
    given = plan(config(baseline={"batch_sequences": 16, "lr": 3e-3}), corpus)
    assert given.lr == 3e-3 and not given.why
    inner = config().inner.model_copy(update={"accumulate": 4})  # two sequences at once
    assert (inner_of(inner, larger).batch_sequences, inner_of(inner, larger).accumulate) == (16, 8)
    with pytest.raises(ValueError, match="does not divide"):
        config(baseline={"batch_sequences": 5})


def test_a_target_in_rounds_needs_its_tokens_said(corpus: Corpus) -> None:
    settings = run_config()
    with pytest.raises(BaselineInvalid, match="give --tokens"):
        plan(settings, corpus)
    assert plan(settings, corpus, 500).tokens == 500


def test_the_curve_is_thinned_and_keeps_its_ends() -> None:
    from sitehub.baseline import _thinned

    curve = [(n, float(n)) for n in range(1, 6)]
    assert _thinned(curve) == [(2, 1.5), (4, 3.5), (5, 5.0)]
    assert dataclasses.asdict(Trained())["tokens"] == 0
