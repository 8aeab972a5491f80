"""`run fork`: a run of its own that goes on from a version of another."""

from __future__ import annotations

from collections.abc import Sequence

from broker.connection import Connection
from eventlog.blobs import BlobStore
from eventlog.codec import decode
from eventlog.config import RunConfig
from eventlog.events import Lineage, RunCreated
from eventlog.log import EventLog
from leases.forks import child_settings, lineage
from leases.retention import first_left
from leases.view import View
from ops.configure import ConfigInvalid, changed
from ops.folded import RequestVoid
from ops.founding import begin
from ops.home import Home
from outer.recover import parameters_at
from sitehub.founding import Beginning, begun


def child_config(view: View, version: int, name: str, overrides: Sequence[str]) -> RunConfig:
    """The configuration of a fork: the parent's, with what a fork has otherwise, then the
    operator's overrides. Raises ConfigInvalid, RequestVoid."""
    run = view.run().name
    if any(one.partition("=")[0].partition(".")[0].strip() == "model" for one in overrides):
        raise ConfigInvalid("--set model: a fork has its parent's model, whose parameters it takes")
    try:
        settings = child_settings(view, run, version)
    except ValueError as error:
        if not any(one.strip().startswith("target.") for one in overrides):
            raise RequestVoid(f"run {run}: {error}") from error
        settings = child_settings(view, run, version, target=False)
    tree = view.config().model_dump(mode="json", exclude_none=True)
    tree |= {**settings, "name": name, "model": view.config().model}
    return changed(tree, overrides, f"fork of {run}")


def check_version(view: View, version: int) -> None:
    """Raises RequestVoid where the run has no such version, or not any more."""
    run, newest = view.run().name, view.run().version
    if version > newest:
        raise RequestVoid(f"run {run} has versions 0 to {newest}")
    if (first := first_left(view, version)) is not None:
        raise RequestVoid(
            f"version {version} of run {run} cannot be rebuilt any more: what made it is released "
            f"(snapshots.retention); versions {first} to {newest} can"
        )


async def fork(
    connection: Connection,
    parent: tuple[View, EventLog, BlobStore],
    version: int,
    config: RunConfig,
) -> RunCreated:
    """Create the run `config.name` from a version of its parent. Raises RunExists, and as
    `outer.recover.parameters_at`."""
    view, log, blobs = parent
    with Home.find().scratch(view.run().name) as folder:
        parameters = await parameters_at(view, blobs, folder, version)
    shape = view.index().shape.model_copy(update={"block_sequences": config.data.block_sequences})
    origin = await origin_at(view, log, version)

    beginning = Beginning(parameters, view.run().num_parameters, shape, origin)
    return await begin(
        connection, config, lambda store, place: begun(config, beginning, store, place)
    )


async def origin_at(view: View, log: EventLog, version: int) -> Lineage:
    """Where the parent stood at a version, and which event says so; of a parent that is a fork
    itself, with the tokens that came before it."""
    row, before = view.version(version), lineage(view)
    sequence = row.seq if row else view.ask("SELECT created_seq FROM run")[0][0]
    (record,) = await log.read(sequence - 1, limit=1)
    envelope = decode(record).envelope
    assert envelope is not None, "it is folded"
    return Lineage(
        run=view.run().name,
        version=version,
        parameters_digest=row.parameters_digest if row else view.run().initial_digest,
        made=(sequence, envelope.id),
        tokens=(row.merged_tokens if row else 0) + (before.tokens if before else 0),
    )
