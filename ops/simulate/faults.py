"""Faults: what they are, and the plan of them that a seed draws.

A plan is a list of plain facts, so that a failing one can be shortened: every fault left out is a
simpler plan. What a fault does to the world is said in `ops.simulate.harm`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = {
    "crash": "hub and trainer of a site die, and come back after a while",
    "gone": "hub and trainer of a site die, and never come back, unless nobody else would be left",
    "trainer": "a trainer dies under its living hub",
    "hang": "a trainer stands still under its living hub",
    "slow": "a trainer is slower for a while",
    "slow link": "whatever a site fetches takes long for a while",
    "pause": "a site's processes are frozen, perhaps beyond their lease, and go on",
    "partition": "a site is cut off from the broker",
    "delivery": "what a site reads is lost, late, doubled and out of order for a while",
    "ambiguous": "a site's next appends time out, stored or not",
    "doubled": "a site's next appends arrive twice",
    "replay": "an old event of a site is appended once more",
    "torn": "a site dies and restarts from an older state of its projection",
    "twin": "a second hub of the same name starts on another machine",
    "successor": "the next job of a site starts elsewhere, while this one still runs",
    "bad": "a site's next delta holds NaN, has another form, huge values, or is torn",
    "rotten": "every delta of a site is bad until its trainer starts anew",
    "poison": "a block makes NaN of every delta that holds it, whoever trains it",
    "blob": "the blob of a site's next delta is acknowledged and lost",
    "lost update": "the next version's update is gone, or damaged, before any site has fetched it",
    "lost blob": "a blob that recovery needs is gone, or damaged; the coordinators may die with it",
    "claims": "a site says that it began, ended or delivered blocks that are not its own",
    "lie": "what a site's next delta says of its blocks is not true",
    "strange": "a site writes what nobody can read: bytes, a newer schema, another's name",
    "walltime": "a site's job nears its end",
    "leave": "a site's job is told to end by a signal",
    "drain": "the operator asks a site to leave",
    "stop and go": "the operator pauses the run, and resumes it",
    "coordinator crash": "a coordinator dies, and comes back after a while",
    "coordinator pause": "a coordinator is frozen, and goes on",
    "coordinator partition": "a coordinator is cut off from the broker",
    "coordinator delivery": "what a coordinator reads is lost, late, doubled, out of order",
    "coordinator ambiguous": "a coordinator's next appends time out, stored or not",
    "coordinator torn": "a coordinator dies and restarts from an older state of its projection",
    "coordinator stale": "a decision of a term that is over arrives, as if nobody had fenced it",
    "coordinator more": "one coordinator more starts",
    "wall clock": "all wall clocks jump",
    "log back": "the broker comes back with an older state of the log, and is then restored",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s`, `kind` befalls `who` (a site's name, or '' with `number` to choose among the
    processes there are) for `duration_s`; `number` also chooses among variants."""

    at_s: float
    kind: str
    who: str
    duration_s: float
    number: int

    def __str__(self) -> str:
        whom = f" {self.who}" if self.who else ""
        return f"{self.at_s:9.3f} s  {self.kind}{whom} ({self.duration_s:.3f} s, {self.number})"


def draw(
    chance: random.Random,
    num: tuple[int, int],
    between_s: tuple[float, float],
    weights: dict[str, float],
    lease_s: float,
) -> list[Fault]:
    """A plan of random faults, in the order of time. Durations: up to three leases."""
    if not weights:
        return []
    kinds = sorted(weights)
    found = [
        Fault(
            at_s=chance.uniform(*between_s),
            kind=kind,
            who="",
            duration_s=lease_s * chance.choice((0.1, 0.3, 0.7, 1.2, 2.0, 3.0)),
            number=chance.randrange(1 << 16),
        )
        for kind in chance.choices(kinds, [weights[k] for k in kinds], k=chance.randint(*num))
    ]
    return sorted(found, key=lambda fault: (fault.at_s, fault.kind, fault.number))
