"""A version of a run's model, rebuilt from log and blobs for a command that looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventlog.blobs import BlobStore
from leases.retention import first_left
from leases.view import View
from ops.folded import RequestVoid
from ops.home import Home
from ops.output import say

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sitehub.corpus import Corpus


async def rebuilt(
    view: View, blobs: BlobStore, corpus: Corpus, version: int | None
) -> tuple[int, PreTrainedModel]:
    """The version's number (None: the newest), and the model with its parameters, whose digest is
    the log's. Raises RequestVoid where the data are not the run's or there is no such version (any
    more), and as `parameters_at`."""
    from outer.recover import parameters_at
    from sitehub.model import build_model, load_into

    run, newest = view.run().name, view.run().version
    if view.manifest_digest() != corpus.manifest_digest:
        raise RequestVoid(
            f"the data manifest of {corpus.directory} is {corpus.manifest_digest[:12]}, that of "
            f"run {run} is {view.manifest_digest()[:12]}: give the data that its sites train on"
        )
    number = newest if version is None else version
    if not 0 <= number <= newest:
        raise RequestVoid(f"run {run} has versions 0 to {newest}")
    if (first := first_left(view, number)) is not None:
        raise RequestVoid(
            f"version {number} of run {run} cannot be rebuilt any more: what made it is released "
            f"(snapshots.retention); versions {first} to {newest} can"
        )
    say(f"rebuilding version {number}")
    with Home.find().scratch(run) as folder:
        parameters = await parameters_at(view, blobs, folder, number)
    config = view.config()
    model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
    load_into(model, parameters)
    return number, model
