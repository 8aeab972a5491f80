"""What the coordinator's work outside the log has found: arguments of its decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from eventlog.events import RoundCommitted, SnapshotSaved


@dataclass(frozen=True, slots=True)
class Verdict:
    """What checking a delta's blob found. code '': it may be merged, if its `norm`, which is that
    of the blob's content, is none that the guard refuses (`leases.outliers`)."""

    code: str = ""
    reason: str = ""
    norm: float = 0.0

    @property
    def values(self) -> bool:
        """Whether the cause lies in the delta's own values or form (R14)."""
        return self.code in ("form", "nonfinite", "outlier")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the coordinator's work outside the log has found so far; all of it can be found again.

    verdicts: by delta sequence. merged: the merge of the current cut, ready to commit. saved:
    snapshots stored and not yet in the log. digests: of parameters, momentum and residual now.
    unnamed: blobs in the store that no event named when it was looked at, whole or half, with the
    tick of this term since which they have been as they are.
    """

    verdicts: dict[int, Verdict] = field(default_factory=dict)
    merged: RoundCommitted | None = None
    saved: tuple[SnapshotSaved, ...] = ()
    digests: tuple[str, str, str] | None = None
    refusable: Collection[int] | None = None  # of the verdicts, those that refuse, where known
    unnamed: Mapping[str, int] = field(default_factory=dict)
    folded: tuple[int, str] | None = None  # through which sequence, and the log's digest there

    def bad(self) -> Collection[int]:
        """Deltas whose verdict refuses them."""
        if self.refusable is not None:
            return self.refusable
        return [seq for seq, verdict in self.verdicts.items() if verdict.code]

    def has_judged(self, unjudged: set[int]) -> bool:
        """Whether there is a verdict on each of these deltas; those that have one are taken out, so
        that nobody asks again."""
        while unjudged:
            seq = unjudged.pop()
            if seq not in self.verdicts:
                unjudged.add(seq)
                return False
        return True
