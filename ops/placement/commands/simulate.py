"""`atoll place simulate`: what being elastic and what placement is worth, by policy and model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.output import Meter, json_option, print_json
from ops.placement.settings import MODELS
from ops.placement.study import BASELINE, POLICIES

if TYPE_CHECKING:
    from ops.placement.study import Result

CHAIN = "elastic-chain"


@click.command()
@click.option(
    "--model",
    type=click.Choice(MODELS),
    default="exponential",
    show_default=True,
    help="Where waits come from.",
)
@click.option(
    "--sites",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Sites of equal speed.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice([*POLICIES, "all"]),
    metavar="NAME",
    help="What decides; may be given again. Without it, all.",
)
@click.option(
    "--duration",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Training time with all sites live, in mean waits.",
)
@click.option(
    "--walltime",
    type=click.FloatRange(0.01),
    help="Of exponential and lognormal waits: the longest job, in mean waits; else no limit.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The seed.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many seeds, from --seed: also tells how often a policy beats elastic-chain.",
)
@click.option(
    "--replicas", type=click.IntRange(2), help="Runs of each policy; by default 4000, of traces 20."
)
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    help="Folder of traces; else $ATOLL_TRACES, else ../shared/traces.",
)
@click.option("--conservative", is_flag=True, help="Endogenous: conservative backfill, not EASY.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg",
    help="Draw the distributions here (needs atoll[report]).",
)
@json_option
def simulate(
    model: str,
    sites: int,
    policies: tuple[str, ...],
    duration: float,
    walltime: float | None,
    seed: int,
    seeds: int,
    replicas: int | None,
    traces: Path | None,
    conservative: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate runs that live on queues, and compare policies.

    \b
    exponential, lognormal  waits drawn one by one
    bootstrapped            waits of jobs of Graham (DRAC, 2021), by limit and time
    endogenous              KTH-SP2's jobs and ours in one queue under EASY backfill

    \b
    wait-for-all, wait-for-all-burning  all sites or none; who waits is free, or pays
    elastic, elastic-chain              join with the full shape; queue a successor at a start
    history, raw, calibrated, oracle    the planner, which believes: starts seen before; what a
                                        probe says; what past errors make of it; the truth

    All policies meet the same queues (the same seed). reduction_of_mean is against wait-for-all,
    held free. With --json a policy is a line.
    """
    from ops.placement import study
    from ops.placement.settings import setting

    wanted = list(POLICIES) if not policies or "all" in policies else list(policies)
    if walltime is not None and model not in ("exponential", "lognormal"):
        raise click.UsageError("--walltime is for exponential and lognormal waits")
    if conservative and model != "endogenous":
        raise click.UsageError("--conservative is for the endogenous model")
    drawn = model in ("exponential", "lognormal")
    number = replicas or (4000 if drawn and not set(wanted) - set(POLICIES[:4]) else 20)
    made = setting(model, sites, walltime=walltime, folder=traces, conservative=conservative)
    run = [name for name in POLICIES if name in {*wanted, BASELINE, CHAIN}]
    about = {"model": model, "sites": sites}
    told: list[dict[str, Any]] = []
    every: list[Result] = []
    with Meter() as meter:
        for one in range(seed, seed + seeds):
            results = study.compare(made, run, duration, one, number, meter)
            rows = [about | {"seed": one} | row for row in _told(results, wanted, made.mean_wait_s)]
            for row in rows if as_json else ():
                print_json(row)
            told += rows
            every += results
    all_seeds = study.pooled(every)
    if seeds > 1:
        paired = {"paired_seeds": study.paired(told, CHAIN)}
        rows = _told(all_seeds, wanted, made.mean_wait_s)
        told = [about | {"seed": seed} | row | paired for row in rows]
        for row in told if as_json else ():
            print_json(row | {"seeds": seeds})
    if output is not None:
        from ops.placement import picture

        shown = [result for result in all_seeds if result.policy in wanted]
        title = f"{model}, {sites} sites, D = {duration:g} mean waits"
        picture.of_study(shown, title, output)
    if not as_json:
        _show(told, about | {"seed": seed})


def _told(results: list[Result], wanted: list[str], unit_s: float) -> list[dict[str, Any]]:
    from ops.placement.study import summary

    by_name = {result.policy: result for result in results}
    return [
        summary(result, by_name[BASELINE], by_name[CHAIN], unit_s)
        for result in results
        if result.policy in wanted
    ]


def _show(told: list[dict[str, Any]], about: dict[str, Any]) -> None:
    from rich.table import Table

    from ops.terminal import Console

    table = Table(
        "policy",
        "mean h",
        "median h",
        "q90 h",
        "vs wait-for-all",
        "vs chain",
        "node-hours",
        "idle",
        "no site h",
        "probes/day",
        "jobs/day",
    )
    for one in told:
        hours = one["time_to_target_hours"]
        low, high = one["reduction_interval"]
        table.add_row(
            one["policy"],
            *(f"{hours[key]:.1f}" for key in ("mean", "median", "q90")),
            f"−{one['reduction_of_mean']:.1%} ({low:.1%} to {high:.1%})".replace("−-", "+"),
            f"−{one['reduction_against_chain']:.1%}".replace("−-", "+"),
            *(f"{one[key]:.0f}" for key in ("node_hours", "idle_node_hours")),
            f"{one['no_site_hours']:.1f}",
            *(f"{one[key]:.1f}" for key in ("probes_a_day", "submissions_a_day")),
        )
    console = Console()
    console.print(table)
    first = told[0]
    console.print(
        f"{about['model']} waits of {first['mean_wait_hours']:.1f} h in the mean, "
        f"{about['sites']} sites, {first['replicas']} runs a policy, seed {about['seed']}",
        markup=False,
    )
    for name, (num_won, num) in first.get("paired_seeds", {}).items():
        console.print(f"{name} is faster in the mean than {CHAIN} in {num_won} of {num} seeds")
    for one in told:
        if one["unfinished"]:
            console.print(f"{one['policy']}: {one['unfinished']} runs did not reach the target")
