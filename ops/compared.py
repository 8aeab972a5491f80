"""A run beside its centralised baseline: the gap in nats, and whether the two can be compared."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eventlog.errors import AtollError
from leases.findings import Findings

_NUMBERS = ("loss", "perplexity", "bits_per_byte", "num_tokens", "tokens", "num_parameters")
NEAR = 0.02  # of the tokens: a run is as long as its target, rounded up to a block


class BaselineUnreadable(AtollError):
    """A file that is no result of `atoll baseline`."""


@dataclass(frozen=True, slots=True)
class Compared:
    """gap_nats: held-out loss of the run's version minus the baseline's; above 0 the run is worse.
    unlike: what keeps the two from being compared as they are."""

    version: int
    loss: float
    tokens: int
    baseline_loss: float
    baseline_tokens: int
    gap_nats: float
    unlike: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return {**asdict(self), "unlike": list(self.unlike)}

    def line(self) -> str:
        """For people."""
        said = (
            f"Against the centralised baseline: {self.loss:.4f} − {self.baseline_loss:.4f} = "
            f"{self.gap_nats:+.4f} nats, version {self.version} after {self.tokens:,} tokens, the "
            f"baseline after {self.baseline_tokens:,}"
        )
        return said + (f". Not like with like: {'; '.join(self.unlike)}" if self.unlike else "")


def load(path: Path) -> dict[str, Any]:
    """The result that `atoll baseline` wrote. Raises BaselineUnreadable."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BaselineUnreadable(f"{path}: cannot be read as JSON: {error}") from error
    numbers = isinstance(found, dict) and all(
        isinstance(found.get(name), int | float) for name in _NUMBERS
    )
    if not numbers or found.get("kind") != "baseline":
        raise BaselineUnreadable(f"{path}: not a result of atoll baseline")
    content: dict[str, Any] = found
    return content


def compare(baseline: dict[str, Any], found: Findings) -> Compared | None:
    """The run's newest evaluation beside the baseline's; None where the run has none."""
    if not found.evaluations:
        return None
    one = found.evaluations[-1]
    tokens = one.tokens + (found.lineage.tokens if found.lineage else 0)
    return Compared(
        version=one.version,
        loss=one.loss,
        tokens=tokens,
        baseline_loss=float(baseline["loss"]),
        baseline_tokens=int(baseline["tokens"]),
        gap_nats=one.loss - float(baseline["loss"]),
        unlike=tuple(_unlike(baseline, found, tokens)),
    )


def _unlike(baseline: dict[str, Any], found: Findings, tokens: int) -> list[str]:
    one, why = found.evaluations[-1], []
    if baseline.get("manifest_digest") != found.manifest_digest:
        why.append("other data (manifest digests differ)")
    if baseline["num_parameters"] != found.num_parameters:
        why.append(f"{found.num_parameters:,} parameters, not {baseline['num_parameters']:,}")
    if baseline["num_tokens"] != one.num_tokens:
        why.append(
            f"measured on {one.num_tokens:,} held-out tokens, not {baseline['num_tokens']:,} "
            f"(atoll eval {found.run} measures on all)"
        )
    if abs(tokens - baseline["tokens"]) > NEAR * baseline["tokens"]:
        why.append(f"{tokens:,} tokens trained, not {baseline['tokens']:,}")
    return why
