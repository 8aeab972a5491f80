"""What a broker's logs held when it was looked at last, and whether they still do (R19).

A server takes what its files hold for all there ever was: where a file was cut or removed it starts
with fewer events, and gives their sequences to others. So how far each log went is written down
beside the store while it is served, and compared before anybody is let in to write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker import monitor
from eventlog.errors import LogDamaged

FILE = "holdings.json"
_PREFIX, _BLOBS, _MIRROR = "ATOLL_", "_BLOBS", "_MIRROR"
_ASK_S = 30.0


@dataclass(frozen=True, slots=True)
class Held:
    """One stream of events: its first and last sequence, and how many there are."""

    first: int
    last: int
    num: int


def look(monitor_url: str) -> dict[str, Held]:
    """Every log of a server, copies included, as its monitor tells. Raises OSError."""
    url = f"{monitor_url}/jsz?streams=true&limit=100000"
    accounts = json.loads(monitor.ask(url, _ASK_S)).get("account_details") or []
    found = {}
    for account in accounts:
        for stream in account.get("stream_detail") or []:
            name, state = stream["name"], stream["state"]
            if name.startswith(_PREFIX) and not name.endswith(_BLOBS):
                held = Held(state["first_seq"], state["last_seq"], state["messages"])
                found[name] = held
    return found


def problems(before: Mapping[str, int], now: Mapping[str, Held]) -> list[tuple[str, int, str]]:
    """(stream, first sequence that is wrong, what), for each log that lacks something. `before`:
    the last sequence of each when it was looked at last."""
    found = []
    for name, held in sorted(now.items()):
        if held.last and held.first > 1:
            found.append((name, 1, f"its events before {held.first} are gone"))
        elif held.last and held.num != held.last:
            missing = held.last - held.num
            found.append((name, 1, f"{missing} of its {held.last} events are gone"))
        elif held.last < before.get(name, 0):
            what = f"it ends at {held.last}, and went on to {before[name]} before"
            found.append((name, held.last + 1, what))
    for name in sorted(before.keys() - now.keys()):
        found.append((name, 1, f"it is gone, and went on to {before[name]} before"))
    return found


def read(folder: Path) -> dict[str, int]:
    """What was written down; nothing where nothing was. Raises LogDamaged where it cannot be read:
    it is only ever replaced whole."""
    path = folder / FILE
    try:
        said = json.loads(path.read_text())
        return {str(name): int(last) for name, last in said.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise LogDamaged(
            1,
            f"how far each log went cannot be read from {path}: {why}; compare the logs with "
            "copies of them (docs/damage.md), then remove that file",
        ) from error


def write(folder: Path, now: Mapping[str, Held]) -> None:
    """Write down how far each log goes; never less than it went before. Raises OSError."""
    before = read(folder)
    lasts = {name: max(held.last, before.get(name, 0)) for name, held in now.items()}
    _write(folder, {**before, **lasts})


def forget(folder: Path, names: Iterable[str]) -> None:
    """These streams were set aside by a person. Raises OSError."""
    gone = set(names)
    _write(folder, {name: last for name, last in read(folder).items() if name not in gone})


def check(folder: Path, now: Mapping[str, Held]) -> list[str]:
    """What is wrong with second copies, a line each: they are nobody's truth, and what they lack at
    their end they take from the log again. Raises LogDamaged, naming stream and sequence, where a
    log is not what it was; OSError."""
    found = problems(read(folder), now)
    logs = [one for one in found if not one[0].endswith(_MIRROR)]
    if logs:
        name, sequence, what = logs[0]
        more = f" (and {len(logs) - 1} more: {', '.join(n for n, *_ in logs[1:])})"
        raise LogDamaged(
            sequence,
            f"stream {name}: {what}{more if logs[1:] else ''}; nothing is served, so that nothing "
            f"is written on it: `atoll broker restore {_run(name)}`, or docs/damage.md",
        )
    write(folder, now)
    return [
        f"the second copy of run {_run(name)} is damaged at sequence {sequence}: {what}; see "
        f"`atoll log verify {_run(name)} --mirror`, and docs/damage.md"
        for name, sequence, what in found
    ]


def _run(stream: str) -> str:
    return stream.removeprefix(_PREFIX).removesuffix(_MIRROR).lower()


def _write(folder: Path, lasts: Mapping[str, int]) -> None:
    part = folder / f".{FILE}.part"
    with part.open("w") as file:
        json.dump(dict(sorted(lasts.items())), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / FILE)
