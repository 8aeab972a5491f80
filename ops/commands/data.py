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
@click.argument("paths", nargs=-1, required=True, metavar="[FOLDER]... OUT", type=Path)
@click.option("--stdlib", is_flag=True, help="The running Python's standard library, as a source.")
@click.option(
    "--suffix",
    "suffixes",
    multiple=True,
    metavar=".EXT",
    help="Take only files of a folder that end so; may be given again.",
)
@click.option("--vocab-size", default=4096, show_default=True, help="Entries of a new tokenizer.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use this tokenizer.json instead of training one.",
)
@click.option(
    "--sequence-tokens", default=128, show_default=True, help="Tokens that a sequence trains."
)
@click.option(
    "--subset", default=1, show_default=True, metavar="N", help="Take every N-th file only."
)
@json_option
def build(
    paths: tuple[Path, ...],
    stdlib: bool,
    suffixes: tuple[str, ...],
    vocab_size: int,
    tokenizer: Path | None,
    sequence_tokens: int,
    subset: int,
    as_json: bool,
) -> None:
    """Turn text into token files in OUT.

    The text is every file below each FOLDER, in sorted order, or --stdlib, or both. Every 20th
    file is held out for evaluation. A byte-level BPE is trained on the rest unless --tokenizer
    names one. An OUT that holds data already is refused: runs may be bound to it.
    """
    *folders, out = paths
    if not folders and not stdlib:
        raise click.UsageError("name a FOLDER of text before OUT, or give --stdlib")
    from sitehub.manifest import FILE_NAME

    if (out / FILE_NAME).exists():
        raise click.UsageError(
            f"{out} holds data already, and runs may be bound to it: name another folder for OUT, "
            "or remove that one first"
        )
    from sitehub.build import Options, build
    from sitehub.sources import folder, standard_library

    sources = [standard_library()] if stdlib else []
    sources += [folder(path, suffixes) for path in folders]
    options = Options(
        sequence_tokens=sequence_tokens, vocab_size=vocab_size, subset=subset, tokenizer=tokenizer
    )
    with Meter() as meter:
        corpus = build(sources, out, options, meter)
    _show(out, corpus.manifest, as_json)


@data.command()
@click.argument("directory", type=_FOLDER)
@click.argument("other", type=_FOLDER, required=False)
@json_option
def verify(directory: Path, other: Path | None, as_json: bool) -> None:
    """Check every byte of DIRECTORY, and compare it with OTHER.

    The bytes are held against the manifest, the two by their manifests. Exit code 1 where a file is
    damaged or the two differ; the first difference is named.
    """
    from sitehub import corpus, manifest

    problems = [line for path in (directory, other) if path for line in corpus.verify(path)]
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
