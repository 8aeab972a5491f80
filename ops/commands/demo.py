"""`atoll demo`: a whole run on this machine, in a few minutes."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from pathlib import Path
from typing import Any

import click

from ops.output import json_option, print_json


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="An empty folder for everything it leaves; by default a new one below ATOLL_HOME.",
)
@json_option
def demo(folder: Path | None, as_json: bool) -> None:
    """Train a small model over three sites, with a crash and a late join; audit it.

    A broker, a coordinator and three sites run as processes of this machine on the source of
    Python's standard library. One site is killed in mid-round and comes back, one joins late. Exit
    code 0 means that the audit holds and that the model has half the unigram model's perplexity
    or less.
    """
    from ops import exits
    from ops.demo import screen, stage
    from ops.demo.processes import DemoFailed
    from ops.home import Home
    from ops.terminal import Console

    folder = folder or Home.find().root / time.strftime("demo-%Y%m%d-%H%M%S")
    console = Console(stderr=as_json, highlight=False)
    try:
        stage.prepare(folder)
    except DemoFailed as error:
        raise click.UsageError(str(error)) from error
    outcome = asyncio.run(
        stage.play(
            folder.absolute(),
            lambda text: console.print(text, markup=False, soft_wrap=True),
            screen.watcher(console),
        )
    )
    facts, findings = _facts(outcome, folder.absolute())
    if as_json:
        print_json(facts)
    else:
        screen.summary(console, facts, outcome.text, findings)
        screen.next_steps(console, folder.absolute(), outcome.log_file, facts["report_file"])
    learned = facts["perplexity_final"] <= facts["perplexity_unigram"] / 2
    if not (facts["audit_ok"] and learned):
        why = "the audit fails" if learned else "the model does not beat the unigram model clearly"
        console.print(f"the demo failed: {why}", style="red")
        raise click.exceptions.Exit(exits.VIOLATION)


def _facts(outcome: Any, folder: Path) -> tuple[dict[str, Any], Any]:
    """The documented object, and the audit's findings on the exported log; writes the report."""
    from eventlog.export import read_export, read_header
    from leases.audit import Audit
    from ops.demo.stage import counts

    audit = Audit(read_header(outcome.log_file))
    try:
        records = read_export(outcome.log_file)
        while batch := list(islice(records, 1000)):
            audit.feed(batch)
        findings = audit.result()
        told = counts(audit.view)
    finally:
        audit.close()
    report = _report(outcome.log_file, folder / "report.html")
    return {
        "run": findings.run,
        **told,
        "perplexity_initial": outcome.initial.perplexity,
        "perplexity_final": outcome.final.perplexity,
        "perplexity_unigram": outcome.perplexity_unigram,
        "audit_ok": findings.ok,
        "log_file": str(outcome.log_file),
        "report_file": report,
        "seconds": outcome.seconds,
        "sample": outcome.text,
    }, findings


def _report(log: Path, file: Path) -> str | None:
    """Where the report stands; None where nothing can draw its pictures."""
    from importlib.util import find_spec

    from ops.commands.report import write
    from ops.report.made import of_file

    if find_spec("matplotlib") is None:
        return None
    write(of_file(log, lambda _done, _all: None), file)
    return str(file)
