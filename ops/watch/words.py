"""Events in words: who did what, and why. One sentence each, safe on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from eventlog.codec import Entry
from ops.describe import brief, clean
from outer.waiting import names

UNTOLD = {"coordinator.tick", "site.heartbeat"}  # the pulse; shown as ages
ROUTINE = {
    "block.started",
    "block.completed",
    "version.applied",
    "snapshot.saved",
    "blobs.released",
    "placement.probed",
    "queue.observed",
    "job.observed",
}  # shown as numbers; told only where they are void


@dataclass(frozen=True, slots=True)
class Told:
    """An event worth a line. `void`: why it is without effect, wholly or in part; else ''. `type`
    is '' where the event cannot be read at all."""

    sequence: int
    time_ns: int
    who: str
    what: str
    reason: str
    void: str
    type: str

    def clock(self) -> str:
        """The broker's time of day, UTC."""
        return time_of_day(self.time_ns // 1_000_000_000)

    def why(self) -> str:
        """What stands behind the dash: the reason, and why it is void."""
        colon = "" if self.void.startswith("in part") else ":"
        void = f"void{colon} {self.void}" if self.void else ""
        return "; ".join(part for part in (self.reason, void) if part)

    def line(self) -> str:
        """One line: date and time of the broker, sequence, who, what, why."""
        moment = datetime.fromtimestamp(self.time_ns // 1_000_000_000, UTC)
        why = f" — {self.why()}" if self.why() else ""
        stamp = moment.strftime("%Y-%m-%d %H:%M:%S")
        return f"{stamp}Z  #{self.sequence:<6} {self.who:<12} {self.what}{why}"


def time_of_day(time_s: float) -> str:
    """Hours, minutes, seconds of a time (Unix seconds), UTC."""
    return datetime.fromtimestamp(int(time_s), UTC).strftime("%H:%M:%S")


def tell(entry: Entry, void: str) -> Told | None:
    """The event in words, or None where it is not worth a line: the pulse, and routine that took
    effect."""
    kind = entry.envelope.type if entry.envelope else ""
    if kind in UNTOLD or (kind in ROUTINE and not void):
        return None
    event, who = entry.event, entry.record.subject.partition(".")
    name = who[2] if who[0] == "site" else " ".join(part for part in (who[0], who[2]) if part)
    if event is None:
        what, reason, void = f"wrote what cannot be read here: {kind or '?'}", "", entry.problem
    else:
        say = _SAYINGS.get(kind)
        what = say(event) if say else f"{kind} {brief(entry)}"
        reason = str(getattr(event, "reason", ""))
    record = entry.record
    said = (clean(text) for text in (name, what, reason, void, kind))
    return Told(record.sequence, record.time_ns, *said)


def _granted(event: Any) -> str:
    return f"granted {event.site} {_blocks(len(event.blocks))} of epoch {event.epoch}"


def _opened(event: Any) -> str:
    quotas = "+".join(str(quota.blocks) for quota in event.quotas) or "0"
    plural = "" if quotas == "1" else "s"
    return f"opened round {event.round} on version {event.base_version} ({quotas} block{plural})"


def _published(event: Any) -> str:
    tokens = sum(block.tokens for block in event.blocks)
    what = f"published a delta of {_blocks(len(event.blocks))}, {tokens:,} tokens"
    return f"{what}, on version {event.base_version}" + (", its last" if event.last else "")


def _closed(event: Any) -> str:
    sites = names(sorted({cut.site for cut in event.deltas}))
    return f"cut round {event.round}: {event.tokens:,} tokens from {sites}"


def _joined(event: Any) -> str:
    as_what = " as the successor job" if event.successor else ""
    return "asks to be admitted" + as_what


def _evaluated(event: Any) -> str:
    return f"evaluated version {event.version}: perplexity {event.perplexity:.4g} on held-out text"


def _ended(event: Any) -> str:
    return f"job {event.job_name} ended: {event.outcome} {event.message}".rstrip()


def _planned(event: Any) -> str:
    do = [one for one in event.actions if one.get("do") != "hold"]
    what = ", ".join(f"{one.get('do')} at {one.get('site')}" for one in do) or "nothing to do"
    return f"planned: {what}"


def _blocks(number: int) -> str:
    return f"{number} block" + ("" if number == 1 else "s")


_SAYINGS: dict[str, Callable[[Any], str]] = {
    "run.created": lambda e: f"created the run: {e.num_parameters:,} parameters",
    "run.paused": lambda e: "paused the run",
    "run.resumed": lambda e: "resumed the run",
    "run.stopped": lambda e: "asked the run to stop",
    "run.drain_requested": lambda e: f"asked {e.site} to leave",
    "run.finished": lambda e: f"finished the run at version {e.version}, {e.tokens:,} tokens",
    "coordinator.elected": lambda e: f"{e.holder} coordinates from here on",
    "site.joined": _joined,
    "site.admitted": lambda e: f"admitted {e.site}",
    "site.refused": lambda e: f"refused {e.site} ({e.code})",
    "site.departing": lambda e: f"is leaving ({e.code})",
    "site.departed": lambda e: f"departed {e.site} ({e.code}); what it had not delivered goes back",
    "round.opened": _opened,
    "round.closed": _closed,
    "round.committed": lambda e: f"committed version {e.version} ({e.tokens:,} tokens)",
    "lease.granted": _granted,
    "lease.reclaimed": lambda e: f"took {_blocks(len(e.blocks))} back from {e.site}",
    "lease.stolen": lambda e: f"moved {_blocks(len(e.blocks))} away from {e.site}",
    "delta.published": _published,
    "delta.refused": lambda e: f"refused a delta of {e.site} ({e.code})",
    "epoch.closed": lambda e: f"closed epoch {e.epoch}: {e.blocks} blocks, {e.tokens:,} tokens",
    "block.quarantined": lambda e: f"quarantined block {e.epoch}:{e.block}",
    "block.started": lambda e: f"started block {e.epoch}:{e.block}",
    "block.completed": lambda e: f"completed block {e.epoch}:{e.block}",
    "version.applied": lambda e: f"applied version {e.version}",
    "evaluation.completed": _evaluated,
    "job.intended": lambda e: f"is about to submit job {e.job_name}",
    "job.submitted": lambda e: f"submitted job {e.job_name} as {e.job_id}",
    "job.ended": _ended,
    "agent.reported": lambda e: f"is {e.state}" + (f": {e.message}" if e.message else ""),
    "placement.planned": _planned,
}
