"""Builds a data directory from sources of text, the same bytes wherever and however it is done.

The sources are cut into units, by their sizes alone. Any number of processes pack units into part
files; these are joined in the units' order. Each step is recorded once it is on disk, so a build
that is killed goes on where it was. The manifest is removed first and written last, and every file
appears as a whole: a directory says that it holds data only when it holds all of them.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from eventlog.locks import exclusive
from sitehub import given_tokenizer
from sitehub import tokenizer as bpe
from sitehub.composing import compose
from sitehub.corpus import TOKENIZER, Corpus
from sitehub.documents import Choice, DataInvalid, Tally
from sitehub.joining import join
from sitehub.journal import FOLDER, Journal
from sitehub.manifest import FILE_NAME, TokenFile, TokenizerEntry
from sitehub.packers import cores, packed
from sitehub.packing import SPLITS, Packed, Setup, taken
from sitehub.progress import Progress, Step
from sitehub.rowfiles import Unit
from sitehub.sources import Source
from sitehub.tokenfiles import dtype_for, write_file

MAX_VOCAB = 1 << 20  # larger than any in use; the library that trains one aborts on memory
TRAINING_BYTES = 256 << 20  # of text that a tokenizer is trained on, in equal parts of each source
_UNITS = 256  # about so many, within these bounds, whose parts a file system bears
_LEAST_UNIT_BYTES, _MOST_UNIT_BYTES = 1 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """How to build. tokenizer: a tokenizer.json, a folder with one, or a name on the Hugging Face
    hub; None trains one of `vocab_size` entries on the training documents. end_of_document: by
    default <|endoftext|> if the tokenizer has it, else what it names as its end of a sequence.
    processes: None takes as many as there are cores; their number changes nothing in the data."""

    sequence_tokens: int = 128
    vocab_size: int = 4096
    subset: int = 1
    heldout_every: int = 20
    tokenizer: Path | str | None = None
    end_of_document: str | None = None
    processes: int | None = None
    file_bytes: int = 1 << 31

    def check(self) -> None:
        """Raises DataInvalid."""
        bounds = {"sequence_tokens": 1, "subset": 1, "heldout_every": 2, "file_bytes": 4}
        bounds |= {"vocab_size": bpe.MIN_VOCAB_SIZE} if self.tokenizer is None else {}
        bounds |= {"processes": 1} if self.processes is not None else {}
        for name, least in bounds.items():
            if getattr(self, name) < least:
                raise DataInvalid(f"{name} = {getattr(self, name)}: give {least} or more")
        if self.vocab_size > MAX_VOCAB:
            raise DataInvalid(f"vocab_size = {self.vocab_size}: give {MAX_VOCAB} or less")


def build(
    sources: Sequence[Source],
    directory: Path,
    options: Options = Options(),
    progress: Progress | None = None,
) -> Corpus:
    """Tokenize the sources into `directory` and open it; a build of the same that was killed there
    is gone on with. Raises DataInvalid, LockHeld, OSError."""
    options.check()
    _check_places(sources, directory)
    units = _units(sources)
    if not units:
        raise DataInvalid(_too_few(sources, ()))
    given = None
    if options.tokenizer is not None:
        given = given_tokenizer.read(str(options.tokenizer), options.end_of_document)
    (directory / FOLDER).mkdir(parents=True, exist_ok=True)
    lock = exclusive(directory / FOLDER, "the data folder of a build")
    try:
        (directory / FILE_NAME).unlink(missing_ok=True)
        _Build(sources, units, directory, options, given, progress or (lambda _: None)).run()
        shutil.rmtree(directory / FOLDER)
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)
    return Corpus.open(directory)


class _Build:
    """One build, from its plan to its manifest."""

    def __init__(
        self,
        sources: Sequence[Source],
        units: Sequence[Unit],
        directory: Path,
        options: Options,
        given: given_tokenizer.Given | None,
        progress: Progress,
    ) -> None:
        self._sources, self._units, self._directory = sources, units, directory
        self._options, self._report = options, progress
        self._in_bytes = all(source.num_bytes() for source in sources)
        self._journal = Journal(directory, _plan(units, options, given))
        self._choice = Choice(options.subset, options.heldout_every, self._journal.forced())
        data = given.data if given else self._trained()
        tokenizer = bpe.read(data, TOKENIZER)
        end = given.end_of_document if given else bpe.END_OF_DOCUMENT
        self._entry = TokenizerEntry(
            digest=bpe.digest(data),
            vocab_size=bpe.vocabulary_size(tokenizer),
            end_of_document=end,
            end_of_document_id=bpe.end_of_document_id(tokenizer, end, str(options.tokenizer)),
        )
        self._dtype = dtype_for(self._entry.vocab_size)
        self._setup = Setup(
            self._journal.parts, data, self._entry.end_of_document_id, self._dtype, self._choice
        )

    def run(self) -> None:
        """Pack, join, and say what is there."""
        packed = self._packed()
        training, heldout = (self._joined(packed, split) for split in (0, 1))
        write_file(self._directory / TOKENIZER, self._setup.tokenizer)
        manifest = compose(
            self._sources,
            packed,
            self._entry,
            self._options.sequence_tokens,
            self._setup.choice,
            (self._dtype, self._options.file_bytes),
            (training, heldout),
        )
        kept = {file.name for file in (*training, *heldout)}
        for name in SPLITS:  # of an earlier build
            for path in self._directory.glob(f"{name}-*.bin"):
                if path.name not in kept:
                    path.unlink()
        write_file(self._directory / FILE_NAME, manifest.to_bytes())

    def _trained(self) -> bytes:
        """The tokenizer.json of a tokenizer trained on the text."""
        if (data := self._journal.tokenizer()) is None:
            data = bpe.to_bytes(bpe.train(self._texts(), self._options.vocab_size))
            self._journal.record_tokenizer(data)
        return data

    def _texts(self) -> Iterator[str]:
        """Training documents, from each source's beginning on, up to its share of the bytes."""
        share, total = TRAINING_BYTES // len(self._sources), sum(map(self._weight, self._units))
        done, left = 0, [share] * len(self._sources)
        for unit in self._units:
            for document in taken(unit, self._choice, Tally()) if left[unit.source] > 0 else ():
                if left[unit.source] > 0 and not self._choice.holds_out(document.digest):
                    left[unit.source] -= document.num_bytes
                    yield document.text
            done += self._weight(unit)
            self._report(Step("training the tokenizer", done, total))

    def _packed(self) -> list[Packed]:
        """Every unit, in order. Raises DataInvalid where there is too little."""
        found = self._journal.packed(self._dtype)
        self._pack([job for job in enumerate(self._units) if job[0] not in found], found)
        if sum(map(_num_documents, found.values())) < 2:
            raise DataInvalid(_too_few(self._sources, list(found.values())))
        if self._setup.choice.forced is None and not _num_heldout(found):
            forced = min(one.least for one in found.values() if one.least)
            self._journal.record_forced(forced)
            self._setup = replace(self._setup, choice=replace(self._choice, forced=forced))
        if (chosen := self._setup.choice.forced) is not None:
            again = [
                (number, self._units[number])
                for number, one in sorted(found.items())
                if one.least == chosen and not one.parts[1].num_documents
            ]
            self._pack(again, found)
        return [found[number] for number in sorted(found)]

    def _pack(self, jobs: Sequence[tuple[int, Unit]], found: dict[int, Packed]) -> None:
        """Pack units into `found`, each recorded as soon as it is done."""
        total = sum(map(self._weight, self._units))
        begun = total - sum(self._weight(unit) for _, unit in jobs)
        began, num_tokens, done = time.monotonic(), 0, begun

        def say() -> None:
            elapsed = time.monotonic() - began
            self._report(Step("writing tokens", done, total, begun, num_tokens, elapsed))

        def on_tokens(more: int) -> None:
            nonlocal num_tokens
            num_tokens += more
            say()

        processes = self._options.processes or cores()
        for one in packed(jobs, self._setup, processes, on_tokens):
            self._journal.record_packed(one)
            found[one.unit] = one
            done += self._weight(self._units[one.unit])
            say()

    def _joined(self, packed: Sequence[Packed], split: int) -> tuple[TokenFile, ...]:
        return join(
            self._directory,
            self._journal.parts,
            packed,
            split,
            self._dtype,
            self._options.file_bytes,
            self._journal.files(split),
            self._journal.record_file,
        )

    def _weight(self, unit: Unit) -> int:
        return unit.weight if self._in_bytes else 1


