"""`atoll report`: a run as one page with pictures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops.output import Reach, broker_option, file_or_run, files, json_option, print_json, say

if TYPE_CHECKING:
    from ops.compared import Result


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Where to write the page; by default RUN.html here.",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The result of `atoll baseline`: draw it beside the run, and say the gap.",
)
@broker_option
@json_option
def report(
    target: str, output: Path | None, baseline: Path | None, broker: Reach, as_json: bool
) -> None:
    """Tell a run as one page with pictures, which needs no network.

    What it learned over tokens and time, and how far that is from one machine (--baseline); of a
    fork, where it comes from; who was there and why they left, what became of leases, what the time
    went into, and what the audit says. A FILE, an exported log, needs no broker. The same log gives
    the same bytes. Needs the extra `report`; --json, which prints the page's numbers
    and writes no page, does not.
    """
    if as_json and output is not None:
        raise click.UsageError("--json prints the numbers: it writes no page, leave out -o")
    if not as_json:
        import matplotlib  # noqa: F401  # what is missing is said before the log is read
    from ops.compared import UNMEASURED, load

    found = file_or_run(target)
    centralised = None if baseline is None else load(baseline)
    facts = asyncio.run(_facts(found, broker, centralised))
    if centralised is not None and facts["baseline"]["compared"] is None:
        say(UNMEASURED)
    if as_json:
        print_json(facts)
        return
    output = output or Path(f"{facts['run'].replace('?', 'run')}.html")
    write(facts, output)
    ok = facts["audit"]["ok"]
    say(f"{output}: {'the audit holds' if ok else 'the audit FAILS: see it, and `atoll audit`'}")


def write(facts: dict[str, Any], output: Path) -> None:
    """Write the page, whole or not at all."""
    from ops.report.page import page

    part = output.with_name(f".{output.name}.part")
    try:
        part.write_text(page(facts), encoding="utf-8")
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


async def _facts(target: Path | str, broker: Reach, baseline: Result | None) -> dict[str, Any]:
    from ops.auditing import bar
    from ops.report import made

    with bar("reading the log") as progress:
        if isinstance(target, Path):
            return made.of_file(target, progress, baseline)
        from ops.connect import opened

        async with opened(target, broker, "report") as (log, *_):
            return await made.of_run(target, log, progress, baseline)
