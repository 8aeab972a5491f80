"""Numbers, durations and instants as Slurm prints them; None is "unknown", never 0.

Instants are epoch seconds: every command runs with TZ=UTC and SLURM_TIME_FORMAT=%s, and where a
version or a site overrides that, its ISO date is read as UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_NO_VALUE = {
    "", "N/A", "NA", "NONE", "NULL", "(NULL)", "UNKNOWN", "INVALID", "NOT_SET", "PARTITION_LIMIT",
    "UNLIMITED", "INFINITE",
}  # fmt: skip
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# ASCII digits, and no more of them than anything counted here has
_COUNT = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?([KMG]?)(?:-[0-9]+(?:\.[0-9]+)?[KMG]?)?\Z")
_CLOCK = re.compile(
    r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?(?:\.[0-9]+)?\Z"
)
_WHOLE = re.compile(r"[0-9]{1,12}\Z")
_DAY_S = 86_400
_FIRST_EPOCH = 100_000_000  # 1973: a smaller number is no instant, but an id or a duration


def whole(text: str) -> int | None:
    """A number of ASCII digits, twelve at most; None where it is none."""
    return int(text) if _WHOLE.match(text) else None


def count(text: str) -> int | None:
    """A number of nodes: `12`, `2K` (2048), `1.50K`, or the least of a range `1-4`."""
    match = _COUNT.match(text.strip().upper())
    if match is None:
        return None
    number = float(f"{match[1]}.{match[2] or 0}") * _SUFFIXES[match[3]]
    return round(number)


def duration_s(text: str) -> int | None:
    """A time limit or an elapsed time: `30` (minutes), `30:00`, `2:00:00`, `1-00`, `1-00:00:00`.
    None where there is none or it is not known."""
    text = text.strip()
    match = _CLOCK.match(text)
    if text.upper() in _NO_VALUE or match is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:  # D-HH[:MM[:SS]]
        return days * _DAY_S + first * 3600 + second * 60 + third
    if match[4] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second  # MM[:SS]


def instant(text: str) -> int | None:
    """Epoch seconds of `1795961711`, `2026-11-29T14:15:11` or one with an offset; None for N/A,
    Unknown and formats that leave the day to the reader (`Tue 14:15`)."""
    text = text.strip()
    if text.upper() in _NO_VALUE:
        return None
    if (epoch_s := whole(text)) is not None:
        return epoch_s if epoch_s >= _FIRST_EPOCH else None
    try:
        moment = datetime.fromisoformat(re.sub(r"([+-]\d\d)(\d\d)\Z", r"\1:\2", text))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp())) or None


def as_limit(walltime_s: int) -> str:
    """A walltime for `--time`: whole minutes, rounded up, as HH:MM:00."""
    minutes = -(-walltime_s // 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def as_utc(epoch_s: int) -> str:
    """An instant for `sacct -S` of a command that runs with TZ=UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
