"""Traces of real queues, read as they are published; the project ships none of them.

`kth`: KTH-SP2-1996 of the Parallel Workloads Archive (Standard Workload Format; D. Feitelson, from
Lars Malinowsky). `drac` and `pairs`: jobs of Graham in 2021, and `sbatch --test-only` answers
beside true starts on Narval in 2022, both of mila-iqia/slurm-queue-time-pred (MIT).
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from eventlog.errors import AtollError
from ops.placement.machine import TraceJob

KTH, DRAC = "KTH-SP2-1996.swf.gz", "drac_graham_2021.csv.gz"
PAIRS = "narval_testonly_vs_true_start.csv"
KTH_NODES = 100
SEEN_EACH_S = 86400.0  # the DRAC trace holds who waited at a noon


class TraceInvalid(AtollError):
    """A trace is missing, or is not what its name says."""


def folder(given: str | Path | None = None) -> Path:
    """Where traces are: as given, else $ATOLL_TRACES, else ../shared/traces. Raises TraceInvalid
    where there is no such folder."""
    path = Path(given or os.environ.get("ATOLL_TRACES") or "../shared/traces")
    if not path.is_dir():
        raise TraceInvalid(
            f"{path}: no such folder of traces; name it with --traces or in ATOLL_TRACES"
        )
    return path


def kth(path: Path) -> list[TraceJob]:
    """The jobs of KTH-SP2, in the order of submission. Raises TraceInvalid."""
    jobs = []
    for number, line in enumerate(lines(path), 1):
        if line.startswith(";") or not line.strip():
            continue
        try:
            field = [float(text) for text in line.split()]
            submit_s, wait_s, run_s, nodes, limit_s = (field[k] for k in (1, 2, 3, 4, 8))
        except (ValueError, IndexError) as error:
            raise TraceInvalid(f"{path}:{number}: no line of the workload format") from error
        limit_s = max(limit_s, 60.0)
        jobs.append(TraceJob(submit_s, int(nodes), limit_s, min(run_s, limit_s), wait_s))
    return sorted(jobs, key=lambda job: job.submit_s)


@dataclass(frozen=True, slots=True)
class Waited:
    """One job of the DRAC trace. `weight` undoes the sampling: who waits less than a day is seen at
    a noon with probability wait / day."""

    submit_s: float
    nodes: int
    limit_s: float
    wait_s: float
    gpus: int
    partition: str

    @property
    def weight(self) -> float:
        """1 / the probability with which such a job is in the trace."""
        return max(1.0, SEEN_EACH_S / max(self.wait_s, 1.0))


def drac(path: Path) -> list[Waited]:
    """The jobs of Graham, in the order of submission. Raises TraceInvalid."""
    jobs = []
    for number, row in enumerate(csv.DictReader(lines(path)), 2):
        try:
            jobs.append(
                Waited(
                    _epoch(row["submit_time"]),
                    int(row["alloc_nodes"]),
                    float(row["time_limit_sec"]),
                    float(row["submit_wait_sec"]),
                    int(row["gpus"]),
                    row["partition"],
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TraceInvalid(f"{path}:{number}: no row of the DRAC trace") from error
    return sorted(jobs, key=lambda job: job.submit_s)


@dataclass(frozen=True, slots=True)
class Pair:
    """What `sbatch --test-only` said, and when the job really started."""

    estimated_s: float
    started_s: float
    nodes: int
    limit_s: float

    @property
    def late_s(self) -> float:
        """How much later than estimated it started; negative: sooner."""
        return self.started_s - self.estimated_s


def pairs(path: Path) -> list[Pair]:
    """The pairs, in the order of the estimate. Raises TraceInvalid."""
    found = []
    for number, row in enumerate(csv.DictReader(lines(path)), 2):
        try:
            hours, minutes, seconds = (int(part) for part in row["time"].split(":"))
            found.append(
                Pair(
                    _epoch(row["estimate_start_time"]),
                    _epoch(row["true_start_time"]),
                    int(row["n_tasks"]),
                    hours * 3600.0 + minutes * 60 + seconds,
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TraceInvalid(f"{path}:{number}: no row of estimate and start") from error
    return sorted(found, key=lambda pair: pair.estimated_s)


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, unpacked where it is packed. Raises TraceInvalid."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as packed:
                yield from packed
        else:
            with path.open(encoding="utf-8", errors="replace") as plain:
                yield from plain
    except (OSError, EOFError) as error:
        raise TraceInvalid(f"{path}: cannot be read: {error}") from error
