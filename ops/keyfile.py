"""Public keys as files: what `atoll broker keys` prints, and `atoll run create --keys` names."""

from __future__ import annotations

from pathlib import Path

from eventlog.events import NamedKey
from eventlog.keys import is_public
from ops.configure import ConfigInvalid


def read_keys(path: Path) -> tuple[NamedKey, ...]:
    """A key a line: subject, blank, public key; # begins a comment. Raises ConfigInvalid, naming
    the line."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            subject, key = words
            found.append(NamedKey(subject=subject, key=key))
        except ValueError as error:
            raise ConfigInvalid(
                f"{path}:{number}: write a subject and its public key, such as site.alpha U..."
            ) from error
        if not is_public(key):
            raise ConfigInvalid(f"{path}:{number}: {key[:12]}... is no public key: its checksum")
    return tuple(found)
