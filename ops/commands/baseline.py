"""`atoll baseline`: the same model trained centralised, to compare a run with."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops import exits
from ops.output import json_option, print_json, say

if TYPE_CHECKING:
    from sitehub.baseline import Baseline, Plan, Trained

_SAY_S = 10.0  # between two lines of progress
_SAVE_S = 300.0  # between two checkpoints


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--data", metavar="DIR", help="The data, in place of the configuration's data.path.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value, such as baseline.lr=2e-3; may be given again.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Train for so many; by default those of the target.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Checkpoint and result; by default below $ATOLL_HOME, by the configuration's name.",
)
@click.option("--threads", type=click.IntRange(1), help="That torch may use; by default all.")
@json_option
def baseline(
    config: Path,
    data: str | None,
    overrides: tuple[str, ...],
    tokens: int | None,
    out: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Train the model of CONFIG centralised: same blocks and tokens, one optimizer.

    Its batch and rate are those of the table [baseline], or are derived from the site's and
    explained. Ended by SIGINT or SIGTERM, or at once by a crash, the same command goes on from
    its newest checkpoint. The result is a JSON file, DIR/baseline.json, which `atoll audit
    --baseline` and `atoll report` compare a run with.
    """
    from ops.configure import load

    settings = load(config, overrides)
    from ops.founding import checked
    from ops.home import Home
    from sitehub import machine
    from sitehub.baseline import Baseline, plan

    if threads is not None:
        machine.set_up(threads)
    settings, model, corpus = checked(settings, config, data)
    wanted = plan(settings, corpus, tokens)
    _explain(wanted)
    folder = out or Home.find().baseline(settings.name)
    one = Baseline(settings, model, corpus, wanted, folder)
    if one.resumed:
        say(f"goes on from {folder}, {one.done.tokens:,} of {wanted.tokens:,} tokens in")
    if not _train(one, wanted):
        say(f"interrupted at {one.done.tokens:,} tokens: the same command goes on from there")
        raise click.exceptions.Exit(exits.INTERRUPTED)
    result = one.result(None)
    target = folder / "baseline.json"
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(result, indent=2) + "\n")
    part.replace(target)
    one.save()
    if as_json:
        print_json(result)
        return
    click.echo(
        f"loss {result['loss']:.4f} nats, perplexity {result['perplexity']:.2f}, "
        f"{result['bits_per_byte']:.3f} bits per byte after {result['tokens']:,} tokens "
        f"({result['steps']:,} steps)"
    )
    say(f"written to {target}; compare: atoll audit RUN --baseline {target}")


def _explain(wanted: Plan) -> None:
    say(
        f"{wanted.tokens:,} tokens in batches of {wanted.batch_sequences} sequences, peak rate "
        f"{wanted.lr:g}"
    )
    for name, why in wanted.why.items():
        say(f"  {name}: {why}")


def _train(one: Baseline, wanted: Plan) -> bool:
    """To the end, or until a signal: whether it is the end. Checkpoints now and then."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: asked.append(got))
    began, first = time.monotonic(), one.done.tokens
    last = {"said": began, "saved": began}

    def on_block(done: Trained) -> bool:
        now = time.monotonic()
        if now - last["said"] >= _SAY_S or done.tokens >= wanted.tokens:
            last["said"] = now
            say(_progress(done, wanted, (done.tokens - first) / max(1e-9, now - began)))
        if now - last["saved"] >= _SAVE_S:
            one.save()
            last["saved"] = time.monotonic()
        return not asked

    return one.train(on_block)


def _progress(done: Trained, wanted: Plan, rate: float) -> str:
    from outer.waiting import span

    left: Any = (wanted.tokens - done.tokens) / max(1e-9, rate)
    share = min(1.0, done.tokens / wanted.tokens)
    eta = f"done in about {span(left)}" if left > 0 else "done"
    return (
        f"{done.tokens:,} of {wanted.tokens:,} tokens ({share:.1%}), loss "
        f"{done.curve[-1][1]:.3f}, {rate:,.0f} tokens/s, {eta}"
    )
