"""What an error of a scheduler means: ask again (transient), never (permanent), or mend it (ours).

The texts are those of `slurm_strerror`, and of sbatch, squeue, sinfo, sacct and scontrol, from
17.02 to 26.05 (src/common/slurm_errno.c; wordings that changed are listed in all forms). What is
not known here is transient: it is asked again, with back-off, and shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """permanent: this request will never be granted; transient: later it may; ours: a mistake in
    the profile or script, or in atoll; a person must mend it."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One error. `silent`: the controller gave no answer, so what was asked may still happen."""

    kind: Kind
    text: str
    silent: bool = False


# No answer: the request may be in flight, or have been carried out.
_SILENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|connection timed out|"
    r"zero bytes were transmitted|transport endpoint is not connected|unexpected message received|"
    r"message (?:receive|send) (?:failure|timeout)|slurmctld communication|connection reset|"
    r"insane message length|communications connection failure|protocol authentication error|"
    r"unable to contact the controller|header lengths are longer|broken pipe|no response",
    re.IGNORECASE,
)
_TRANSIENT = re.compile(
    r"temporarily unable|try again|resource temporarily|slurm_persist_conn|problem talking to|"
    r"unable to connect to database|slurmdbd|job violates accounting/qos policy|"
    r"requested nodes? (?:are )?busy|submit limit|MaxSubmitJob|MaxJobs|too many (?:jobs|requests)|"
    r"rate limit|RPC|nodes? (?:are )?(?:down|drained)|node configuration is not available|"
    r"required node not available|partition (?:is )?(?:down|inactive|in an unavailable)|"
    r"job credential|munge encode failed|slurm backup controller|in standby mode|"
    r"cannot be satisfied now|reservation is not (?:currently )?active|"
    r"licenses? (?:are )?not available|already in progress|disk quota|no space left",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r"node count specification invalid|more processors requested than permitted|"
    r"MaxNodePerJob|MaxWallDurationPerJob|MaxCpuPerJob|MaxTRESPerJob|MaxTRESPerNode|MinTRES|"
    r"requested time limit is invalid|time limit (?:exceeds|specification)|MinCpus|"
    r"requires? more|exceeds? (?:some|partition|the) .*limit|invalid feature specification|"
    r"(?:account|association).*expired|memory specification can not be satisfied",
    re.IGNORECASE,
)
_OURS = re.compile(
    r"invalid (?:partition|account|qos|job id|option|--|user|wckey|generic resource|license|"
    r"trackable|gres|node name|dependency|argument|reservation)|"
    r"requested reservation is invalid|reservation .*(?:invalid|does not exist)|"
    r"access/permission denied|permission denied|user'?s? group not permitted|"
    r"unable to open file|no such file|not found|does not look like a batch script|"
    r"dos line breaks|unrecognized option|unknown option|is an invalid entry|no cluster|"
    r"accounting storage is disabled|job/step already completing|must specify|"
    r"(?:line must start|interpreter)|batch script|"
    r"(?:unable|failed) to (?:stat|read) .*(?:script|conf)|invalid job array|illegal",
    re.IGNORECASE,
)
_PREFIX = re.compile(
    r"^(?:sbatch|squeue|sinfo|sacct|scontrol|scancel): ?(?:error|fatal)?:? ?", re.I
)


def trouble(text: str) -> Trouble:
    """The kind of an error by all that the command said; a silent controller wins over the rest."""
    said = shown(text)
    for pattern, kind, silent in (
        (_SILENT, Kind.TRANSIENT, True),
        (_PERMANENT, Kind.PERMANENT, False),
        (_TRANSIENT, Kind.TRANSIENT, False),
        (_OURS, Kind.OURS, False),
    ):
        if pattern.search(said):
            return Trouble(kind, said, silent)
    return Trouble(Kind.TRANSIENT, said or "it failed without a word")


def shown(text: str) -> str:
    """An error for a person: one line, each part once, without the command's name before it."""
    parts: list[str] = []
    for line in text.splitlines():
        part = _PREFIX.sub("", line.strip())
        if part and part not in parts:
            parts.append(part)
    return "; ".join(parts)[:1000]
