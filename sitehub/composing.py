"""The manifest of what was packed and joined."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sitehub.documents import ODDITIES, Choice, DataInvalid
from sitehub.manifest import Manifest, Settings, SourceEntry, Split, TokenFile, TokenizerEntry
from sitehub.packing import Packed
from sitehub.sources import Source
from sitehub.tokenfiles import DType

_NAMES = ("training", "held-out")


def compose(
    sources: Sequence[Source],
    packed: Sequence[Packed],
    tokenizer: TokenizerEntry,
    sequence_tokens: int,
    choice: Choice,
    stored: tuple[DType, int],
    files: tuple[tuple[TokenFile, ...], tuple[TokenFile, ...]],
) -> Manifest:
    """`packed` in the units' order; `stored`: the tokens' type and a file's most bytes; `files` of
    training and held-out tokens. Raises DataInvalid where a split has less than a sequence."""
    dtype, file_bytes = stored
    return Manifest(
        sources=tuple(
            _source(source, [one for one in packed if one.source == number])
            for number, source in enumerate(sources)
        ),
        settings=Settings(
            sequence_tokens=sequence_tokens,
            subset=choice.subset,
            heldout_every=choice.heldout_every,
            forced=choice.forced,
            file_bytes=file_bytes,
        ),
        tokenizer=tokenizer,
        odd={name: sum(one.odd.get(name, 0) for one in packed) for name in ODDITIES},
        training=_split(0, packed, files[0], dtype, sequence_tokens),
        heldout=_split(1, packed, files[1], dtype, sequence_tokens),
    )


def _source(source: Source, packed: Sequence[Packed]) -> SourceEntry:
    whole = hashlib.sha256(b"atoll source 2\n")
    for one in packed:
        whole.update(bytes.fromhex(one.documents_digest))
    parts = [part for one in packed for part in one.parts]
    return SourceEntry(
        label=source.label,
        num_documents=sum(part.num_documents for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        digest=whole.hexdigest(),
    )


def _split(
    split: int,
    packed: Sequence[Packed],
    files: tuple[TokenFile, ...],
    dtype: DType,
    sequence_tokens: int,
) -> Split:
    parts = [one.parts[split] for one in packed]
    num_tokens = sum(part.num_tokens for part in parts)
    num_sequences = (num_tokens - 1) // sequence_tokens
    if num_sequences < 1:
        raise DataInvalid(
            f"the {_NAMES[split]} documents have {num_tokens} tokens, fewer than one sequence "
            f"of {sequence_tokens} and the token after it; give more text or a shorter sequence"
        )
    return Split(
        num_documents=sum(part.num_documents for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        dtype=dtype,
        files=files,
    )
