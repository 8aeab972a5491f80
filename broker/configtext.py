"""Text within a nats-server configuration."""

from __future__ import annotations

import os


def quoted(text: str) -> str:
    """A string of the configuration, in ASCII: every other byte of a path, whatever the locale, as
    the escape that the server knows (it does not know JSON's)."""
    plain = range(0x20, 0x7F)
    parts = (
        chr(byte) if byte in plain and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f'"{"".join(parts)}"'
