"""A real trainer process does the exchange beside its training, and counts every step once."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

from outer.codecs import decode, encode
from outer.versions import digest, load_parameters
from sitehub.beside import Beside
from sitehub.corpus import Corpus
from sitehub.stall import Stall
from sitehub.wire import Message, write_message
from tests.sitehub.conftest import StartHub
from tests.sitehub.support import Hub, run_config, save_initial

Model = dict[str, torch.Tensor]


def loaded(start_hub: StartHub, corpus: Corpus, **changes: Any) -> tuple[Hub, Model]:
    """A trainer that holds version 0; its parameters."""
    hub = start_hub(run_config(**changes))
    assert hub.read()["say"] == "ready"
    path = save_initial(corpus, hub.config, hub.directory / "initial")
    hub.ask(do="load", version=0, path=str(path), kind="initial")
    return hub, load_parameters(path)


def delta(hub: Hub, name: str, codec: str = "fp32") -> Model:
    answer = hub.ask(do="publish", path=name, codec=codec, tag=None, label=name)
    assert "error" not in answer
    return decode(hub.directory / "work" / name)


def total(*models: Model) -> Model:
    return {name: sum((model[name] for model in models[1:]), models[0][name]) for name in models[0]}


def far(one: Model, other: Model) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_a_version_is_folded_in_between_two_steps_of_a_block(
    start_hub: StartHub, corpus: Corpus
) -> None:
    inner = {"steps": 64, "batch_sequences": 2, "lr": 1e-2}
    hub, initial = loaded(start_hub, corpus, inner=inner)
    update = {name: torch.ones_like(value) for name, value in initial.items()}
    encode(update, "fp32", hub.directory / "work" / "update")
    train = {"do": "train", "epoch": 0, "block": 0, "tag": None}
    write_message(hub.sock, train | {"progress_from": 0.1, "progress_to": 0.2})
    assert hub.read()["step"] == 1
    apply = {"do": "apply", "version": 1, "path": "update", "progress": 0.5}
    write_message(hub.sock, apply)
    said: list[Message] = []
    while not said or said[-1].get("did") != "train":
        said.append(hub.read())
    version, block = [one for one in said if "did" in one]
    theta = {name: value - 1 for name, value in initial.items()}
    assert (version["did"], version["digest"]) == ("apply", digest(theta))
    assert block["steps"] == 8, "the block was trained to its end"
    assert version["stall"]["blocked"] > 0
    progress = delta(hub, "all")  # of all its steps, before the version and behind it
    assert 1e-3 < max(float(value.abs().max()) for value in progress.values()) < 0.5


def test_training_goes_on_before_the_delta_is_written(start_hub: StartHub, corpus: Corpus) -> None:
    hub, _ = loaded(start_hub, corpus)
    hub.train(0)
    publish = {"do": "publish", "path": "d", "codec": "fp32", "tag": None, "label": "d"}
    write_message(hub.sock, publish)
    assert hub.read() == {"say": "cut", "path": "d"}


def test_what_encoding_loses_comes_with_the_next_delta_once_the_log_has_merged_the_first(
    start_hub: StartHub, corpus: Corpus
) -> None:
    plain, _ = loaded(start_hub, corpus)
    lossy, _ = loaded(start_hub, corpus)
    for hub in (plain, lossy):
        hub.train(0)
    exact, coarse = delta(plain, "first"), delta(lossy, "first", "4-bit")
    lost = far(exact, coarse)
    for hub in (plain, lossy):
        hub.train(1)
    assert lossy.ask(do="settle", label="first", merged=True)["label"] == "first"
    exact, coarse = total(exact, delta(plain, "2")), total(coarse, delta(lossy, "2", "fp32"))
    assert lost > 1e-4 and far(exact, coarse) < 1e-6, "all of it arrived, and once"


def test_what_a_refused_delta_lost_is_never_delivered(start_hub: StartHub, corpus: Corpus) -> None:
    hub, _ = loaded(start_hub, corpus)
    hub.train(0)
    delta(hub, "refused", "4-bit")
    hub.ask(do="settle", label="refused", merged=False)
    hub.ask(do="rebase", reset=False)
    assert not any(value.any() for value in delta(hub, "nothing").values())


def test_a_new_trainer_finds_what_its_predecessor_had_pending(
    start_hub: StartHub, corpus: Corpus
) -> None:
    hub, _ = loaded(start_hub, corpus)
    hub.train(0)
    delta(hub, "first", "4-bit")
    hub.trainer.kill()
    ready = start_hub(work=str(hub.directory / "work")).read()
    assert (ready["say"], ready["pending"]) == ("ready", ["first"])


def test_stall_is_what_was_stood_still_for_and_an_inner_one_counts_once() -> None:
    now = iter([0.0, 1.0, 4.0, 10.0, 20.0, 29.5, 31.5])
    stall = Stall(lambda: next(now))
    with stall.of("idle"):
        pass
    with stall.of("blocked"), stall.of("blocked"):
        pass
    assert stall.take() == {"idle": 1.0, "blocked": 6.0, "evaluate": 0.0}
    with stall.of("blocked"):
        assert stall.take() == {"idle": 0.0, "blocked": 9.5, "evaluate": 0.0}, "until now"
    assert stall.take() == {"idle": 0.0, "blocked": 2.0, "evaluate": 0.0}


@pytest.mark.parametrize(("yields", "nicer"), [(True, 5), (False, 0)])
def test_only_where_training_goes_on_it_goes_before_the_exchange(yields: bool, nicer: int) -> None:
    found = list[int]()
    beside = Beside(lambda: None, lambda _: None, yields=yields)

    def look() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    beside.start(look)
    beside.wait()
    assert found == [min(os.getpriority(os.PRIO_PROCESS, 0) + nicer, 19)]


def test_jobs_are_done_in_order_and_what_they_leave_is_done_by_who_asks() -> None:
    woken, order = threading.Event(), list[str]()
    beside = Beside(woken.set, lambda error: order.append(f"broken: {error}"))
    mine = threading.get_ident()

    def first() -> Any:
        order.append("first")
        return lambda: order.append(f"left {threading.get_ident() == mine}")

    def second() -> None:
        order.append("second")
        raise ValueError("a bug")

    beside.start(first)
    beside.start(second)
    beside.wait()
    assert order == ["first", "second", "broken: a bug", "left True"]
    assert woken.is_set()
