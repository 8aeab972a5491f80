"""`atoll eval`: how good a version of a run's model is on the held-out text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name


@click.command("eval")
@click.argument("run", callback=run_name)
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The token files, as sites have them.",
)
@click.option(
    "--version", type=click.IntRange(0), metavar="V", help="The version; by default the newest."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Of held-out text, in whole sequences; by default all of it.",
)
@click.option("--prompt", metavar="TEXT", help="Also write a sample that begins so.")
@click.option(
    "--record/--no-record",
    default=True,
    show_default=True,
    help="Put the result into the run's log, where `watch` shows it.",
)
@broker_option
@json_option
def eval_(
    run: str,
    data: Path,
    version: int | None,
    max_tokens: int | None,
    prompt: str | None,
    record: bool,
    broker: Reach,
    as_json: bool,
) -> None:
    """Measure held-out loss, perplexity and bits per byte of a version.

    The version is rebuilt from the newest snapshot before it and the published updates, and its
    digest compared with the log's.
    """
    from ops.signals import clean_up_on_termination
    from sitehub.corpus import Corpus

    clean_up_on_termination()
    corpus = Corpus.open(data, verify="full")
    result = asyncio.run(_evaluate(run, corpus, version, max_tokens, prompt, record, broker))
    if as_json:
        print_json(result)
        return
    click.echo(
        f"version {result['version']}: loss {result['loss']:.4f} nats, "
        f"perplexity {result['perplexity']:.2f}, {result['bits_per_byte']:.3f} bits per byte "
        f"({result['num_tokens']:,} held-out tokens; unigram perplexity "
        f"{result['perplexity_unigram']:.2f})"
    )
    if prompt is not None:
        click.echo(result["sample"])


async def _evaluate(
    run: str,
    corpus: Any,
    version: int | None,
    max_tokens: int | None,
    prompt: str | None,
    record: bool,
    broker: Reach,
) -> dict[str, Any]:
    from eventlog.events import OPERATOR, EvaluationCompleted
    from leases.view import View
    from ops.connect import opened
    from ops.folded import folded, request
    from ops.rebuilt import rebuilt
    from sitehub.corpus import unigram
    from sitehub.evaluate import evaluate, sample

    writes = OPERATOR if record else ""
    async with opened(run, broker, moves_blobs=True, writes=writes) as (log, blobs, connection):
        async with folded(log) as projection:
            number, model = await rebuilt(View(projection.db), blobs, corpus, version)
        found = evaluate(model, corpus, max_tokens)
        result: dict[str, Any] = {
            "run": run,
            "version": number,
            "loss": found.loss,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
            "num_tokens": found.num_tokens,
            "perplexity_unigram": unigram(corpus, max_tokens),
        }
        if prompt is not None:
            result["sample"] = sample(model, corpus.tokenizer, prompt, 60, 0)
        if record:
            event = EvaluationCompleted(
                version=number,
                num_tokens=found.num_tokens,
                loss=found.loss,
                perplexity=found.perplexity,
                bits_per_byte=found.bits_per_byte,
            )
            await request(log, event, connection.key)
    return result
