"""What the options of `atoll data build` mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sitehub.build import Options
    from sitehub.sources import Source


def sources_of(places: Sequence[Path], given: Mapping[str, Any]) -> list[Source]:
    """The sources in the order in which they are told of, the standard library first and the hub's
    last. Raises click.UsageError."""
    from sitehub.hubdata import HubDataset
    from sitehub.sources import standard_library

    if not places and not given["stdlib"] and not given["hub"]:
        raise click.UsageError("name a FOLDER of text before OUT, or give --stdlib or --hub")
    sources: list[Source] = [standard_library()] if given["stdlib"] else []
    sources += [_local(place, given) for place in places]
    _check_use(given, sources)
    if given["hub"]:
        split = given["split"] or "train"
        name, config, revision = given["hub"], given["config"], given["revision"]
        sources.append(HubDataset(name, config, split, revision, given["field"]))
    return sources


def _check_use(given: Mapping[str, Any], sources: Sequence[Source]) -> None:
    """Whoever gives an option means something by it: none is passed over. Raises
    click.UsageError."""
    from sitehub.hubdata import SavedDataset

    saved = any(isinstance(source, SavedDataset) for source in sources)
    folders = any(source.place and source.place.is_dir() for source in sources) and not saved
    hub, tokenizer = given["hub"], given["tokenizer"]
    for name, used, why in (
        ("config", hub, "is of a dataset of the hub: give --hub too"),
        ("revision", hub, "is of a dataset of the hub: give --hub too"),
        ("split", hub or saved, "is of --hub, or of a dataset that save_to_disk wrote"),
        ("suffixes", folders, "is of a folder of files, and no source is one"),
        ("end_of_document", tokenizer, "is of --tokenizer; one that is trained has its own"),
        ("vocab_size", not tokenizer, "is of a tokenizer that is trained; --tokenizer has its own"),
    ):
        if given[name] and not used:
            option = "suffix" if name == "suffixes" else name.replace("_", "-")
            raise click.UsageError(f"--{option} {why}")


def options_of(given: Mapping[str, Any]) -> Options:
    """How to build."""
    from sitehub.build import Options

    named: dict[str, Any] = {
        "sequence_tokens": given["sequence_tokens"],
        "vocab_size": given["vocab_size"],
        "subset": given["subset"],
        "heldout_every": given["heldout_every"],
        "tokenizer": given["tokenizer"],
        "end_of_document": given["end_of_document"],
        "processes": given["processes"],
        "file_bytes": given["file_mib"] << 20,
    }
    return Options(**{name: value for name, value in named.items() if value is not None})


def _local(place: Path, given: Mapping[str, Any]) -> Source:
    from sitehub.hubdata import SavedDataset, is_saved
    from sitehub.sources import file, folder

    if is_saved(place):
        return SavedDataset(str(place), given["split"], given["field"])
    if place.is_file():
        return file(place, given["field"])
    return folder(place, given["suffixes"], given["field"])
