"""Where a broker is, as a person writes it: `nats://HOST:PORT`, or several with commas between."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from broker.errors import BrokerUrlInvalid

PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}  # schemes a broker speaks; their ports
_HOST = re.compile(r"(?=.*[^\d.])[\w.-]+|\d+(\.\d+){3}|[0-9a-fA-F:.%\w]*:[0-9a-fA-F:.%\w]*")


@dataclass(frozen=True, slots=True)
class Servers:
    """`urls`: in the order in which they are tried, each with scheme and port. `shown`: the same
    for people and logs, without what stands before an @."""

    urls: tuple[str, ...]
    shown: str


def servers(text: str) -> Servers:
    """What `text` names. A missing scheme is nats, a missing port that of the scheme. Raises
    BrokerUrlInvalid, which says what is wrong and what to write, and repeats no password."""
    parts = [part.strip() for part in text.split(",")]
    found = [_server(part, text) for part in parts]
    if len({url.scheme in ("ws", "wss") for url in found}) > 1:
        raise _invalid(text, "websockets (ws, wss) and others cannot be mixed", "one kind of them")
    urls = tuple(url.geturl() for url in found)
    return Servers(urls, ",".join(_masked(url) for url in urls))


def _server(part: str, text: str) -> SplitResult:
    scheme, mark, rest = part.partition("://")
    scheme, rest = (scheme.lower(), rest) if mark else ("nats", part)
    if scheme not in PORTS:
        known = f"a broker speaks {', '.join(PORTS)}, not {_masked(scheme)}"
        raise _invalid(text, known, f"nats://{_masked(rest) or 'HOST:PORT'}")
    try:
        url = urlsplit(f"{scheme}://{rest}")
        port = PORTS[scheme] if url.port is None else url.port
    except ValueError as error:
        why = "a port is a number up to 65535" if "ort" in str(error) else str(error).lower()
        raise _invalid(text, why) from error
    host = url.hostname or ""
    if not host:
        raise _invalid(text, "it names no host")
    if not _HOST.fullmatch(host):
        why = "a port alone is no host" if host.isdecimal() else f"{host!r} is no host"
        raise _invalid(text, why, f"nats://HOST:{host}" if host.isdecimal() else "")
    if not port:
        raise _invalid(text, "a port is a number from 1 to 65535")
    if url.query or url.fragment or (scheme in ("nats", "tls") and url.path not in ("", "/")):
        raise _invalid(text, "nothing may follow its port")
    at = url.netloc.rpartition("@")
    name = f"[{host}]" if ":" in host else host
    return url._replace(netloc=f"{at[0]}{at[1]}{name}:{port}", path=url.path.rstrip("/"))


def _invalid(text: str, why: str, write: str = "") -> BrokerUrlInvalid:
    advice = write or "nats://HOST:PORT"
    return BrokerUrlInvalid(f"{_masked(text)!r} is no URL of a broker: {why}; write {advice}")


def _masked(text: str) -> str:
    """Without what may be a user, a password or a token."""
    return re.sub(r"((?:^|,)\s*(?:[^,@/]*://)?)[^,]*@", r"\1***@", text)
