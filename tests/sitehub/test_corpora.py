"""A corpus of mixed real files: the same bytes for any number of processes and any interruption."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eventlog.errors import LockHeld
from ops.bench import english
from sitehub import build as builds
from sitehub.build import Options, build
from sitehub.corpus import Corpus, first_difference, verify
from sitehub.journal import FOLDER
from sitehub.packing import part_file
from sitehub.progress import Step
from sitehub.sources import DataInvalid, Source, file, folder, standard_library
from tests.support.forkserver import CHECKOUT
from tests.support.text import write_text

pyarrow = pytest.importorskip("pyarrow")


def write_parquet(path: Path, texts: Sequence[str | None]) -> Path:
    """A parquet file of many row groups."""
    import pyarrow.parquet as parquet

    table = pyarrow.table({"id": range(len(texts)), "text": texts})
    parquet.write_table(table, path, row_group_size=50)
    return path


def write_lines(path: Path, texts: Sequence[str]) -> Path:
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps({"text": text, "url": "x"}) + "\n" for text in texts)
    return path


def mixed(root: Path, part: int) -> list[Path]:
    """botocore's documentation in three forms, every `part`-th service; the library's source is
    a further one."""
    root.mkdir()
    texts = list(english.documents(part))
    paragraphs = [line for text in texts for line in text.split("\n\n")]
    english.write(root / "english.jsonl", part)
    write_parquet(root / "paragraphs.parquet", [*paragraphs[::3], None, "", "a\0b\r\n"])
    return [
        root / "english.jsonl",
        root / "paragraphs.parquet",
        write_lines(root / "more.jsonl.gz", paragraphs[1::3]),
    ]


def digests(directory: Path) -> dict[str, bytes]:
    """Every file that a build left, whole."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def built_alike(root: Path, part: int, subset: int) -> Corpus:
    sources: list[Source] = [standard_library(), *map(file, mixed(root / "text", part))]
    first = None
    for processes in (1, 2, 4):
        options = Options(
            sequence_tokens=64, vocab_size=2000, subset=subset, processes=processes,
            file_bytes=300_000,
        )  # fmt: skip
        found = build(sources, root / str(processes), options)
        assert first is None or digests(found.directory) == digests(first.directory)
        first = first or found
    assert first is not None
    return first


def test_a_mixed_corpus_is_the_same_bytes_for_1_2_and_4_processes(tmp_path: Path) -> None:
    found = built_alike(tmp_path, part=40, subset=8)
    manifest = found.manifest
    assert [entry.label["kind"] for entry in manifest.sources] == ["standard library"] + 3 * [
        "file"
    ]
    assert all(entry.num_documents for entry in manifest.sources)
    assert len(manifest.training.files) > 1
    assert {file.num_tokens for file in manifest.training.files[:-1]} == {150_000}
    assert (manifest.odd["null"], manifest.odd["empty"], manifest.odd["nul"]) == (1, 1, 1)
    assert len(found.training) == sum(map(len, found.training.files))
    assert verify(found.directory) == []


@pytest.mark.soak
def test_the_whole_mixed_corpus_is_the_same_bytes_too(tmp_path: Path) -> None:
    assert built_alike(tmp_path, part=1, subset=1).manifest.training.num_tokens > 5_000_000


def command(text: Path, out: Path) -> list[str]:
    options = ["--vocab-size", "600", "--sequence-tokens", "64", "--processes", "2"]
    return [sys.executable, "-m", "ops", "data", "build", str(text), str(out), *options]


def num_packed(out: Path) -> int:
    return len(list((out / FOLDER).glob("*/0*.json")))


def test_a_build_that_is_killed_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    """SIGKILL in the middle of packing, by a real process; then one more unit is lost."""
    text = tmp_path / "text.jsonl"
    english.write(text, subset=30)
    copies = tmp_path / "text"
    copies.mkdir()
    for number in range(10):
        (copies / f"{number}.jsonl").write_bytes(text.read_bytes())
    undisturbed = build([folder(copies)], tmp_path / "a", Options(64, 600))
    out = tmp_path / "b"
    begun = subprocess.Popen(command(copies, out), cwd=CHECKOUT, stderr=subprocess.PIPE)
    until = time.monotonic() + 200
    while num_packed(out) < 2 and begun.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    assert begun.returncode == -signal.SIGKILL
    with pytest.raises(DataInvalid, match="no data here"):
        Corpus.open(out)
    kept = num_packed(out)
    assert kept >= 2
    steps: list[Step] = []
    resumed = build([folder(copies)], out, Options(64, 600), steps.append)
    assert digests(out) == digests(undisturbed.directory)
    assert resumed.manifest_digest == undisturbed.manifest_digest
    assert not [step for step in steps if step.what == "training the tokenizer"]
    assert all(step.begun >= kept * (1 << 18) for step in steps)


def test_a_process_of_a_build_that_is_killed_is_told_and_the_build_goes_on_later(
    tmp_path: Path,
) -> None:
    write_text(tmp_path / "text")
    options = Options(16, 300, processes=2)
    killed: list[int] = []

    def kill_one(step: Step) -> None:
        if step.what == "writing tokens" and not killed:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
            for pid in map(int, children.split()):
                if b"sitehub.packing" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    sources = [folder(write_text(tmp_path / f"text-{n}")) for n in range(8)]
    with pytest.raises(DataInvalid, match=r"ended by SIGKILL; run the same command again"):
        build(sources, tmp_path / "data", options, kill_one)
    assert len(killed) == 2
    resumed = build(sources, tmp_path / "data", options)
    assert (
        resumed.manifest_digest == build(sources, tmp_path / "b", Options(16, 300)).manifest_digest
    )


