"""`atoll export`: a version of a run's model as a Hugging Face directory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say


@click.command()
@click.argument("run", callback=run_name)
@click.argument("target", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--version", type=click.IntRange(0), metavar="V", help="The version; by default the newest."
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The token files, whose tokenizer goes with the model; by default those that the run was "
    "created with, where that was on this machine.",
)
@broker_option
@json_option
def export(
    run: str,
    target: Path,
    version: int | None,
    data: Path | None,
    broker: Reach,
    as_json: bool,
) -> None:
    """Write a version as a Hugging Face directory.

    DIR, which must be new or empty, gets config, safetensors, tokenizer, generation config and a
    model card with the facts of the run and the verdict of its audit: what transformers'
    from_pretrained and pipeline("text-generation") load. The version is rebuilt from the log and
    its blobs, and its digest compared with the log's.
    """
    from ops.home import Home
    from ops.signals import clean_up_on_termination
    from sitehub.corpus import Corpus

    clean_up_on_termination()
    data = data or Home.find().data_of(run)
    if data is None:
        raise click.UsageError(f"run {run} was not created on this machine: give --data")
    corpus = Corpus.open(data, verify="full")
    found = asyncio.run(_export(run, target, version, corpus, broker))
    if as_json:
        print_json(found)
        return
    click.echo(str(target))
    say(f"version {found['version']}, {found['num_parameters']:,} parameters; {found['audit']}")


async def _export(
    run: str, target: Path, version: int | None, corpus: Any, broker: Reach
) -> dict[str, Any]:
    from leases.view import View
    from ops.auditing import bar, feed_run, opened_audit
    from ops.card import facts_of, model_card
    from ops.connect import opened
    from ops.folded import folded
    from ops.rebuilt import rebuilt
    from sitehub import export

    export.check_target(target)
    async with opened(run, broker, moves_blobs=True) as (log, blobs, _):
        with bar("auditing") as progress, opened_audit(run) as audit:
            await feed_run(audit, log, progress)
            found = audit.result()
        async with folded(log) as projection:
            view = View(projection.db)
            number, model = await rebuilt(view, blobs, corpus, version)
            facts = facts_of(view, number, found, corpus)
    tokens = corpus.manifest.tokenizer
    export.write(target, model, corpus.tokenizer, tokens.end_of_document, model_card(facts))
    return facts | {"directory": str(target)}
