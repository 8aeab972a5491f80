"""A credentials file: who somebody is to the broker, where it is, and by what it is known.

One file, readable by its owner only, holds all that a process needs: URLs, the authority's
certificate, the key's seed. It never stands in a script, an environment or an argument; its name
does.
"""

from __future__ import annotations

import json
import ssl
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

from broker.files import write_secret
from broker.roles import User
from eventlog.errors import AtollError
from eventlog.keys import Key, KeyInvalid

_VERSION = 1


class CredentialsInvalid(AtollError):
    """A credentials file cannot be used: the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`urls`: of the broker, separated by commas. `ca`: PEM of the authority that signed its
    certificate; empty where the system's own are asked. `num_replicas`: of a new run's streams."""

    role: str
    name: str
    urls: str
    seed: str = field(repr=False)
    ca: str = ""
    num_replicas: int = 1

    @property
    def key(self) -> Key:
        return Key.of_seed(self.seed)

    @property
    def user(self) -> User:
        """As the broker knows them."""
        return User(self.role, self.name, self.key.public)

    def tls(self) -> ssl.SSLContext:
        """Trusts this broker's authority, and no other where one is named."""
        context = ssl.create_default_context(cadata=self.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    @classmethod
    def read(cls, path: Path) -> Credentials:
        """Raises CredentialsInvalid: also where others than the owner may read the file."""
        try:
            mode = path.stat().st_mode
            found = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no JSON"
            raise CredentialsInvalid(
                f"credentials {path}: {why}; the broker's operator issues them "
                "(`atoll broker add-site`)"
            ) from error
        if stat.S_IMODE(mode) & 0o077:
            raise CredentialsInvalid(
                f"credentials {path}: others may read them; `chmod 600 {path}`, and have them "
                "issued anew if others may have"
            )
        try:
            if found.pop("version") != _VERSION:
                raise CredentialsInvalid(f"credentials {path}: of another version; upgrade atoll")
            self = cls(**found)
            self._check()
        except (AttributeError, KeyError, TypeError, ValueError, KeyInvalid) as error:
            raise CredentialsInvalid(
                f"credentials {path}: not what was issued ({error}); have them issued anew"
            ) from error
        return self

    def _check(self) -> None:
        """Raises ValueError, TypeError or KeyInvalid where a part of it is of no use."""
        for name in ("role", "name", "urls", "seed", "ca"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"its {name} is no text")
        if type(self.num_replicas) is not int or self.num_replicas not in range(1, 6):
            raise ValueError("its num_replicas is no number of copies")
        self.user.check()
        try:
            if self.ca:
                self.tls()
        except ssl.SSLError as error:
            raise ValueError("its ca is no certificate") from error

    def write(self, path: Path) -> None:
        """Make the file, for its owner only; replaces one whole. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(path, json.dumps({"version": _VERSION, **asdict(self)}, indent=1) + "\n")
