"""What an audit found: the verdict, the figures behind it, and whatever breaks a promise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eventlog.events import Lineage
from leases.evaluators import Evaluated
from leases.overhead import SiteTotal


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise (P1 to P8) that the log breaks, by which rule (R1 to R20), at which sequence; what
    should have been; and the site and block (`epoch:block`) it concerns, where it is one."""

    promise: str
    rule: str
    sequence: int
    what: str
    expected: str = ""
    site: str = ""
    block: str = ""


@dataclass(frozen=True, slots=True)
class Void:
    """An event that is recorded and without effect, in whole or `in part`, and why."""

    sequence: int
    type: str
    why: str


@dataclass(frozen=True, slots=True)
class EpochCount:
    """The blocks of one epoch. `lost` counts in closed epochs, `open` in others; `reclaimed`
    counts how often blocks were taken back, so a block can count more than once."""

    epoch: int
    blocks: int
    merged: int
    open: int
    duplicated: int
    lost: int
    quarantined: int
    reclaimed: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Share:
    """What one site got, gave and lost, in blocks. `reclaimed`: number by cause; `unstarted` and
    `started`: the same blocks, by whether their training had begun."""

    site: str
    granted: int
    merged: int
    stolen: int
    reclaimed: dict[str, int]
    unstarted: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Departure:
    """One departure, and the blocks that it gave back."""

    sequence: int
    site: str
    code: str
    unstarted: int
    started: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A delta refused for what only its blob can tell. `bound`: the norm that the guard may have
    allowed at least, where it was refused as an outlier and anything compared."""

    delta: int
    code: str
    bound: float | None


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of an audit. `model_digest`: parameters of the last committed version, of the
    initial ones where none is; None where the run was never created."""

    run: str
    events: int
    last_sequence: int
    anchored_through: int
    versions: int
    epochs: list[EpochCount]
    blocks_granted: int
    blocks_reclaimed: int
    blocks_stolen: int
    violations: list[Violation]
    void: list[Void]
    shares: list[Share]
    departures: list[Departure]
    overheads: list[SiteTotal]
    evaluations: list[Evaluated]
    lineage: Lineage | None
    manifest_digest: str | None
    num_parameters: int
    log_digest: str
    model_digest: str | None
    signatures: int = 0  # those that named keys had to give, each verified
    published: int | None = None  # through which it is the log of an anchor; None: no anchor, other

    @property
    def ok(self) -> bool:
        """Whether every promise that a log can prove holds in this one."""
        return not self.violations

    @property
    def reclaimed_share(self) -> float:
        """Blocks reclaimed over blocks granted; steals are no reclaims."""
        return self.blocks_reclaimed / self.blocks_granted if self.blocks_granted else 0.0

    def explained(self) -> dict[str, Any]:
        """What `--explain` adds to the documented object."""
        whole = {
            "sites": [asdict(one) for one in self.shares],
            "departures": [asdict(one) for one in self.departures],
            "overheads": [one.as_json() for one in self.overheads],
        }
        for part in ("unstarted", "started"):
            whole[f"reclaimed_{part}"] = sum(getattr(one, part) for one in self.shares)
        return whole

    def as_json(self) -> dict[str, Any]:
        """The documented object (docs/reference.md)."""
        whole = asdict(self)
        del whole["shares"], whole["departures"], whole["overheads"]
        whole["lineage"] = self.lineage.model_dump(mode="json") if self.lineage else None
        whole["evaluations"] = [one._asdict() for one in self.evaluations]
        return {
            "run": whole.pop("run"),
            "ok": self.ok,
            **whole,
            "reclaimed_share": self.reclaimed_share,
        }
