"""The anchor of a run that has finished, found in its log."""

from __future__ import annotations

from pathlib import Path

from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.errors import AtollError
from eventlog.events import COORDINATOR, KeysNamed, NamedKey, RunCreated, RunFinished
from eventlog.export import read_export, read_header, to_end
from eventlog.signatures import Anchor, AnchorInvalid
from ops.connect import opened
from ops.output import Reach


class NotFinished(AtollError):
    """There is no anchor yet: the run goes on."""


def of_file(path: Path) -> Anchor:
    """Raises NotFinished, AnchorInvalid, LogDamaged."""
    search = _Search(read_header(path))
    search.see(list(read_export(path)))
    return search.found()


async def of_run(run: str, broker: Reach) -> Anchor:
    """Raises NotFinished, AnchorInvalid, and what a log raises that cannot be reached."""
    search = _Search(run)
    async with opened(run, broker, "auditor") as (log, *_):
        async for records in to_end(log):
            search.see(records)
    return search.found()


class _Search:
    """Reads for the run's end and for who may sign it. What it finds proves itself by its
    signature; whether the end counts, the audit says."""

    def __init__(self, run: str) -> None:
        self._run, self._keys = run, list[str]()
        self._ends: list[Record] = []

    def see(self, records: list[Record]) -> None:
        for record in records:
            event = decode(record).event
            if isinstance(event, RunCreated | KeysNamed):
                named: tuple[NamedKey, ...] = event.keys
                self._keys += [one.key for one in named if one.subject == COORDINATOR]
            elif isinstance(event, RunFinished) and record.subject == COORDINATOR:
                self._ends.append(record)

    def found(self) -> Anchor:
        if not self._ends:
            raise NotFinished(f"run {self._run} has not finished: it has no anchor yet")
        for key in self._keys:
            try:
                return Anchor.of(self._run, self._ends[-1], key)
            except AnchorInvalid:
                continue
        raise AnchorInvalid(
            f"run {self._run}: its end is not signed by a key that it names; what can be published "
            "is RUN:SEQUENCE:DIGEST, as `atoll log verify` prints sequence and digest"
        )
