"""What partitions have: nodes by state, limits, reservations. sinfo and scontrol, read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ops.placement.slurm.queues import marked
from ops.placement.slurm.values import count, duration_s, instant, unlimited

# partition, whether it is up, state of these nodes, how many, time limit, their names
SINFO_FORMAT = "%R|%a|%T|%D|%l|%N"
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
    limit_s: int | None
    names: str

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
    """What `scontrol show partition` says that a plan depends on; None: no limit, or unknown."""

    name: str
    state: str
    max_nodes: int | None
    max_time_s: int | None
    num_nodes: int | None

    @property
    def up(self) -> bool:
        """Whether it starts jobs; one that is DOWN takes them and lets them wait."""
        return self.state.upper() == "UP"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation. maintenance: nobody's jobs may run in it; partition "" means its nodes only"""

    name: str
    start_s: int
    end_s: int
    num_nodes: int
    nodes: str
    partition: str
    flags: tuple[str, ...]
    users: str
    accounts: str

    @property
    def maintenance(self) -> bool:
        """Whether it is kept for work on the machine."""
        return "MAINT" in self.flags


def read_nodes(out: str) -> list[Nodes]:
    """The lines of a `sinfo -h -o MARK + SINFO_FORMAT`. Empty where nothing was understood."""
    found = []
    for partition, avail, state, num, limit, names in marked(out, 6):
        number = count(num)
        if number is not None:
            up = avail.strip().lower() == "up"
            name = partition.strip().rstrip("*")
            found.append(
                Nodes(name, up, state.strip().lower(), number, duration_s(limit), names.strip())
            )
    return found


def read_partitions(out: str) -> list[Partition]:
    """`scontrol show partition -o`."""
    found = []
    for fields in records(out, "PartitionName"):
        max_time = fields.get("MaxTime", "")
        found.append(
            Partition(
                fields["PartitionName"],
                fields.get("State", ""),
                None
                if unlimited(fields.get("MaxNodes", ""))
                else count(fields.get("MaxNodes", "")),
                duration_s(max_time),
                count(fields.get("TotalNodes", "")),
            )
        )
    return found


def read_reservations(out: str) -> list[Reserved]:
    """`scontrol show reservation -o`; none where it says so, or says nothing that is understood."""
    found = []
    for fields in records(out, "ReservationName"):
        start, end = instant(fields.get("StartTime", "")), instant(fields.get("EndTime", ""))
        if start is None or end is None:
            continue
        found.append(
            Reserved(
                fields["ReservationName"],
                start,
                end,
                count(fields.get("NodeCnt", "")) or 0,
                value(fields, "Nodes"),
                value(fields, "PartitionName"),
                tuple(value(fields, "Flags").split(",")),
                value(fields, "Users"),
                value(fields, "Accounts"),
            )
        )
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
