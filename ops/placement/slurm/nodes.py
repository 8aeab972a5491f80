"""What partitions have: nodes by state, reservations. sinfo and scontrol, read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ops.placement.slurm.queues import marked
from ops.placement.slurm.values import count, instant

# partition, whether it is up, state of these nodes, how many
SINFO_FORMAT = "%R|%a|%T|%D"
_FREE = {"idle", "planned", "plnd", "npc", "perfctrs", "powered_down", "power_down", "pow_dn"}
_BUSY = {
    "allocated", "alloc", "mixed", "mix", "completing", "comp", "powering_up", "pow_up",
    "reserved", "resv", "power_up", "allocated+", "blocked", "block",
}  # fmt: skip
_KEY = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=")


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of one partition in one state. free, busy: else they are down for whoever waits now;
    what a newer Slurm calls by a name unknown here counts as down."""

    partition: str
    up: bool
    state: str
    num: int

    @property
    def free(self) -> bool:
        """Idle, or asleep and woken for a job; not where it does not answer or is being ended."""
        return _plain(self.state) in _FREE and not set(self.state) & set("*!$@^%-")

    @property
    def busy(self) -> bool:
        """At work, and there again after it."""
        return _plain(self.state) in _BUSY and "*" not in self.state


@dataclass(frozen=True, slots=True)
class Partition:
    """What `scontrol show partition` says of its state."""

    name: str
    state: str

    @property
    def up(self) -> bool:
        """Whether it starts jobs; one that is DOWN takes them and lets them wait."""
        return self.state.upper() == "UP"


@dataclass(frozen=True, slots=True)
class Reserved:
    """Nodes that a reservation keeps from ordinary jobs. partition "": wherever its nodes are."""

    name: str
    start_s: int
    end_s: int
    num_nodes: int
    partition: str


def read_nodes(out: str) -> list[Nodes]:
    """The lines of a `sinfo -h -o MARK + SINFO_FORMAT`. Empty where nothing was understood."""
    found = []
    for partition, avail, state, num in marked(out, 4):
        number = count(num)
        if number is not None:
            up = avail.strip().lower() == "up"
            found.append(Nodes(partition.strip().rstrip("*"), up, state.strip().lower(), number))
    return found


def read_partitions(out: str) -> list[Partition]:
    """`scontrol show partition -o`."""
    return [
        Partition(fields["PartitionName"], fields.get("State", ""))
        for fields in records(out, "PartitionName")
    ]


def read_reservations(out: str) -> list[Reserved]:
    """`scontrol show reservation -o`; none where it says so, or says nothing that is understood."""
    found = []
    for fields in records(out, "ReservationName"):
        start, end = instant(fields.get("StartTime", "")), instant(fields.get("EndTime", ""))
        if start is not None and end is not None:
            num = count(fields.get("NodeCnt", "")) or 0
            name, partition = fields["ReservationName"], value(fields, "PartitionName")
            found.append(Reserved(name, start, end, num, partition))
    return found


def read_hides_jobs(out: str) -> bool:
    """Whether `scontrol show config` says that jobs of others are nobody's business."""
    found = re.search(r"^PrivateData\s*=\s*(\S+)", out, re.MULTILINE)
    return found is not None and not {"jobs", "all"}.isdisjoint(found[1].lower().split(","))


def records(out: str, first: str) -> list[dict[str, str]]:
    """The `Key=Value` records of a `scontrol -o` (one line each), or of one without -o (indented
    lines that follow each other); values may hold blanks. Only records that begin with `first`."""
    found: list[str] = []
    for line in out.splitlines():
        at = line.find(f"{first}=")
        if at >= 0 and not line[:at].strip().endswith("="):
            found.append(line[at:])
        elif found and line.startswith((" ", "\t")):
            found[-1] += " " + line.strip()
    return [_fields(text) for text in found]


def value(fields: dict[str, str], key: str) -> str:
    """A value as text; '' where it is missing or said to be none."""
    text = fields.get(key, "")
    return "" if text in ("(null)", "None assigned", "N/A") else text


def _fields(text: str) -> dict[str, str]:
    marks = list(_KEY.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        fields.setdefault(mark[1], text[mark.end() : end].strip())
    return fields


def _plain(state: str) -> str:
    return state.rstrip("*~#!%$@^-+")
