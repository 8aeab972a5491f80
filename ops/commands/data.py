"""`atoll data`: token files from text, and whether they are whole and equal elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ops import exits
from ops.output import Meter, json_option, print_json

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def data() -> None:
    """Build and verify training data.

    A data directory holds token files, the tokenizer and a manifest of digests. Built from the same
    text with the same settings, it has the same bytes at every site; a run is bound to its digest.
    """


@data.command()
@click.argument("paths", nargs=-1, required=True, metavar="[SOURCE]... OUT", type=Path)
@click.option("--stdlib", is_flag=True, help="The running Python's standard library, as a source.")
@click.option(
    "--hub",
    metavar="NAME",
    help="A dataset of the Hugging Face hub as a source, streamed; such as allenai/c4.",
)
@click.option("--config", metavar="NAME", help="Of --hub: its configuration, such as en.")
@click.option(
    "--split", metavar="NAME", help="Of --hub (else train), or of a dataset saved with several."
)
@click.option("--revision", metavar="COMMIT", help="Of --hub: this commit and no later one.")
@click.option(
    "--field", default="text", show_default=True, help="The field of a row that is the document."
)
@click.option(
    "--suffix",
    "suffixes",
    multiple=True,
    metavar=".EXT",
    help="Take only files of a folder that end so; may be given again.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(257, 1 << 20),
    metavar="N",
    help="Entries of a new tokenizer; by default 4096.",
)
@click.option(
    "--tokenizer",
    metavar="NAME|PATH",
    help="Use this one instead of training one: a tokenizer.json, a model's folder, or a name on "
    "the Hugging Face hub, such as Qwen/Qwen3-0.6B.",
)
@click.option(
    "--end-of-document",
    metavar="TOKEN",
    help="The token after each document; else <|endoftext|>, else the tokenizer's end of a "
    "sequence.",
)
@click.option(
    "--sequence-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    metavar="N",
    help="Tokens that a sequence trains.",
)
@click.option(
    "--subset",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Take one document in N only.",
)
@click.option(
    "--heldout-every",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    metavar="N",
    help="Hold one document in N out, for evaluation.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="How many work; else as many as there are cores. The data are the same for any number.",
)
@click.option(
    "--file-mib",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="A token file is at most so large.",
)
@json_option
def build(paths: tuple[Path, ...], as_json: bool, **given: Any) -> None:
    """Turn text into token files in OUT.

    A SOURCE is a file, a folder, or a dataset that save_to_disk wrote. Files named .jsonl, .json
    or .ndjson (also .gz, .zst), .parquet and .arrow hold a document a row, any other is one
    document. A byte-level BPE is trained on the text unless --tokenizer names one. A build that
    was killed goes on when it is given again; an OUT that holds data already is refused: runs may
    be bound to it.
    """
    from ops.building import options_of, sources_of
    from sitehub.build import build
    from sitehub.manifest import FILE_NAME

    *places, out = paths
    sources = sources_of(places, given)
    if (out / FILE_NAME).exists():
        raise click.UsageError(
            f"{out} holds data already, and runs may be bound to it: name another folder for OUT, "
            "or remove that one first"
        )
    with Meter() as meter:
        corpus = build(sources, out, options_of(given), meter.step)
    _show(out, corpus.manifest, as_json)


@data.command()
@click.argument("directory", type=_FOLDER)
@click.argument("other", type=click.Path(exists=True, path_type=Path), required=False)
@json_option
def verify(directory: Path, other: Path | None, as_json: bool) -> None:
    """Check every byte of DIRECTORY, and compare it with OTHER.

    The bytes are held against the manifest, the two by their manifests. OTHER is a data directory,
    whose bytes are checked too, or another site's manifest.json. Exit code 1 where a file is
    damaged or the two differ; the first difference is named.
    """
    from sitehub import corpus, manifest

    whole = [path for path in (directory, other) if path and path.is_dir()]
    problems = [line for path in whole for line in corpus.verify(path)]
    difference = None
    if other and not problems:
        difference = corpus.first_difference(manifest.read(directory), manifest.read(other))
    found = {"directory": str(directory), "ok": not problems and difference is None}
    if as_json:
        print_json(found | {"problems": problems, "difference": difference})
    else:
        for line in problems or [
            difference or f"{directory}: whole" + (", equal" if other else "")
        ]:
            click.echo(line)
    if not found["ok"]:
        raise click.exceptions.Exit(exits.VIOLATION)


def _show(out: Path, manifest: Any, as_json: bool) -> None:
    if as_json:
        parts = {"directory": str(out), "manifest_digest": manifest.digest()}
        print_json(parts | manifest.model_dump(mode="json"))
        return
    click.echo(f"{out}: manifest {manifest.digest()}")
    for name, split in (("training", manifest.training), ("held out", manifest.heldout)):
        click.echo(
            f"{name}: {split.num_documents:,} documents, {split.num_tokens:,} tokens, "
            f"{split.num_sequences:,} sequences of {manifest.settings.sequence_tokens}"
        )
    click.echo(f"tokenizer: {manifest.tokenizer.vocab_size:,} entries")
    odd = ", ".join(f"{count:,} {name}" for name, count in manifest.odd.items() if count)
    if odd:
        click.echo(f"odd documents: {odd}")
