"""`atoll simulate`: the real coordinator and hubs in a virtual world, by seeds."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ops import exits
from ops.output import Meter, files, json_option, print_json, say

if TYPE_CHECKING:
    from ops.simulate.run import Outcome
    from ops.simulate.scenario import Scenario

os.environ.setdefault("OMP_NUM_THREADS", "1")  # every seed uses one core; before torch is loaded

MAX_SHRINK_S = 900.0  # a plan that might take longer to shorten is shown as it is


def _scenarios(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from ops.simulate.scenario import names

    found = [CompletionItem(one) for one in names() if one.startswith(incomplete)]
    return found or files(ctx, parameter, incomplete)


@click.command()
@click.argument("scenario", metavar="SCENARIO", shell_complete=_scenarios)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The (first) seed."
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many seeds, from --seed.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes; by default one a core.")
@click.option("--trace", is_flag=True, help="Show every event of the run, on stderr.")
@click.option("--log", type=click.Path(path_type=Path), help="Export the log of the one seed here.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first seed that fails.")
@click.option("--shrink/--no-shrink", default=True, help="Shorten the plan of a failing seed.")
@json_option
def simulate(
    scenario: str,
    seed: int,
    seeds: int,
    workers: int | None,
    trace: bool,
    log: Path | None,
    fail_fast: bool,
    shrink: bool,
    as_json: bool,
) -> None:
    """Run SCENARIO in a virtual world: real coordinator and hubs, virtual time and faults.

    The fold, policies, coordinator and hubs are the real ones; clock, log, blob store, network and
    trainers are virtual, and what befalls them is drawn by the seed.

    SCENARIO is a TOML file, or one of

    \b
    nightmare   four sites, two coordinators, up to 16 faults of 37 kinds
    last-block  the tail of an epoch, with fast and slow sites
    lonely      nobody, one site, nobody, one
    paper-24h   three sites for 23.8 hours, with four departures
    churn       a thousand sites that join, deliver and leave
    slow-joiner one that needs 17 rounds for its first snapshot

    Everything that a run promises is checked at every event. The same seed does the same, event for
    event. Exit code 1 where anything was violated; the first failing seed is then shown with the
    fewest faults that make it fail.
    """
    from ops.signals import clean_up_on_termination
    from ops.simulate import scenario as scenarios

    clean_up_on_termination()
    found = scenarios.load(scenario)
    if seeds == 1:
        _single(found, scenario, seed, trace, log, shrink, as_json)
    elif log is not None or trace:
        raise click.UsageError(f"{'--trace' if log is None else '--log'} is for one seed")
    else:
        every = range(seed, seed + seeds)
        _several(found, scenario, every, workers, fail_fast, shrink, as_json)


def _single(
    found: Scenario,
    name: str,
    seed: int,
    trace: bool,
    log: Path | None,
    shrink: bool,
    as_json: bool,
) -> None:
    from ops.simulate import run

    told = say if trace else lambda _: None
    outcome = run.simulate(found, seed, name=name, say=told, log=log)
    if as_json:
        print_json(outcome.as_json())
    else:
        _show(outcome.as_json() | {"departures": len(outcome.departures)})
    if outcome.broken:
        _explain(found, name, seed, outcome, shrink)
        raise click.exceptions.Exit(exits.VIOLATION)


def _several(
    found: Scenario,
    name: str,
    seeds: range,
    workers: int | None,
    fail_fast: bool,
    shrink: bool,
    as_json: bool,
) -> None:
    from ops.simulate import many

    began = time.monotonic()
    summary = many.Summary(name, list(seeds))
    num_workers = workers or many.cores()
    with Meter() as meter:
        for outcome in many.outcomes(found, name, list(seeds), num_workers):
            summary.add(outcome)
            if outcome.broken:
                say(f"seed {outcome.seed} fails: {outcome.broken[0]}")
            meter(f"seeds ({len(summary.failed)} failed)", summary.num_done, len(seeds))
            if fail_fast and summary.failed:
                break
    summary.seconds = time.monotonic() - began
    if as_json:
        print_json(summary.as_json())
    else:
        _show(summary.as_json())
    if summary.failed:
        _explain(found, name, min(summary.failed), None, shrink)
        raise click.exceptions.Exit(exits.VIOLATION)


NAMED = {"virtual_s": "virtual time", "seconds": "took"}


def _show(told: dict[str, Any]) -> None:
    """A line for each field; a field of several things has a line for each."""
    for key, value in told.items():
        first, *others = _said(key, value)
        click.echo(f"{NAMED.get(key, key.replace('_', ' ')):20s} {first}")
        for line in others:
            click.echo(f"{'':20s} {line}")


def _said(key: str, value: Any) -> list[str]:
    if key == "seeds":
        return [f"{value[0]} to {value[1]}"]
    if isinstance(value, dict):
        value = [f"{num} × {what}" for what, num in value.items()]
    if isinstance(value, list):
        return [str(one) for one in value] or ["none"]
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if key in ("virtual_s", "seconds"):
        return [f"{value:,.1f} s"]
    if key == "reclaimed_share":
        return [f"{value:.1%}"]
    return [f"{value:,}" if isinstance(value, int) and key != "seed" else str(value)]


def _explain(found: Scenario, name: str, seed: int, outcome: Outcome | None, shrink: bool) -> None:
    """The shortened story of a failure, on stderr."""
    from ops.simulate import many, run

    say(f"seed {seed} fails")
    if shrink and (outcome is None or outcome.seconds * len(outcome.plan) < MAX_SHRINK_S):
        with Meter() as meter:
            outcome = many.shrink(found, seed, name, lambda left, all_: meter("faults", left, all_))
    outcome = outcome or run.simulate(found, seed, name=name)
    say(f"with {len(outcome.plan)} faults:")
    for fault in outcome.plan:
        say(f"  {fault}")
    say("the last events:")
    for line in outcome.last_events:
        say(f"  {line}")
    for broken in outcome.broken:
        say(f"violated: {broken}")
    say(f"replay with: atoll simulate {name} --seed {seed} --trace")
