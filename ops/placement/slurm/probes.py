"""What sbatch said: the start that --test-only expects, or the id of a job that was submitted.

Forms of the estimate, all on stderr (src/sbatch/opt.c and slurm_job_submit's callers by version):
up to 17.11, and heterogeneous jobs, `... using P processors on NODES`; 18.08 to 24.11 `... on nodes
NODES in partition PART`; 25.05 on `... at T[ on cluster C] a using ...`. allocated: salloc and srun
say `to start at` too. Banners, charge notices and `Preempts: ids` may stand around the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ops.placement.slurm.troubles import Kind, Trouble, trouble
from ops.placement.slurm.values import instant

_ESTIMATE = re.compile(
    r"(?:sbatch|salloc|srun|allocation):? (?:info: )?[Jj]ob (?P<id>\d+(?:[_+]\d+)?) to start at "
    r"(?P<at>.+?)(?: on cluster (?P<cluster>\S+))?(?: a)? using (?P<cpus>\d+) processors on "
    r"(?:nodes )?(?P<nodes>\S*?)(?: in partition (?P<partition>\S+))?\s*\Z"
)
_SUBMITTED = re.compile(r"(?:sbatch: )?Submitted batch job (\d+)(?: on cluster \S+)?\s*\Z")
_PARSABLE = re.compile(r"(\d+)(?:;[\w.-]+)?\s*\Z")
_PREEMPTS = re.compile(r"(?:sbatch:\s+)?Preempts: (\S.*)\Z")
_FAILURE = re.compile(r"error|failure|fatal|invalid|denied|unable|timed out|limit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a probe was told. start_s: epoch, None where Slurm said that it does not know."""

    start_s: int | None
    nodes: str = ""
    partition: str = ""
    preempts: str = ""


def read_probe(code: int, out: str, err: str) -> Estimate | Trouble:
    """The estimate in what `sbatch --test-only` said, or its trouble. An exit code of 0 without a
    line that is understood (as with -Q) is an unknown start, and no trouble."""
    found = [match for line in lines(err, out) if (match := _ESTIMATE.search(line))]
    if code == 0 and found:
        last = found[-1]  # the whole line comes last, whatever a banner quotes
        more = [match[1] for line in lines(err, out) if (match := _PREEMPTS.search(line))]
        return Estimate(
            instant(last["at"]), last["nodes"], last["partition"] or "", more[-1] if more else ""
        )
    if code == 0:
        return Estimate(None)
    return trouble(complaint(err, out))


def read_submit(code: int, out: str, err: str) -> str | Trouble:
    """The id of the submitted job, or the trouble. 0 without an id is a controller that says
    nothing we understand: the job may exist, and is looked for by its name."""
    if code != 0:
        return trouble(complaint(err, out))
    for pattern in (_PARSABLE, _SUBMITTED):
        for line in reversed(lines(out, err)):
            if match := pattern.match(line):
                return match[1]
    return Trouble(Kind.TRANSIENT, "sbatch ended well and named no job", silent=True)


def complaint(err: str, out: str) -> str:
    """The lines that complain; all of stderr where none does, so that nothing is lost."""
    bad = [line for line in lines(err, out) if _FAILURE.search(line)]
    return "\n".join(bad) or err.strip() or out.strip()


def lines(*texts: str) -> list[str]:
    """The lines of several outputs without what surrounds them, empty ones left out."""
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]
