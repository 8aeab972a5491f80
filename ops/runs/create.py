"""`atoll run create`: a run from a TOML file, or what such a run would come to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from ops.output import Reach, broker_option, json_option, print_json, say
from ops.rates import bytes_per_s

_OF_CHECK = ("sites", "device", "tokens_per_s", "link")

_SEQUENCE_TOKENS = 1024  # of a plan without data, unless the model takes fewer


def _device(_: Any, __: Any, name: str) -> str:
    from leases.peaks import PEAKS, peak_of

    if name and peak_of(name) is None:
        known = ", ".join(one for one, _ in PEAKS)
        raise click.BadParameter(f"{name!r} is none of {known}; give --tokens-per-s N instead")
    return name


def _rate(_: Any, __: Any, text: str) -> float:
    return bytes_per_s(text)


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--data", metavar="DIR", help="The data, in place of the configuration's data.path.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a value, such as inner.steps=50; may be given again.",
)
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Who signs their history: a file of public keys, as `atoll broker keys` prints it.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Create nothing: check CONFIG, and say what it comes to. Without data, some is assumed.",
)
@click.option(
    "--sites", type=click.IntRange(1), default=3, show_default=True, help="For --check: how many."
)
@click.option(
    "--device",
    default="",
    callback=_device,
    metavar="NAME",
    help="For --check: such as A100 or MI250X.",
)
@click.option(
    "--tokens-per-s",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="For --check: what a site trains, in place of 40 % of the device's peak.",
)
@click.option(
    "--link",
    default="100MB",
    show_default=True,
    callback=_rate,
    metavar="RATE",
    help="For --check: of each site's link, each way.",
)
@broker_option
@json_option
def create(
    config: Path,
    data: str | None,
    overrides: tuple[str, ...],
    keys: Path | None,
    check: bool,
    sites: int,
    device: str,
    tokens_per_s: float | None,
    link: float,
    broker: Reach,
    as_json: bool,
) -> None:
    """Create a run from the TOML file CONFIG.

    Its configuration, data manifest and initial parameters are fixed from here on. Whatever is
    wrong with them is said before anything is written. ops/configs/ in the checkout has examples;
    eventlog/config.py there explains every key.
    """
    from ops.configure import load

    _check_use(check)
    settings = load(config, overrides)  # before what takes seconds to import
    if check:
        from leases.planning import Assumed

        _check(settings, data, Assumed(sites, device, tokens_per_s, 0.4, link), as_json)
        return
    from ops.founding import checked
    from ops.home import Home
    from ops.keyfile import read_keys

    named = read_keys(keys) if keys else ()
    settings, model, corpus = checked(settings, config, data)
    event = asyncio.run(_create(broker, settings, model, corpus, named, talks=not as_json))
    Home.find().note_data(settings.name, corpus.directory)
    shape = event.data
    if as_json:
        print_json(
            {
                "run": settings.name,
                "config_digest": event.config_digest,
                "manifest_digest": shape.manifest_digest,
                "num_parameters": event.num_parameters,
                "parameters_digest": event.parameters_digest,
                "epoch_tokens": shape.num_sequences * shape.sequence_tokens,
            }
        )
        return
    click.echo(settings.name)
    tokens = shape.num_sequences * shape.sequence_tokens
    say(f"{event.num_parameters:,} parameters; {tokens:,} tokens an epoch")
    say(f"next: atoll coordinate {settings.name}; atoll site run {settings.name} NAME --data DIR")


def _check_use(check: bool) -> None:
    """An option that would be passed over is told. Raises click.UsageError."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    given = [name for name in _OF_CHECK if context.get_parameter_source(name) is not default]
    if given and not check:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is of --check: give it too")


async def _create(
    broker: Reach, settings: Any, model: Any, corpus: Any, named: Any, talks: bool
) -> Any:
    from eventlog.events import OPERATOR
    from ops import founding
    from ops.connect import connected
    from ops.numbers import size

    async with await connected(broker, "operator") as connection:
        connection.check_writer(OPERATOR)

        def storing() -> None:
            if talks:  # of a large model it takes minutes
                num_bytes = 4 * sum(one.numel() for one in model.parameters())
                say(f"storing the initial parameters ({size(num_bytes)}) at {connection.url}")

        return await founding.create(connection, settings, model, corpus, named, storing=storing)


def _check(settings: Any, data: str | None, assumed: Any, as_json: bool) -> None:
    """Print what the configuration comes to."""
    from leases.planning import planned
    from ops.planview import lines, size
    from sitehub.corpus import Corpus
    from sitehub.founding import data_shape
    from sitehub.outline import outline

    place, told = data or settings.data.path, []
    corpus = Corpus.open(Path(place)) if place else None
    table, vocab, num = outline(settings.model, corpus.vocab_size if corpus else None)
    settings = settings.model_copy(update={"model": table})
    if corpus is None:
        shape = _without_data(settings)
        told.append(
            f"no data: sequences of {shape.sequence_tokens} tokens, and no sequence twice (give "
            "--data DIR)"
        )
    else:
        shape = data_shape(settings, corpus)
    told.append(f"{assumed.num_sites} equal sites, links of {size(assumed.link_bytes_per_s)}/s")
    if assumed.device and assumed.tokens_per_s is None:
        told.append(f"{assumed.utilisation:.0%} of the peak of {assumed.device}")
    plan = planned(settings, shape, num, vocab, assumed)
    if as_json:
        print_json(plan)
        return
    for line in lines(plan, told):
        click.echo(line)


def _without_data(settings: Any) -> Any:
    """Data that would serve for the whole target once."""
    from eventlog.events import DataShape

    longest = int(settings.model.get("max_position_embeddings") or _SEQUENCE_TOKENS)
    length = min(longest, _SEQUENCE_TOKENS)
    target, block = settings.target, settings.data.block_sequences
    tokens = target.tokens or (target.rounds or 1000) * settings.blocks_per_round * block * length
    return DataShape(
        manifest_digest="0" * 64,
        num_sequences=max(1, -(-tokens // length)),
        sequence_tokens=length,
        block_sequences=block,
    )
