"""What becomes of a document on its way into the tokens: the stated rules for odd ones, counted.

| found | what is done | counted as |
| --- | --- | --- |
| bytes that are no UTF-8, half a surrogate pair | each becomes U+FFFD | `invalid_utf8` |
| a byte order mark at the beginning | removed | `byte_order_mark` |
| NUL characters | removed | `nul` |
| CR LF | becomes LF; a CR alone stays | `crlf` |
| nothing, or white space alone, is left | no document | `empty` |
| the field of a row is null or not there | no document | `null` |
| the field is something else than text | no document | `not_text` |
| a line that is no JSON object | no document | `damaged` |
| a line of JSON longer than 64 MiB | no document; it is never held in memory | `too_long` |
| a text of more than 16 Mi characters, a file of more than 16 MiB | cut into documents | `cut` |

A document is known by the SHA-256 of its text in UTF-8, after these rules. The first eight bytes of
it decide whether it is held out, the next eight whether a subset takes it: so neither depends on
where it stands, and copies of a text are always on one side of the split.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eventlog.errors import AtollError

MAX_LINE_BYTES = 64 << 20
MAX_CHARACTERS = 16 << 20
ODDITIES = (
    "invalid_utf8",
    "byte_order_mark",
    "nul",
    "crlf",
    "empty",
    "null",
    "not_text",
    "damaged",
    "too_long",
    "cut",
)

Tally = Counter[str]  # how often each of ODDITIES was met


class DataInvalid(AtollError):
    """A source, a setting or a data directory that cannot be trained on; the text says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which documents are taken, and which of them held out. `forced`: the digest (hex) of a
    document that is held out whatever its digest says, so that a small corpus has one."""

    subset: int = 1
    heldout_every: int = 20
    forced: str | None = None

    def takes(self, digest: bytes) -> bool:
        """Whether the subset has the document."""
        return int.from_bytes(digest[8:16], "big") % self.subset == 0

    def holds_out(self, digest: bytes) -> bool:
        """Whether a document that is taken is kept from training."""
        return (
            int.from_bytes(digest[:8], "big") % self.heldout_every == 0
            or digest.hex() == self.forced
        )


@dataclass(frozen=True, slots=True)
class Document:
    """A text by the rules above; `digest` names it."""

    text: str
    num_bytes: int  # in UTF-8
    digest: bytes


def documents(value: Any, tally: Tally) -> Iterator[Document]:
    """The documents that a file's bytes or a row's field are: none, one, or pieces of a long one.
    What is odd is added to `tally`."""
    if value is None:
        tally["null"] += 1
        return
    if isinstance(value, bytes):
        value = decoded(value, tally)
    if not isinstance(value, str):
        tally["not_text"] += 1
        return
    text = _cleaned(value, tally)
    if not text or text.isspace():
        tally["empty"] += 1
        return
    if len(text) > MAX_CHARACTERS:
        tally["cut"] += 1
    for start in range(0, len(text), MAX_CHARACTERS):
        piece = text if len(text) <= MAX_CHARACTERS else text[start : start + MAX_CHARACTERS]
        content = piece.encode()
        yield Document(piece, len(content), hashlib.sha256(content).digest())


def decoded(data: bytes, tally: Tally) -> str:
    """Bytes as UTF-8, what cannot be decoded replaced and counted."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        tally["invalid_utf8"] += 1
        return data.decode(errors="replace")


def pieces(text: str, most: int) -> Iterator[str]:
    """A text in pieces of at most `most` characters, to be encoded one by one: each is cut behind
    its last line end, where it has none behind its last space, where it has neither at `most`."""
    start = 0
    while len(text) - start > most:
        end = text.rfind("\n", start, start + most) + 1 or text.rfind(" ", start, start + most) + 1
        end = end or start + most
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _cleaned(text: str, tally: Tally) -> str:
    if not text.isascii():
        text = _without_halves(text, tally)
        if text.startswith("\ufeff"):
            tally["byte_order_mark"] += 1
            text = text[1:]
    if "\0" in text:
        tally["nul"] += 1
        text = text.replace("\0", "")
    if "\r\n" in text:
        tally["crlf"] += 1
        text = text.replace("\r\n", "\n")
    return text


def _without_halves(text: str, tally: Tally) -> str:
    """JSON can say half a surrogate pair, which no UTF-8 can: two that belong together become
    their character, one alone U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        tally["invalid_utf8"] += 1
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
