"""Messages as this room passes them around, and their form in the NATS client protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_VERSION = "NATS/1.0"


@dataclass(frozen=True, slots=True)
class Message:
    """What came: `status` is the header of that name ("100", "404", ...), empty in plain data."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def status(self) -> str:
        return self.headers.get("Status", "")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish."""

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] | None = None
    reply: str = ""

    def head(self) -> bytes:
        """What precedes the data on the wire."""
        fields = " ".join(filter(None, (self.subject, self.reply)))
        if not self.headers:
            return f"PUB {fields} {len(self.data)}\r\n".encode()
        pairs = "".join(f"{key}: {value}\r\n" for key, value in self.headers.items())
        block = f"{_VERSION}\r\n{pairs}\r\n".encode()
        sizes = f"{len(block)} {len(block) + len(self.data)}"
        return f"HPUB {fields} {sizes}\r\n".encode() + block


def read_headers(block: bytes) -> dict[str, str]:
    """The headers of a message; of the first line, what follows the version is `Status` and
    `Description`. What is no UTF-8 becomes U+FFFD."""
    first, *lines = block.decode(errors="replace").split("\r\n")
    status, _, description = first.removeprefix(_VERSION).strip().partition(" ")
    headers = {"Status": status, "Description": description.strip()} if status else {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            headers[key.strip()] = value.strip()
    return headers
