"""`atoll eval`: how good a version of a run's model is on the held-out text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from ops.output import Reach, broker_option, json_option, print_json, run_name, say


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
    from eventlog.events import EvaluationCompleted
    from leases.view import View
    from ops.connect import opened
    from ops.folded import RequestVoid, folded, request
    from ops.home import Home
    from outer.recover import first_left, parameters_at
    from sitehub.corpus import unigram
    from sitehub.evaluate import evaluate, sample
    from sitehub.model import build_model, load_into

    async with opened(run, broker, moves_blobs=True) as (log, blobs, _):
        async with folded(log) as projection:
            view = View(projection.db)
            if view.manifest_digest() != corpus.manifest_digest:
                raise RequestVoid(
                    f"the data manifest of {corpus.directory} is {corpus.manifest_digest[:12]}, "
                    f"that of run {run} is {view.manifest_digest()[:12]}: give the data that its "
                    "sites train on"
                )
            number = view.run().version if version is None else version
            if not 0 <= number <= view.run().version:
                raise RequestVoid(f"run {run} has versions 0 to {view.run().version}")
            if (first := first_left(view, number)) is not None:
                raise RequestVoid(
                    f"version {number} of run {run} cannot be rebuilt any more: what made it is "
                    f"released (snapshots.retention); versions {first} to {view.run().version} can"
                )
            say(f"rebuilding version {number}")
            with Home.find().scratch(run) as folder:
                parameters = await parameters_at(view, blobs, folder, number)
            config = view.config()
        model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
        load_into(model, parameters)
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
            await request(log, event)
    return result
