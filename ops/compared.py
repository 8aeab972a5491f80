"""A run beside its centralised baseline: the gap in nats, and whether the two can be compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from eventlog.errors import AtollError
from leases.findings import Findings

NEAR = 0.02  # of the tokens: a run is as long as its target, rounded up to a block
UNMEASURED = "No version was evaluated, so none can be compared with the baseline: atoll eval"


class BaselineUnreadable(AtollError):
    """A file that is no result of `atoll baseline`."""


class Result(BaseModel):
    """Of what `atoll baseline` wrote, what a run is held beside (docs/steering.md has all of it).
    `curve`: tokens, and the mean training loss since the point before."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["baseline"]
    loss: float
    perplexity: float
    bits_per_byte: float
    num_tokens: PositiveInt
    tokens: PositiveInt
    steps: NonNegativeInt
    batch_sequences: PositiveInt
    lr: float
    num_parameters: PositiveInt
    manifest_digest: str
    curve: list[tuple[NonNegativeInt, float]]


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


def load(path: Path) -> Result:
    """The result that `atoll baseline` wrote. Raises BaselineUnreadable."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BaselineUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where}: {first['msg']}" if where else first["msg"]
        raise BaselineUnreadable(f"{path}: not a result of atoll baseline: {why}") from error


def compare(baseline: Result, found: Findings) -> Compared | None:
    """The run's newest evaluation beside the baseline's; None where the run has none."""
    if not found.evaluations:
        return None
    one = found.evaluations[-1]
    tokens = one.tokens + (found.lineage.tokens if found.lineage else 0)
    return Compared(
        version=one.version,
        loss=one.loss,
        tokens=tokens,
        baseline_loss=baseline.loss,
        baseline_tokens=baseline.tokens,
        gap_nats=one.loss - baseline.loss,
        unlike=tuple(_unlike(baseline, found, tokens)),
    )


def _unlike(baseline: Result, found: Findings, tokens: int) -> list[str]:
    one, why = found.evaluations[-1], []
    if baseline.manifest_digest != found.manifest_digest:
        why.append("other data (manifest digests differ)")
    if baseline.num_parameters != found.num_parameters:
        why.append(f"{found.num_parameters:,} parameters, not {baseline.num_parameters:,}")
    if baseline.num_tokens != one.num_tokens:
        why.append(
            f"measured on {one.num_tokens:,} held-out tokens, not {baseline.num_tokens:,} "
            f"(atoll eval {found.run} measures on all)"
        )
    if abs(tokens - baseline.tokens) > NEAR * baseline.tokens:
        why.append(f"{tokens:,} tokens trained, not {baseline.tokens:,}")
    return why