def _check_places(sources: Sequence[Source], directory: Path) -> None:
    for source in sources:
        place = source.place
        if place and place.resolve() in (directory.resolve(), *directory.resolve().parents):
            raise DataInvalid(
                f"{directory} lies within {place}, the text that it is built from, and "
                "would be text of the next build; name another folder"
            )
    if directory.exists() and not directory.is_dir():
        raise DataInvalid(f"{directory} is no folder; name another one")


def _units(sources: Sequence[Source]) -> list[Unit]:
    total = sum(source.num_bytes() for source in sources)
    unit_bytes = min(max(total // _UNITS, _LEAST_UNIT_BYTES), _MOST_UNIT_BYTES)
    return list(
        chain.from_iterable(
            source.units(number, unit_bytes) for number, source in enumerate(sources)
        )
    )


def _plan(units: Sequence[Unit], options: Options, given: given_tokenizer.Given | None) -> str:
    """The digest of all that the bytes depend on. sequence_tokens is not of it: tokens are the same
    for every length."""
    whole = hashlib.sha256(b"atoll build 1\n")
    tokenizer = (bpe.digest(given.data), given.end_of_document) if given else options.vocab_size
    of = (options.subset, options.heldout_every, options.file_bytes, tokenizer)
    for part in (of, *units):
        whole.update(repr(part).encode("utf-8", "surrogateescape") + b"\n")
    return whole.hexdigest()


def _num_documents(one: Packed) -> int:
    return sum(part.num_documents for part in one.parts)


def _num_heldout(found: dict[int, Packed]) -> int:
    return sum(one.parts[1].num_documents for one in found.values())


def _too_few(sources: Sequence[Source], found: Sequence[Packed]) -> str:
    num = sum(map(_num_documents, found))
    odd: Tally = sum((Tally(one.odd) for one in found), Tally())
    left_out = ", ".join(f"{count:,} {name}" for name, count in sorted(odd.items()))
    where = ", ".join(str(source.place or source.label.get("name")) for source in sources)
    documents = "1 document" if num == 1 else f"{num} documents"
    field = "; rows without the field are null: --field names another" if odd["null"] else ""
    return f"{where}: {documents}; at least two are needed, one of them to hold out" + (
        f" (odd ones: {left_out}{field})" if left_out else ""
    )