@pytest.mark.parametrize("damage", ["shortened", "missing", "record"])
def test_what_a_killed_build_left_half_is_packed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    sources = [folder(write_text(tmp_path / f"text-{n}")) for n in range(3)]
    options = Options(16, 300, processes=1)
    whole = build(sources, tmp_path / "a", options)
    stop_before_joining(sources, tmp_path / "b", options, monkeypatch)
    (parts,) = (tmp_path / "b" / FOLDER).glob("*/")
    if damage == "record":
        (parts / "00000001.json").unlink()
    else:
        path = part_file(parts, 1, 0)
        path.write_bytes(path.read_bytes()[:-2]) if damage == "shortened" else path.unlink()
    steps: list[Step] = []
    build(sources, tmp_path / "b", options, steps.append)
    assert digests(tmp_path / "b") == digests(whole.directory)
    assert 0 < steps[0].begun < steps[0].total


def stop_before_joining(
    sources: Sequence[Source], out: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave what a build leaves that ends between packing and joining."""
    with monkeypatch.context() as patched:
        patched.setattr(builds, "join", lambda *_: os.abort() if not sources else _stop())
        with pytest.raises(KeyboardInterrupt):
            build(sources, out, options)


def _stop() -> None:
    raise KeyboardInterrupt


def test_a_part_that_the_disk_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [folder(write_text(tmp_path / "text"))]
    stop_before_joining(sources, tmp_path / "b", Options(16, 300), monkeypatch)
    (parts,) = (tmp_path / "b" / FOLDER).glob("*/")
    content = bytearray(part_file(parts, 0, 0).read_bytes())
    content[7] ^= 1
    part_file(parts, 0, 0).write_bytes(content)
    with pytest.raises(DataInvalid, match=r"00000000\.training: is not what was packed"):
        build(sources, tmp_path / "b", Options(16, 300))


def test_a_join_that_is_killed_goes_on_with_the_file_it_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [folder(write_text(tmp_path / f"text-{n}")) for n in range(4)]
    options = Options(16, 300, file_bytes=3000)
    whole = build(sources, tmp_path / "a", options)
    assert len(whole.manifest.training.files) > 10
    for after in (1, 5, 10):
        record, recorded = builds.Journal.record_file, list[str]()

        def stop(journal, split, one, after=after, record=record, recorded=recorded) -> None:  # type: ignore[no-untyped-def]
            record(journal, split, one)
            recorded.append(one.name)
            if len(recorded) == after:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(builds.Journal, "record_file", stop)
            with pytest.raises(KeyboardInterrupt):
                build(sources, tmp_path / "b", options)
    build(sources, tmp_path / "b", options)
    assert digests(tmp_path / "b") == digests(whole.directory)


def test_a_changed_text_or_setting_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "text")
    stop_before_joining([folder(text)], tmp_path / "b", Options(16, 300), monkeypatch)
    (text / "text-003.txt").write_text("another text\n" * 9)
    later = build([folder(text)], tmp_path / "b", Options(16, 300))
    assert (
        later.manifest_digest
        == build([folder(text)], tmp_path / "a", Options(16, 300)).manifest_digest
    )


def test_two_builds_in_one_place_do_not_meet(tmp_path: Path) -> None:
    sources = [folder(write_text(tmp_path / "text"))]

    def twice(step: Step) -> None:
        with pytest.raises(LockHeld, match="in use by another process"):
            build(sources, tmp_path / "data", Options(16, 300))

    build(sources, tmp_path / "data", Options(16, 300), twice)
    assert verify(tmp_path / "data") == []


def test_long_documents_are_encoded_in_pieces_into_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sitehub import packing

    sources = [folder(write_text(tmp_path / "text"))]
    whole = build(sources, tmp_path / "a", Options(16, 300, processes=1))
    monkeypatch.setattr(packing, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr(packing, "_BATCH_PIECES", 3)
    cut = build(sources, tmp_path / "b", Options(16, 300, processes=1))
    ends = [np.flatnonzero(one.training[:] == 0).size for one in (whole, cut)]
    assert ends[0] == ends[1] == whole.manifest.training.num_documents
    decoded = [one.tokenizer.decode(one.training[:].tolist()) for one in (whole, cut)]
    assert decoded[0] == decoded[1]


def test_the_first_difference_of_two_ways_to_build_is_its_setting(tmp_path: Path) -> None:
    sources = [folder(write_text(tmp_path / "text"))]
    one = build(sources, tmp_path / "a", Options(16, 300))
    two = build(sources, tmp_path / "b", replace(Options(16, 300), heldout_every=5))
    difference = first_difference(one.manifest, two.manifest)
    assert difference == "settings.heldout_every is 20 here and 5 there"


def test_progress_says_rate_and_time_left() -> None:
    step = Step("writing tokens", 700, 1000, 400, 30_000_000, 60.0)
    assert step.text() == ("writing tokens: 70 %, 30,000,000 tokens, 500,000 a second, 1:00 to go")
    assert Step("writing tokens", 400, 1000, 400).text() == "writing tokens: 40 %"
    assert Step("x", 1, 4_001, 0, 0, 3.6).text() == "x: 0 %, 4:00:00 to go"
