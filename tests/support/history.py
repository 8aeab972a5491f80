"""What scenarios are made of: a small run, its log, and pens that say what the fold says."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from eventlog.codec import Envelope, content_digest, encode, pack, unpack
from eventlog.config import RunConfig
from eventlog.events import (
    COORDINATOR,
    OPERATOR,
    DataShape,
    Event,
    Lineage,
    RunCreated,
    SiteJoined,
    Token,
)
from eventlog.keys import Key
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp, Writer
from leases.table import LeaseTable
from leases.view import View

T = TypeVar("T")
RUN = "tests"
MANIFEST = "11" * 32
ARITHMETIC = {"decode": "aa" * 32, "merge": "bb" * 32, "encode": "cc" * 32, "step": "dd" * 32}


def name(text: str) -> str:
    """A digest that stands for some content."""
    return hashlib.sha256(text.encode()).hexdigest()


def config(target: dict[str, int] | None = None, **sections: Any) -> RunConfig:
    """A small run: blocks of 4 sequences, H of 3 blocks, a tick every 2 s, K = 8."""
    return RunConfig.model_validate(
        {
            "name": RUN,
            "seed": 7,
            "lease_s": 16.0,
            "target": target or {"epochs": 2},
            "data": {"block_sequences": 4},
            "model": {"model_type": "qwen3"},
            "inner": {"steps": 6, "batch_sequences": 2},
            "rounds": {"quorum": 2, "grace_s": 6.0, "deadline_s": 40.0},
            **sections,
        }
    )


def created(run: RunConfig, num_sequences: int = 22, **changes: Any) -> RunCreated:
    """The run's first event: 22 sequences of 8 tokens give 6 blocks, the last one of 16 tokens."""
    content = run.model_dump(mode="json", exclude_none=True)
    fields: dict[str, Any] = {
        "config": content,
        "config_digest": content_digest(content),
        "data": DataShape(
            manifest_digest=MANIFEST,
            num_sequences=num_sequences,
            sequence_tokens=8,
            block_sequences=run.data.block_sequences,
        ),
        "parameters_blob": name("initial blob"),
        "parameters_digest": name("version 0"),
        "num_parameters": 10,
        "arithmetic": ARITHMETIC,
        "arithmetic_digest": name("arithmetic"),
    }
    return RunCreated.model_validate({**fields, **changes})


def joining(**changes: Any) -> SiteJoined:
    """A site at the door that fits the run."""
    fields = {"hardware": {}, "software": {}, "manifest_digest": MANIFEST, "arithmetic": ARITHMETIC}
    return SiteJoined.model_validate({**fields, **changes})


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of a log in memory."""
    try:
        work.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    raise AssertionError("a log in memory waits for nothing")


class History:
    """A run that was created, folded by one projection. `sites` holds the token of each site's
    newest incarnation; `why` what the fold said of each sequence; `last` the newest event."""

    def __init__(
        self,
        target: dict[str, int] | None = None,
        num_sequences: int = 22,
        *,
        lineage: Lineage | None = None,
        **sections: Any,
    ) -> None:
        self.config = config(target, **sections)
        self.log = MemoryLog(RUN, lambda: 0)
        self.projection = Projection(":memory:", [LeaseTable()], RUN)
        self.view = View(self.projection.db)
        self.sites: dict[str, Token] = {}
        self.keys: dict[str, Key] = {}  # by subject: who signs
        self.why: dict[int, str] = {}
        self.last: Token = (0, "")
        origin: dict[str, Any] = {}
        if lineage is not None:
            origin = {"lineage": lineage, "parameters_digest": lineage.parameters_digest}
        assert self.operator(created(self.config, num_sequences, **origin)) == ""

    # -- appending --------------------------------------------------------------------------------

    def append(self, subject: str, events: Sequence[Event], stamp: Stamp) -> list[str]:
        """What the fold says of each event of one atomic append, by the subject's own pen."""
        pen = Writer(self.log, subject, chained=subject == COORDINATOR, clock=lambda: 0.0)
        pen.key = self.keys.get(subject)
        pen.set(*self.view.pen(subject))
        finish(pen.append(events, stamp))
        return self.fold()

    def raw(self, subject: str, payload: bytes) -> str:
        """What the fold says of bytes that somebody put on a subject."""
        last = finish(self.log.last(subject))
        finish(self.log.append(subject, [payload], last.sequence if last else 0))
        return self.fold()[0]

    def envelope(self, subject: str, event: Event, **changes: Any) -> Envelope:
        """The envelope that the subject's pen would write, or one that differs in `changes`."""
        n, previous, last = self.view.pen(subject)
        fields: dict[str, Any] = {
            "id": f"{subject}-{last}-{n + 1}",
            "type": event.type,
            "version": event.schema_version,
            "run": RUN,
            "source": subject,
            "n": n + 1,
            "at": 0.0,
        }
        if subject == COORDINATOR:
            fields |= {"term": self.view.run().term, "previous": previous or None}
        elif subject.startswith("site."):
            fields["incarnation"] = self.sites.get(subject.partition(".")[2])
        return Envelope(**{**fields, **changes})

    def forged(self, subject: str, event: Event, **changes: Any) -> str:
        """The event under an envelope that differs from the right one in `changes`."""
        envelope = self.envelope(subject, event, **changes)
        wire = unpack(encode(event, envelope))
        return self.raw(subject, pack({**wire, "type": envelope.type, "v": envelope.version}))

    def fold(self) -> list[str]:
        """Fold what is new."""
        records = finish(self.log.read(self.projection.position.sequence))
        folded = self.projection.apply(records)
        for entry, voids in folded:
            self.why[entry.record.sequence] = voids[0]
            self.last = entry.token
        return [voids[0] for _, voids in folded]

    def operator(self, event: Event) -> str:
        return self.append(OPERATOR, [event], Stamp())[0]

    def decide(self, *events: Event, term: int | None = None) -> str:
        """Decisions of the coordinator in one batch; what is void of them."""
        said = self.append(COORDINATOR, events, Stamp(term=term or self.view.run().term))
        return "; ".join(filter(None, said))

    def says(self, site: str, event: Event, incarnation: Token | None = None) -> str:
        """An event of the site's newest incarnation, or of another."""
        return self.append(
            f"site.{site}", [event], Stamp(incarnation=incarnation or self.sites.get(site))
        )[0]
