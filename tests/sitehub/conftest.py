"""Fixtures of the site's tests: a small corpus, and trainers forked from one preloaded parent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventlog.config import RunConfig
from sitehub.build import Options, build
from sitehub.corpus import Corpus
from sitehub.sources import folder
from sitehub.spawn import ONE, PRELOAD_VARIABLE, Ranks, start_preload
from tests.sitehub.support import Hub, run_config, write_text

StartHub = Callable[..., Hub]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "folder")


@pytest.fixture(scope="session")
def corpus(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    target = tmp_path_factory.mktemp("data")
    return build([folder(text)], target, Options(sequence_tokens=16, vocab_size=300))


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A preloaded parent; its socket."""
    directory = tmp_path_factory.mktemp("preload")
    process = start_preload(directory / "p.sock", directory / "log")
    yield str(directory / "p.sock")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.fixture
def start_hub(
    tmp_path: Path, corpus: Corpus, preload: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartHub]:
    """Starts trainers; the test gets the hub's side of each."""
    monkeypatch.setenv(PRELOAD_VARIABLE, preload)
    hubs: list[Hub] = []

    def start(
        config: RunConfig | None = None, threads: int = 1, work: str = "work", ranks: Ranks = ONE
    ) -> Hub:
        directory = tmp_path / f"hub-{len(hubs)}"
        directory.mkdir()
        hubs.append(Hub(directory, corpus, config or run_config(), threads, work, ranks))
        return hubs[-1]

    yield start
    for hub in hubs:
        hub.close()
