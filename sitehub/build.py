"""Builds a data directory from sources of text, the same bytes wherever it is done.

The manifest is removed first and written last, and every file replaces its predecessor as a whole:
a build that is killed leaves a directory that says it holds no data, never half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from sitehub import tokenizer as bpe
from sitehub.corpus import HELDOUT, TOKENIZER, TRAINING, Corpus
from sitehub.manifest import FILE_NAME, Manifest, Settings, SourceEntry, Split, TokenizerEntry
from sitehub.sources import DataInvalid, Document, Source, SourceDigest, documents, text_of
from sitehub.tokenfiles import DType, TokenWriter, dtype_for, write_file

Progress = Callable[[str, int, int], None]  # (what is done, documents done, documents in all)
MAX_VOCAB = 1 << 20  # larger than any in use; the library that trains one aborts on memory
_BATCH_DOCUMENTS = 64  # encoded together; bounds memory


@dataclass(frozen=True, slots=True)
class Options:
    """How to build. tokenizer: a tokenizer.json to use; None trains one of `vocab_size` entries
    on the training documents."""

    sequence_tokens: int = 128
    vocab_size: int = 4096
    subset: int = 1
    heldout_every: int = 20
    tokenizer: Path | None = None
    end_of_document: str = bpe.END_OF_DOCUMENT

    def check(self) -> None:
        """Raises DataInvalid."""
        for name, least in (("sequence_tokens", 1), ("subset", 1), ("heldout_every", 2)):
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
    """Tokenize the sources into `directory` and open it. Raises DataInvalid, OSError."""
    options.check()
    for source in sources:
        if source.folder.resolve() in (directory.resolve(), *directory.resolve().parents):
            raise DataInvalid(
                f"{directory} lies within {source.folder}, the text that it is built from, and "
                "would be text of the next build; name another folder"
            )
    if directory.exists() and not directory.is_dir():
        raise DataInvalid(f"{directory} is no folder; name another one")
    report = progress or (lambda what, done, total: None)
    found = documents(sources, options.subset, options.heldout_every)
    data, tokenizer = _tokenizer(found, options, report)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE_NAME).unlink(missing_ok=True)
    entry = TokenizerEntry(
        digest=bpe.digest(data),
        vocab_size=bpe.vocabulary_size(tokenizer),
        end_of_document=options.end_of_document,
        end_of_document_id=bpe.end_of_document_id(
            tokenizer, options.end_of_document, str(options.tokenizer or TOKENIZER)
        ),
    )
    write_file(directory / TOKENIZER, data)
    manifest = _Packer(directory, tokenizer, entry, options, report).pack(sources, found)
    write_file(directory / FILE_NAME, manifest.to_bytes())
    return Corpus.open(directory)


def _tokenizer(
    found: Sequence[Document], options: Options, report: Progress
) -> tuple[bytes, Tokenizer]:
    """The tokenizer.json to store (a given one as it is) and the tokenizer it holds."""
    if options.tokenizer is not None:
        try:
            data = options.tokenizer.read_bytes()
        except OSError as error:
            raise DataInvalid(f"{options.tokenizer}: cannot be read: {error.strerror}") from error
        return data, bpe.read(data, str(options.tokenizer))
    training = [document for document in found if not document.heldout]
    texts = _texts(training, report)
    data = bpe.to_bytes(bpe.train(texts, options.vocab_size))
    return data, bpe.read(data, TOKENIZER)


def _texts(found: Sequence[Document], report: Progress) -> Iterator[str]:
    for done, document in enumerate(found, 1):
        yield text_of(document.read())
        report("training the tokenizer", done, len(found))


class _Packer:
    """Documents into the two token files, counted and digested on the way."""

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        entry: TokenizerEntry,
        options: Options,
        report: Progress,
    ) -> None:
        self._directory, self._tokenizer, self._entry = directory, tokenizer, entry
        self._options, self._report = options, report
        self._num_documents, self._num_bytes = [0, 0], [0, 0]  # training, held out

    def pack(self, sources: Sequence[Source], found: Sequence[Document]) -> Manifest:
        digests = [SourceDigest() for _ in sources]
        dtype = dtype_for(self._entry.vocab_size)
        with (
            TokenWriter(self._directory / TRAINING, dtype) as training,
            TokenWriter(self._directory / HELDOUT, dtype) as heldout,
        ):
            for start in range(0, len(found), _BATCH_DOCUMENTS):
                batch = found[start : start + _BATCH_DOCUMENTS]
                self._pack_batch(batch, digests, (training, heldout))
                self._report("writing tokens", start + len(batch), len(found))
        return Manifest(
            sources=tuple(
                SourceEntry(
                    label=source.label,
                    num_documents=digest.num_documents,
                    num_bytes=digest.num_bytes,
                    digest=digest.hex(),
                )
                for source, digest in zip(sources, digests, strict=True)
            ),
            settings=Settings(
                sequence_tokens=self._options.sequence_tokens,
                subset=self._options.subset,
                heldout_every=self._options.heldout_every,
            ),
            tokenizer=self._entry,
            training=self._split(0, "training", training, dtype),
            heldout=self._split(1, "held-out", heldout, dtype),
        )

    def _pack_batch(
        self,
        batch: Sequence[Document],
        digests: Sequence[SourceDigest],
        writers: tuple[TokenWriter, TokenWriter],
    ) -> None:
        contents = [document.read() for document in batch]
        texts = [text_of(content) for content in contents]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for document, content, text, encoding in zip(
            batch, contents, texts, encodings, strict=True
        ):
            digests[document.source].add(document.path, content)
            self._num_documents[document.heldout] += 1
            self._num_bytes[document.heldout] += len(text.encode())
            writers[document.heldout].append([*encoding.ids, self._entry.end_of_document_id])

    def _split(self, index: int, name: str, writer: TokenWriter, dtype: DType) -> Split:
        length = self._options.sequence_tokens
        num_sequences = (writer.num_tokens - 1) // length
        if num_sequences < 1:
            raise DataInvalid(
                f"the {name} documents have {writer.num_tokens} tokens, fewer than one sequence "
                f"of {length} and the token after it; give more text or a shorter sequence"
            )
        return Split(
            num_documents=self._num_documents[index],
            num_bytes=self._num_bytes[index],
            num_tokens=writer.num_tokens,
            num_sequences=num_sequences,
            dtype=dtype,
            digest=writer.digest(),
        )
