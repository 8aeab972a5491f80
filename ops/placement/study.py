"""What placement is worth: every policy on the same replicas, with intervals; pure but for
progress.

Replica k of seed n has the same queues for every policy. A mean's interval is that of its replicas;
a reduction 1 - mean(policy) / mean(baseline) has the interval of paired ratios (delta method).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import fmean, median, quantiles
from typing import Any

from ops.placement.policies import Greedy, Planning
from ops.placement.settings import Setting
from ops.placement.world import Policy, Tally, Together, World

BASELINE = "wait-for-all"
POLICIES = (
    BASELINE,
    "wait-for-all-burning",
    "elastic",
    "elastic-chain",
    "history",
    "raw",
    "calibrated",
    "oracle",
)
HORIZON = 40.0  # of a run, in its duration and ten mean waits
Z = 1.96


def policy(name: str, setting: Setting, seed: str) -> Policy:
    """A policy at the beginning of a replica, with what it may know."""
    if name == BASELINE:
        return Greedy(together=Together.HELD_FREE)
    if name == "wait-for-all-burning":
        return Greedy(together=Together.BURNING)
    if name in ("elastic", "elastic-chain"):
        return Greedy(chain=name == "elastic-chain")
    return Planning(name, setting.past(seed, name), setting.group)


def replica(setting: Setting, name: str, duration: float, seed: str) -> Tally:
    """One run of one policy. Not at the target within the horizon: its time is the horizon."""
    horizon_s = HORIZON * (duration + 10) * setting.mean_wait_s
    world = World(setting.sites, setting.queues(seed), setting.work(duration), horizon_s)
    return world.run(policy(name, setting, seed))


@dataclass(frozen=True, slots=True)
class Result:
    """One policy over all replicas, in their order."""

    policy: str
    duration: float
    tallies: tuple[Tally, ...]
    horizon_s: float

    @property
    def times_s(self) -> list[float]:
        """To the target; the horizon, for a run that was not at it by then."""
        return [min(one.time_s, self.horizon_s) for one in self.tallies]


def compare(
    setting: Setting,
    names: Sequence[str],
    duration: float,
    seed: int,
    num_replicas: int,
    progress: Callable[[str, int, int], None],
) -> list[Result]:
    """Every policy on the same replicas."""
    horizon_s = HORIZON * (duration + 10) * setting.mean_wait_s
    found = []
    for name in names:
        tallies = []
        for number in range(num_replicas):
            tallies.append(replica(setting, name, duration, f"{seed}/{number}"))
            progress(name, number + 1, num_replicas)
        found.append(Result(name, duration, tuple(tallies), horizon_s))
    return found


def pooled(results: Sequence[Result]) -> list[Result]:
    """One result a policy, of the replicas of all seeds."""
    found: dict[str, Result] = {}
    for one in results:
        before = found.get(one.policy)
        tallies = one.tallies if before is None else before.tallies + one.tallies
        found[one.policy] = replace(one, tallies=tallies)
    return list(found.values())


def paired(rows: Sequence[dict[str, Any]], chain: str) -> dict[str, list[int]]:
    """In how many seeds of how many each policy was faster, in the mean, than the chain."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row["policy"] != chain:
            won, num = found.get(row["policy"], [0, 0])
            found[row["policy"]] = [won + (row["reduction_against_chain"] > 0), num + 1]
    return found


def summary(
    result: Result, baseline: Result, chain: Result | None, unit_s: float
) -> dict[str, Any]:
    """The stable form: times in hours, and what is gained over the baselines."""
    times = result.times_s
    mean_s = fmean(times)
    days = sum(times) / 86400
    told: dict[str, Any] = {
        "policy": result.policy,
        "duration": result.duration,
        "mean_wait_hours": unit_s / 3600,
        "replicas": len(times),
        "unfinished": sum(one.time_s == inf for one in result.tallies),
        "time_to_target_hours": {
            "mean": mean_s / 3600,
            "mean_interval": [edge / 3600 for edge in _interval(times)],
            "median": median(times) / 3600,
            "q90": _q90(times) / 3600,
        },
        "node_hours": fmean(one.node_s for one in result.tallies) / 3600,
        "idle_node_hours": fmean(one.idle_node_s for one in result.tallies) / 3600,
        "no_site_hours": fmean(one.dark_s for one in result.tallies) / 3600,
        "probes_a_day": sum(one.num_probes for one in result.tallies) / days,
        "submissions_a_day": sum(one.num_submissions for one in result.tallies) / days,
    }
    told["reduction_of_mean"], told["reduction_interval"] = reduction(times, baseline.times_s)
    if chain is not None:
        gained, interval = reduction(times, chain.times_s)
        told["reduction_against_chain"], told["chain_interval"] = gained, interval
    return told


def reduction(times: Sequence[float], others: Sequence[float]) -> tuple[float, list[float]]:
    """1 - mean / mean of the others, on the same replicas, with its 95 % interval."""
    ratio = fmean(times) / fmean(others)
    if len(times) < 2:
        return 1 - ratio, [1 - ratio, 1 - ratio]
    errors = [a - ratio * b for a, b in zip(times, others, strict=True)]
    spread = sqrt(sum(one * one for one in errors) / (len(errors) - 1) / len(errors))
    half = Z * spread / fmean(others)
    return 1 - ratio, [1 - ratio - half, 1 - ratio + half]


def _interval(times: Sequence[float]) -> list[float]:
    mean = fmean(times)
    if len(times) < 2:
        return [mean, mean]
    spread = sqrt(sum((one - mean) ** 2 for one in times) / (len(times) - 1) / len(times))
    return [mean - Z * spread, mean + Z * spread]


def _q90(times: Sequence[float]) -> float:
    return quantiles(times, n=10, method="inclusive")[-1] if len(times) > 1 else times[0]
