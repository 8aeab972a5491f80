"""Trainers forked from one parent train as well as any, and nobody outlives whom it should not."""

from __future__ import annotations

import math
import os
import shutil
import socket
from pathlib import Path

import pytest

from sitehub.corpus import Corpus
from sitehub.spawn import (
    PRELOAD_VARIABLE,
    SpawnFailed,
    ask,
    socket_folder,
    spawn_trainer,
    start_preload,
)
from tests.sitehub.conftest import StartHub
from tests.sitehub.support import Hub, save_initial


def trained_loss(hub: Hub, corpus: Corpus) -> float:
    assert hub.read()["say"] == "ready"
    path = save_initial(corpus, hub.config, hub.directory / "initial")
    hub.ask(do="load", version=0, path=str(path), kind="initial")
    hub.train(0)
    loss: float = hub.train(1)["loss"]
    return loss


def num_threads(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        pytest.skip("threads are counted in /proc")
    return len(list(tasks.iterdir()))


def test_two_forked_trainers_and_a_fresh_process_train_alike(
    start_hub: StartHub, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = [start_hub(), start_hub()]
    assert len({hub.trainer.pid for hub in forked}) == 2
    monkeypatch.delenv(PRELOAD_VARIABLE)
    fresh = start_hub()
    losses = {trained_loss(hub, corpus) for hub in [*forked, fresh]}
    assert len(losses) == 1


def test_forked_trainer_leads_a_session_of_its_own(start_hub: StartHub) -> None:
    hub = start_hub()
    assert hub.read()["pid"] == hub.trainer.pid
    assert os.getsid(hub.trainer.pid) == os.getpgid(hub.trainer.pid) == hub.trainer.pid
    assert hub.trainer.alive() and hub.trainer.returncode() is None
    hub.trainer.kill()
    assert hub.trainer.wait(5)
    assert hub.trainer.returncode() == -9


def test_forked_trainer_may_use_more_threads_than_its_parent(
    start_hub: StartHub, corpus: Corpus
) -> None:
    hub = start_hub(threads=2)
    assert math.isfinite(trained_loss(hub, corpus))
    assert num_threads(hub.trainer.pid) > 2  # it, the listener, OpenMP's


def test_parent_has_one_thread(preload: str) -> None:
    pid = ask(preload, {"ping": True})["pid"]
    assert num_threads(pid) == 1


def test_wrong_arguments_end_the_child_and_not_the_parent(
    preload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRELOAD_VARIABLE, preload)
    handle = spawn_trainer(["--nonsense"], tmp_path / "log")
    assert handle.wait(5)
    assert handle.returncode() == 2
    assert (
        "--nonsense" in (tmp_path / "log").read_text()
        or "required" in (tmp_path / "log").read_text()
    )
    assert "pid" in ask(preload, {"ping": True})


def test_without_its_hub_a_trainer_does_not_start(
    preload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRELOAD_VARIABLE, preload)
    arguments = [
        "--socket",
        str(tmp_path / "no"),
        "--data",
        "d",
        "--config",
        "c",
        "--dir",
        str(tmp_path / "w"),
    ]
    handle = spawn_trainer(arguments, tmp_path / "log")
    assert handle.wait(5)
    assert handle.returncode() == 4


def test_absent_parent_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRELOAD_VARIABLE, str(tmp_path / "nobody"))
    with pytest.raises(SpawnFailed, match="nobody"):
        spawn_trainer([], tmp_path / "log")


def test_a_parent_that_ends_and_one_that_is_slow_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpawnFailed, match="is not up after 0 s"):
        start_preload(tmp_path / "a", tmp_path / "log", 0.0)
    monkeypatch.setattr("sys.executable", str(shutil.which("false")))
    with pytest.raises(SpawnFailed, match=r"ended with 1; its output is in .*log"):
        start_preload(tmp_path / "a", tmp_path / "log")


def test_parent_ends_when_told_or_when_its_starter_is_gone(tmp_path: Path) -> None:
    told = start_preload(tmp_path / "a", tmp_path / "log")
    assert ask(str(tmp_path / "a"), {"exit": True}) == {}
    assert told.wait(5) == 0
    assert not (tmp_path / "a").exists()
    assert told.stdin is not None
    told.stdin.close()


def test_a_socket_fits_also_where_the_temporary_folder_has_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = socket_folder("atoll-test-")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "preload.part"))
        assert (folder / "preload.part").is_socket()
    shutil.rmtree(folder)
