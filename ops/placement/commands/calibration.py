"""`atoll place calibration`: how often starts kept within the bounds stated for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.output import Reach, broker_option, file_or_run, files, json_option, print_json, say

if TYPE_CHECKING:
    from eventlog.projector import Folded
    from ops.placement.coverage import Judged


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg",
    help="Draw it here (needs atoll[report]).",
)
@click.option(
    "--second-half", is_flag=True, help="Count only the second half of the time (all still teach)."
)
@broker_option
@json_option
def calibration(
    target: str, output: Path | None, second_half: bool, broker: Reach, as_json: bool
) -> None:
    """Tell how often starts kept within stated bounds.

    RUN, or the FILE of an exported log: the jobs that its agents saw start. FILE may also be a
    published trace (by its name) or JSON lines {"at_s", "wait_s", "said_s", "by", "cluster"}. Each
    forecast rests on earlier starts alone; those from the prior are counted apart. Intervals are
    95 %, clustered: what was forecast from one look at a queue counts once.
    """
    found = _found(target, broker)
    from ops.placement import coverage

    times = sorted(one.observation.at_s for one in found)
    since_s = times[len(times) // 2] if second_half and times else 0.0
    rows = [one.as_json() for one in coverage.coverage(found, since_s=since_s)]
    told: dict[str, Any] = {
        "target": target,
        "forecasts": len(found),
        "from_prior": coverage.num_prior(found),
        "bounds": rows,
    }
    if output is not None:
        from ops.placement import picture

        picture.of_calibration({Path(target).name: coverage.curve(found, since_s=since_s)}, output)
    if as_json:
        print_json(told)
        return
    click.echo(f"{len(found)} starts, {told['from_prior']} of them forecast from the prior")
    for row in rows:
        click.echo(
            f"{row['level']:.0%} bound: {row['share']:.1%} started within it "
            f"({row['low']:.1%} to {row['high']:.1%}; {row['num']} starts in "
            f"{row['num_clusters']} clusters)"
        )
    if not rows:
        say("no forecast rests on starts that were seen, so there is nothing to judge yet")


def _found(target: str, broker: Reach) -> list[Judged]:
    from ops.placement import history

    place = file_or_run(target)
    if isinstance(place, Path) and (place.name.endswith(".gz") or place.suffix in FILES):
        return history.of_file(place)
    return asyncio.run(_of_log(place, broker))


FILES = (".csv", ".jsonl", ".swf")


async def _of_log(place: Path | str, broker: Reach) -> list[Judged]:
    from eventlog.export import read_export, read_header, to_end
    from eventlog.projector import Projection
    from leases.table import LeaseTable
    from ops.connect import opened
    from ops.placement.history import Starts

    starts = Starts()

    def learn(folded: Folded) -> None:
        for entry, why in folded:
            starts.see(entry, "; ".join(filter(None, why)))

    if isinstance(place, Path):
        with Projection(":memory:", [LeaseTable()], read_header(place)) as projection:
            learn(projection.apply(list(read_export(place))))
    else:
        async with opened(place, broker) as (log, _, _):
            with Projection(":memory:", [LeaseTable()], place) as projection:
                async for records in to_end(log):
                    learn(projection.apply(records))
    return [start.judged for start in starts.found]
