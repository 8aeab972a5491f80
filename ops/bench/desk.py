"""A coordinator without its broker, whose processor time is counted, and the run it has."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eventlog.chain import Record
from eventlog.codec import Entry, content_digest
from eventlog.config import RunConfig
from eventlog.events import (
    COORDINATOR,
    DataShape,
    Event,
    RoundCommitted,
    RunCreated,
    SiteJoined,
    VersionApplied,
)
from eventlog.log import EventLog
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View
from outer.arithmetic import self_test
from outer.facts import Facts, Verdict
from outer.rounds import decide

RUN, SEQUENCE_TOKENS, BLOCK_SEQUENCES, NUM_BLOCKS = "bench", 8, 4, 1 << 20
ARITHMETIC = self_test().operations
MANIFEST = hashlib.sha256(b"manifest").hexdigest()
T = TypeVar("T")


def digest_of(text: str) -> str:
    """A digest that stands for some content."""
    return hashlib.sha256(text.encode()).hexdigest()


def founding(quorum: int, blocks_per_round: int) -> RunCreated:
    """The first event of a run of many rounds, which close 5 s after a quorum."""
    config = RunConfig.model_validate(
        {
            "name": RUN,
            "target": {"rounds": 1_000_000},
            "data": {"block_sequences": BLOCK_SEQUENCES},
            "inner": {"steps": blocks_per_round, "batch_sequences": BLOCK_SEQUENCES},
            "model": {"model_type": "none"},
            "rounds": {"quorum": quorum, "grace_s": 5.0},
        }
    )
    content = config.model_dump(mode="json", exclude_none=True)
    return RunCreated(
        config=content,
        config_digest=content_digest(content),
        data=DataShape(
            manifest_digest=MANIFEST,
            num_sequences=NUM_BLOCKS * BLOCK_SEQUENCES,
            sequence_tokens=SEQUENCE_TOKENS,
            block_sequences=BLOCK_SEQUENCES,
        ),
        parameters_blob=digest_of("initial blob"),
        parameters_digest=digest_of("version 0"),
        num_parameters=1,
        arithmetic=ARITHMETIC,
        arithmetic_digest=digest_of("arithmetic"),
    )


def joining() -> SiteJoined:
    """A site that fits the run."""
    return SiteJoined(hardware={}, software={}, manifest_digest=MANIFEST, arithmetic=ARITHMETIC)


def holding(version: int) -> VersionApplied:
    """A site holds the version, whole."""
    digest = digest_of(f"version {version}")
    return VersionApplied(version=version, parameters_digest=digest, source="update")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of a log in memory."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a log in memory waits for nothing")


@dataclass(slots=True)
class Desk:
    """The coordinator without its broker: folds an event, decides, folds what it decided, until
    nothing is left. Counts its own processor time, and not that of the log."""

    log: EventLog = field(default_factory=lambda: MemoryLog(RUN))
    projection: Projection = field(
        default_factory=lambda: Projection(":memory:", [LeaseTable()], RUN)
    )
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    merged: RoundCommitted | None = None
    seconds: float = 0.0
    num_turns: int = 0
    num_decided: int = 0
    deciding_s: float = 0.0  # of `seconds`, those of turns that decided something
    view: View = field(init=False)
    _pen: Writer = field(init=False)
    _none: set[int] = field(default_factory=set)  # no verdict refuses anything

    def __post_init__(self) -> None:
        self.view = View(self.projection.db)
        self._pen = Writer(self.log, COORDINATOR, chained=True)

    def turn(self) -> list[Entry]:
        """Fold what is new and decide; all that was folded."""
        self.num_turns += 1
        seconds, num_decided = self.seconds, self.num_decided
        folded = self._fold()
        while True:
            began = time.thread_time()
            events = decide(self.view, Facts(self.verdicts, self.merged, (), None, self._none))
            self.seconds += time.thread_time() - began
            if not events:
                if self.num_decided > num_decided:
                    self.deciding_s += self.seconds - seconds
                return folded
            self.num_decided += len(events)
            folded += self.append(events)

    def append(self, events: list[Event]) -> list[Entry]:
        """Append as the coordinator, and fold."""
        began = time.thread_time()
        stamp = Stamp(term=self.view.run().term or None)
        at_once(self._pen.append(events, stamp))
        self.seconds += time.thread_time() - began
        return self._fold()

    def _fold(self) -> list[Entry]:
        position = self.projection.position.sequence
        records: list[Record] = at_once(self.log.read(position, limit=100_000))
        began = time.thread_time()
        folded = []
        for entry, voids in self.projection.apply(records):
            assert not voids[0], voids[0]
            folded.append(entry)
        self._pen.set(*self.view.pen(COORDINATOR))
        self.seconds += time.thread_time() - began
        return folded
