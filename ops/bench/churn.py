"""`atoll bench churn`: what a decision costs at 1,000 sites, beside its cost at 3.

A decision is a turn of the coordinator without its broker: it folds what came, asks all its rules,
encodes and folds what it decides, and asks again until nothing is left; mostly that is to decide
nothing. Measured is the processor time of these turns alone, in a steady run in virtual time whose
sites do the same at both sizes: blocks of 3 to 6 s, four a round for the fastest, deltas, new
versions, heartbeats after 2 s of silence; a site in fifty leaves at each block and comes back after
20 s, one in two thousand just dies. Rounds open, close, are committed; idle sites take blocks of
slow ones. Each run is a stretch of as many turns at both sizes, one after the other.

`deciding` counts only the turns in which something was decided, by the events that were decided:
a grant to each of a thousand sites is a thousand of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.bench.fleet import Fleet
from ops.bench.measure import Progress, Report, at_most, measured

SMALL, LARGE = 3, 1000
TURNS_A_RUN = 16_000  # a round and a half of a thousand sites


@dataclass(frozen=True, slots=True)
class _Stretch:
    turn_us: float
    deciding_us: float


def run(quick: bool, progress: Progress) -> Report:
    """Medians of five stretches; of one short one with `quick`."""
    num_runs, num_turns = (1, 2_000) if quick else (5, TURNS_A_RUN)
    fleets = [Fleet(SMALL), Fleet(LARGE)]
    fleets[0].settle(3)
    if quick:
        fleets[1].run(3 * LARGE)
    else:
        fleets[1].settle(1)
    small, large = [], []
    for number in range(num_runs):
        progress("stretches", 2 * number, 2 * num_runs)
        small.append(_stretch(fleets[0], num_turns))
        progress("stretches", 2 * number + 1, 2 * num_runs)
        large.append(_stretch(fleets[1], num_turns))
    progress("stretches", 2 * num_runs, 2 * num_runs)
    versions = fleets[1].desk.view.run().version
    return Report(
        "churn",
        (
            measured(
                "1000 sites",
                [one.turn_us for one in large],
                "µs",
                against="the same at 3 sites",
                against_values=[one.turn_us for one in small],
                target=at_most(3, "ratio"),
            ),
            measured(
                "deciding",
                [one.deciding_us for one in large],
                "µs",
                against="the same at 3 sites",
                against_values=[one.deciding_us for one in small],
            ),
        ),
        num_runs,
        (
            f"processor time of fold and decision, {num_turns} turns a run",
            f"the thousand sites came to version {versions}, {SMALL} sites to "
            f"{fleets[0].desk.view.run().version}",
        ),
    )


def _stretch(fleet: Fleet, num_turns: int) -> _Stretch:
    desk = fleet.desk
    turns, decided = desk.num_turns, desk.num_decided
    seconds, deciding_s = desk.seconds, desk.deciding_s
    fleet.run(num_turns)
    return _Stretch(
        1e6 * (desk.seconds - seconds) / (desk.num_turns - turns),
        1e6 * (desk.deciding_s - deciding_s) / max(1, desk.num_decided - decided),
    )
