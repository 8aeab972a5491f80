"""Caps on bytes per second, as people write them: 50MB, 400kB/s, 100Mbit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from eventlog.pace import Pace

_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(|k|M|G|Ki|Mi|Gi)(B|bit)(?:/s)?")
MIN_BYTES_PER_S = 10_000.0  # below, one chunk takes minutes


def bytes_per_s(text: str) -> float:
    """Raises click.BadParameter."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r}: write 50MB, 400kB/s, 20MiB or 100Mbit")
    rate = float(match[1]) * _PREFIXES[match[2]] / (8 if match[3] == "bit" else 1)
    if rate < MIN_BYTES_PER_S:
        raise click.BadParameter(f"{text!r}: at least 10kB; less than that moves no model")
    return rate


def _convert(_: Any, __: Any, text: str | None) -> float | None:
    return None if text is None else bytes_per_s(text)


max_rate_option = click.option(
    "--max-rate",
    metavar="RATE",
    envvar="ATOLL_MAX_RATE",
    callback=_convert,
    help="Most bytes a second for blobs, up and down together: 50MB, 20MiB/s, 100Mbit "
    "[env: ATOLL_MAX_RATE].",
)


def pace_of(max_rate: float | None) -> Pace | None:
    """The cap as transfers take it."""
    from eventlog.pace import Pace

    return None if max_rate is None else Pace(max_rate)
