"""A data directory is the same bytes wherever it is built, and damage to it is found."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from sitehub.build import Options, build
from sitehub.corpus import Corpus, first_difference, unigram, verify
from sitehub.progress import Step
from sitehub.sources import DataInvalid, folder, standard_library
from sitehub.tokenfiles import TokenStream
from tests.sitehub.support import write_text

FILES = ("manifest.json", "tokenizer.json", "training-00000.bin", "heldout-00000.bin")
OPTIONS = Options(sequence_tokens=16, vocab_size=300)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_two_builds_of_equal_sources_in_other_places_are_equal_bytes(tmp_path: Path) -> None:
    first = build([folder(write_text(tmp_path / "here"))], tmp_path / "a", OPTIONS)
    second = build([folder(write_text(tmp_path / "far" / "there"))], tmp_path / "b", OPTIONS)
    assert set(content(first.directory)) == set(FILES)
    assert content(first.directory) == content(second.directory)
    assert str(tmp_path) not in (tmp_path / "a" / "manifest.json").read_text()


def test_given_tokenizer_makes_the_data_that_training_it_made(
    corpus: Corpus, text: Path, tmp_path: Path
) -> None:
    given = Options(sequence_tokens=16, tokenizer=corpus.directory / "tokenizer.json")
    again = build([folder(text)], tmp_path / "data", given)
    assert again.manifest_digest == corpus.manifest_digest


def words(digest: bytes) -> tuple[int, int]:
    """The two numbers of a document that the split and the subset go by."""
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")


def texts_of(tokens: TokenStream, tokenizer: Tokenizer) -> list[str]:
    """The documents of a split, decoded."""
    end = tokenizer.token_to_id("<|endoftext|>")
    ids = tokens[:]
    assert ids[-1] == end
    return [
        tokenizer.decode(part.tolist()[:-1])
        for part in np.split(ids, np.flatnonzero(ids == end) + 1)
    ][:-1]


def test_the_split_goes_by_the_documents_own_digests(text: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, heldout_every=4, subset=2)
    built = build([folder(text)], tmp_path / "data", options)
    expected: tuple[list[str], list[str]] = ([], [])
    for path in sorted(text.iterdir()):
        split, subset = words(hashlib.sha256(path.read_bytes()).digest())
        if subset % 2 == 0:
            expected[split % 4 == 0].append(path.read_text())
    assert all(expected)
    assert texts_of(built.training, built.tokenizer) == expected[0]
    assert texts_of(built.heldout, built.tokenizer) == expected[1]
    assert built.manifest.settings.forced is None


def test_where_no_digest_says_so_the_smallest_one_is_held_out(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text", num_files=5)
    copies = [source / "again.txt", source / "z" / "last.txt"]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in source.iterdir()}
    least = min(digests)
    copies[1].parent.mkdir()
    for copy in copies:
        shutil.copy(digests[least], copy)
    built = build([folder(source)], tmp_path / "data", replace(OPTIONS, heldout_every=1 << 40))
    assert built.manifest.settings.forced == least
    assert texts_of(built.heldout, built.tokenizer) == [digests[least].read_text()] * 3
    assert built.manifest.training.num_documents == 4


def test_tokens_are_the_documents_each_ended_by_one_token(corpus: Corpus, text: Path) -> None:
    splits = [texts_of(of, corpus.tokenizer) for of in (corpus.training, corpus.heldout)]
    for found in splits:
        assert found == sorted(found, key=[*splits[0], *splits[1]].index)
    assert sorted(splits[0] + splits[1]) == sorted(path.read_text() for path in text.iterdir())


def test_manifest_counts_what_the_files_hold(corpus: Corpus, text: Path) -> None:
    manifest = corpus.manifest
    assert manifest.sources[0].num_documents == manifest.num_documents == 40
    assert manifest.sources[0].num_bytes == sum(p.stat().st_size for p in text.iterdir())
    heldout = texts_of(corpus.heldout, corpus.tokenizer)
    assert manifest.heldout.num_bytes == sum(len(text.encode()) for text in heldout)
    assert manifest.heldout.num_documents == len(heldout)
    assert manifest.training.num_tokens == len(corpus.training)
    assert corpus.num_sequences == (len(corpus.training) - 1) // 16
    assert corpus.training.dtype == np.uint16


def test_name_of_the_end_token_in_a_text_is_text(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text", num_files=3)
    (source / "text-000.txt").write_text("a <|endoftext|> b " * 30)
    corpus = build([folder(source)], tmp_path / "data", OPTIONS)
    assert int((corpus.training[:] == 0).sum()) == corpus.manifest.training.num_documents


def test_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text", num_files=3)
    small = build([folder(source)], tmp_path / "small", OPTIONS)
    content = json.loads((small.directory / "tokenizer.json").read_text())
    content["model"]["vocab"]["far away"] = 70_000
    given = tmp_path / "tokenizer.json"
    given.write_text(json.dumps(content))
    options = Options(sequence_tokens=16, tokenizer=given)
    large = build([folder(source)], tmp_path / "large", options)
    assert large.vocab_size == 70_001
    assert large.training.dtype == np.uint32
    assert large.training[:].tolist() == small.training[:].tolist()


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_found_and_named(name: str, corpus: Corpus, tmp_path: Path) -> None:
    target = tmp_path / "data"
    shutil.copytree(corpus.directory, target)
    assert verify(target) == []
    whole = (target / name).read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        (target / name).write_bytes(changed)
        assert [name in problem for problem in verify(target)] == [True]
        with pytest.raises(DataInvalid, match=name):
            Corpus.open(target, verify="full")


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named_without_reading_the_rest(
    name: str, corpus: Corpus, tmp_path: Path
) -> None:
    target = tmp_path / "data"
    shutil.copytree(corpus.directory, target)
    (target / name).unlink()
    with pytest.raises(DataInvalid, match=name):
        Corpus.open(target)


def test_build_that_is_killed_leaves_no_data(corpus: Corpus, text: Path, tmp_path: Path) -> None:
    target = tmp_path / "data"
    shutil.copytree(corpus.directory, target)

    def die(step: Step) -> None:
        if step.what == "writing tokens":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([folder(text)], target, OPTIONS, die)
    with pytest.raises(DataInvalid, match="no data here"):
        Corpus.open(target)


def test_first_difference_names_the_cause_before_its_effects(
    corpus: Corpus, text: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "text"
    shutil.copytree(text, changed)
    (changed / "text-005.txt").write_text("other words\n")
    other = build([folder(changed)], tmp_path / "data", OPTIONS)
    assert first_difference(corpus.manifest, corpus.manifest) is None
    difference = first_difference(corpus.manifest, other.manifest)
    assert difference is not None and difference.startswith("sources[0].num_bytes is ")
    longer = build([folder(text)], tmp_path / "long", Options(sequence_tokens=32, vocab_size=300))
    difference = first_difference(corpus.manifest, longer.manifest)
    assert difference == "settings.sequence_tokens is 16 here and 32 there"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (Options(vocab_size=100), "vocab_size = 100"),
        (Options(vocab_size=10**11), "vocab_size = 10+: give 1048576 or less"),
        (Options(sequence_tokens=0), "sequence_tokens = 0"),
        (Options(subset=0), "subset = 0"),
        (Options(sequence_tokens=100_000, vocab_size=300), "fewer than one sequence"),
        (Options(processes=0), "processes = 0"),
        (Options(heldout_every=1), "heldout_every = 1: give 2 or more"),
        (Options(tokenizer=Path("/no/such/tokenizer.json")), "/no/such/tokenizer.json"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    options: Options, named: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataInvalid, match=named):
        build([folder(text)], tmp_path / "data", options)
    assert not (tmp_path / "data" / "manifest.json").exists()


def test_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "nothing.txt").touch()
    for source in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(DataInvalid, match=source.name):
            build([folder(source)], tmp_path / "data", OPTIONS)


def test_standard_library_is_source_without_tests_or_packages_of_this_machine() -> None:
    paths = [path for path, _ in standard_library().files()]
    assert "json/decoder.py" in paths and "asyncio/tasks.py" in paths
    parts = {part for path in paths for part in path.split("/")[:-1]}
    assert not parts & {"test", "tests", "site-packages", "dist-packages", "__pycache__"}
    assert not any("_sysconfigdata" in path for path in paths)
    assert all(path.endswith(".py") for path in paths)


def test_unigram_perplexity_is_its_closed_form(corpus: Corpus) -> None:
    counts = Counter(corpus.training[:].tolist())
    num_tokens, num_entries = len(corpus.training), corpus.vocab_size
    targets = corpus.heldout[:].tolist()[1 : 1 + corpus.manifest.heldout.num_sequences * 16]
    nats = [-math.log((counts[t] + 1) / (num_tokens + num_entries)) for t in targets]
    assert unigram(corpus) == pytest.approx(math.exp(sum(nats) / len(nats)))
    nats = nats[:32]
    assert unigram(corpus, max_tokens=40) == pytest.approx(math.exp(sum(nats) / len(nats)))


@pytest.mark.parametrize("inner", [".", "sub", "sub/deeper"])
def test_no_build_within_its_own_text(tmp_path: Path, inner: str) -> None:
    text = write_text(tmp_path / "text")
    before = content(text)
    with pytest.raises(DataInvalid, match="would be text of the next build"):
        build([folder(text)], text / inner, OPTIONS)
    assert content(text) == before


def test_a_file_in_the_place_of_the_data_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(DataInvalid, match="is no folder"):
        build([folder(write_text(tmp_path / "text"))], tmp_path / "data", OPTIONS)
