"""`atoll bench`: measure atoll on this machine against a named limit or peer."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace

import click

from ops.bench.measure import Measure, Report
from ops.bench.shapes import MODELS
from ops.output import Meter, json_option, print_json
from ops.signals import clean_up_on_termination

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a process; before torch is loaded

# name -> module with `run(quick: bool, progress: Progress) -> Report`
BENCHES: dict[str, str] = {
    "blob": "ops.bench.blob",
    "churn": "ops.bench.churn",
    "codec": "ops.bench.codec",
    "codec-quality": "ops.bench.codec_quality",
    "data": "ops.bench.data",
    "failover": "ops.bench.failover",
    "grants": "ops.bench.grants",
    "hostile": "ops.bench.hostile",
    "inner": "ops.bench.inner",
    "loader": "ops.bench.loader",
    "overhead": "ops.bench.overhead",
    "placement": "ops.bench.placement",
    "quality": "ops.bench.quality",
    "replay": "ops.bench.replay",
    "round": "ops.bench.round",
    "torchft": "ops.bench.torchft",
}


@click.command()
@click.argument("name", type=click.Choice(sorted(BENCHES)), metavar="NAME")
@click.option("--quick", is_flag=True, help="Fewer and shorter runs: a check that it works.")
@click.option(
    "--params", type=click.Choice(sorted(MODELS)), help="Of `round`: the model; else qwen3-0.6b."
)
@click.option(
    "--sites", type=click.IntRange(1, 64), help="Of `round` and `quality`: how many; else 3."
)
@click.option(
    "--study",
    is_flag=True,
    default=None,
    help="Of `quality`: first train, for hours, what is planned and not recorded yet.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(0, min_open=True),
    help="Of `overhead`: an inner step's; else what the published shares imply.",
)
@json_option
def bench(
    name: str,
    quick: bool,
    params: str | None,
    sites: int | None,
    study: bool | None,
    step_seconds: float | None,
    as_json: bool,
) -> None:
    """Measure NAME on this machine, in one run, against a named limit or peer.

    \b
    blob      how fast a blob comes into a real broker and out of it, near and 100 ms away
    churn     what a decision costs at 1,000 sites, beside its cost at 3
    codec     what encoding and decoding a model costs, beside a copy of it
    codec-quality  what few bits, and overlap, cost in held-out loss
    data      what a build makes of the tokenizer's own rate, and the memory it takes
    failover  what a death costs in seconds who lives on, and who comes back
    grants    durable grants per second on a real broker
    hostile   what a site with valid credentials can do to the others
    inner     tokens per second through a site, beside a bare PyTorch loop
    loader    how fast batches are prepared, beside what the smallest preset trains
    overhead  what share of the wall time an exchange costs at H inner steps a round
    placement what a plan costs, and a simulated year of three sites
    quality   what three sites cost in held-out loss, beside one machine at equal tokens
    replay    how fast a log becomes a lease table, and what its audit takes
    round     a whole outer round at real size, phase by phase
    torchft   an outer round of 50 million parameters, beside torchft's DiLoCo

    Values are medians of several runs; a ratio is value / against. Without --quick and --study
    it ends within 12 minutes on two cores. A missed target is shown and does not change the exit
    code; with --quick no target is judged.
    """
    options: dict[str, dict[str, object]] = {
        "round": {"params": params, "sites": sites},
        "overhead": {"step_seconds": step_seconds},
        "quality": {"sites": sites, "study": study},
    }
    own = options.get(name, {})
    for its in options.values():
        for key, value in its.items():
            if value is not None and key not in own:
                owners = " and ".join(
                    f"`atoll bench {one}`" for one in options if key in options[one]
                )
                option = key.replace("_", "-")
                raise click.UsageError(f"--{option} is an option of {owners} alone")
    given = {key: value for key, value in own.items() if value is not None}
    clean_up_on_termination()
    with Meter() as meter:
        found: Report = importlib.import_module(BENCHES[name]).run(quick, meter, **given)
    report = replace(found, quick=quick)
    if as_json:
        print_json(report.as_json())
    else:
        _show(report)


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    verdict = () if report.quick else ("met",)
    table = Table("measure", "value", "against", "ratio", "target", *verdict)
    for one in report.measures:
        table.add_row(*_cells(one)[: len(table.columns)])
    console = Console()
    console.print(table)
    console.print(f"medians of {report.runs} runs" if report.runs > 1 else "one run")
    if report.quick:
        console.print("a quick run shows that it works: no target is judged by it")
    for note in report.notes:
        console.print(note, markup=False)


def _cells(one: Measure) -> tuple[str, ...]:
    beside = "" if one.against_value is None else f": {one.against_value:.4g} {one.unit}"
    return (
        one.what,
        f"{one.value:.4g} {one.unit}",
        f"{one.against or ''}{beside}",
        "" if one.ratio is None else f"{one.ratio:.3g}×",
        one.target.text(one.unit) if one.target else "",
        {True: "yes", False: "NO", None: ""}[one.met],
    )
