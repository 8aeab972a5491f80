"""The byte-level BPE that turns text into tokens, trained on the corpus or given as a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sitehub.documents import DataInvalid

END_OF_DOCUMENT = "<|endoftext|>"
MIN_VOCAB_SIZE = 257  # every byte, and the end of a document


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE (as GPT-2's) with at most `vocab_size` entries; equal texts in equal order
    give an equal tokenizer. Raises DataInvalid."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise DataInvalid(
            f"vocab_size = {vocab_size}: a byte-level vocabulary has at least {MIN_VOCAB_SIZE}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _plain(tokenizer)


def read(data: bytes, name: str) -> Tokenizer:
    """A tokenizer from the bytes of a tokenizer.json. Raises DataInvalid, which names it."""
    try:
        return _plain(Tokenizer.from_str(data.decode("utf-8")))
    except Exception as error:  # the library raises bare Exception for a file it cannot use
        raise DataInvalid(f"{name}: no tokenizer that can be read: {error}") from error


def load(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json. Raises DataInvalid."""
    try:
        return read(path.read_bytes(), str(path))
    except OSError as error:
        raise DataInvalid(f"{path}: cannot be read: {error.strerror}") from error


def to_bytes(tokenizer: Tokenizer) -> bytes:
    """The tokenizer as a tokenizer.json; equal tokenizers give equal bytes."""
    text: str = tokenizer.to_str(pretty=True)
    return text.encode("utf-8")


def digest(data: bytes) -> str:
    """The digest (hex) by which a manifest names a tokenizer.json."""
    return hashlib.sha256(data).hexdigest()


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest token id: the rows an embedding needs."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def end_of_document_id(tokenizer: Tokenizer, token: str, name: str) -> int:
    """The id of the token put after each document. Raises DataInvalid."""
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise DataInvalid(
            f"{name}: has no token {token!r} to end documents with; name one that it has"
        )
    return number


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Whole texts as they are: not cut, not padded, and a special token's name that stands in a
    text is text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
