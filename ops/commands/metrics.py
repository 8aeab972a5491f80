"""`atoll metrics`: a run's numbers for the tools that people draw curves with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.output import Reach, broker_option, file_or_run, files, say

if TYPE_CHECKING:
    from eventlog.chain import Record
    from ops.metrics.sinks import Sink

_FILE = click.Path(dir_okay=False, path_type=Path)
_DIR = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.option("--jsonl", type=_FILE, metavar="FILE", help="One JSON object a point.")
@click.option("--tensorboard", type=_DIR, metavar="DIR", help="TensorBoard's event files.")
@click.option("--wandb", type=_DIR, metavar="DIR", help="An offline run of Weights & Biases.")
@click.option("--follow", is_flag=True, help="Go on until the run has finished.")
@broker_option
def metrics(
    target: str,
    jsonl: Path | None,
    tensorboard: Path | None,
    wandb: Path | None,
    follow: bool,
    broker: Reach,
) -> None:
    """Write a run's numbers to files that other tools read.

    `train/loss`, `train/tokens`, `train/tokens_per_second`, `val/loss`, `val/perplexity`,
    `val/bits_per_byte`, and more under `outer/`, `lease/` and `site/`, by version of the model.
    They are made from the log, from its beginning on: the command can be given again at any time.
    """
    found = file_or_run(target)
    if not (jsonl or tensorboard or wandb):
        raise click.UsageError("say where to: --jsonl FILE, --tensorboard DIR, --wandb DIR")
    if follow and isinstance(found, Path):
        raise click.UsageError("a file does not go on: --follow is for runs on a broker")
    num, skipped = asyncio.run(_write(found, (jsonl, tensorboard, wandb), follow, broker))
    left = f"; {skipped} that are no finite numbers are left out" if skipped else ""
    say(f"{num:,} points{left}")


async def _write(
    target: Path | str, places: Sequence[Path | None], follow: bool, broker: Reach
) -> tuple[int, int]:
    from eventlog.export import read_export, read_header
    from ops.watch.play import batches

    if isinstance(target, Path):
        return await _feed(read_header(target), batches(read_export(target)), places)
    from ops.connect import opened

    async with opened(target, broker, "metrics") as (log, *_):
        return await _feed(target, _records(log, follow), places)


async def _records(log: Any, follow: bool) -> AsyncIterator[Sequence[Record]]:
    """What there is; then, to follow it, what comes: empty while nothing does."""
    from eventlog.export import to_end
    from ops.watch.play import follow as coming

    if not follow:
        async for records in to_end(log):
            yield records
        return
    async with aclosing(coming(log)) as beats:
        async for beat in beats:
            yield beat.records


async def _feed(
    run: str, source: AsyncIterator[Sequence[Record]], places: Sequence[Path | None]
) -> tuple[int, int]:
    """All points of the records to every sink; how many there were, and how many were left out."""
    from eventlog.projector import Projection
    from leases.metrics import Metrics
    from leases.table import LeaseTable
    from leases.view import View

    made, sinks, num = Metrics(), list[Any](), 0
    with ExitStack() as stack:
        projection = stack.enter_context(Projection(":memory:", [LeaseTable()], run))
        view = View(projection.db)
        async for records in source:
            folded = projection.apply(records)
            if not sinks and view.exists():
                config = view.config().model_dump(mode="json", exclude_none=True)
                for sink in _sinks(places, run, config):
                    stack.callback(sink.close)
                    sinks.append(sink)
            points = [point for entry, (void,) in folded for point in made.see(entry, void)]
            num += len(points)
            for sink in sinks:
                for point in points:
                    sink.put(point)
                if points:
                    sink.flush()
            if view.run().state == "finished" and not records:
                break
    return num, made.skipped


def _sinks(places: Sequence[Path | None], run: str, config: dict[str, Any]) -> list[Sink]:
    from ops.metrics.sinks import Jsonl, TensorBoard, Wandb

    jsonl, tensorboard, wandb = places
    found: list[Sink] = []
    if tensorboard:
        found.append(TensorBoard(tensorboard))
    if wandb:
        found.append(Wandb(wandb, run, config))
    if jsonl:
        found.append(Jsonl(jsonl))
    return found
