"""`run create`: everything that can be wrong is found before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from broker.connection import Connection
from broker.jetstream_log import JetStreamLog
from eventlog.blobs import BlobStore
from eventlog.config import RunConfig
from eventlog.errors import AtollError, Conflict
from eventlog.events import OPERATOR, NamedKey, RunCreated
from eventlog.writer import Stamp, Writer
from ops.configure import ConfigInvalid
from ops.connect import blobs_of, usable
from sitehub.corpus import Corpus, DataInvalid
from sitehub.founding import found, start
from sitehub.model import ModelInvalid

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class RunExists(AtollError):
    """A run of that name is on the broker already."""


def checked(
    config: RunConfig, file: Path, data: str | None = None
) -> tuple[RunConfig, PreTrainedModel, Corpus]:
    """Configuration and model that the run starts with, and its data, every byte of them verified.
    The data are in `data`, else where the configuration says, which was read from `file`.
    Raises ConfigInvalid and DataInvalid, each naming the file and the key, or --data."""
    place = data or config.data.path
    if not place:
        raise ConfigInvalid(
            f"{file}: data.path: missing: the folder that `atoll data build` wrote, or --data"
        )
    try:
        corpus = Corpus.open(Path(place), verify="full")
    except DataInvalid as error:
        raise DataInvalid(f"{'--data' if data else f'{file}: data.path'}: {error}") from error
    try:
        config, model = start(config, corpus)
    except ModelInvalid as error:
        raise ConfigInvalid(f"{file}: {error}") from error
    return config, model, corpus


async def create(
    connection: Connection,
    config: RunConfig,
    model: PreTrainedModel,
    corpus: Corpus,
    keys: tuple[NamedKey, ...] = (),
    *,
    storing: Callable[[], None] = lambda: None,
) -> RunCreated:
    """Make the run's stream and blob bucket, store its initial parameters, say that it exists.
    `storing` is called just before they are stored. Raises as `begin`."""

    async def make(blobs: BlobStore, folder: Path) -> RunCreated:
        storing()
        return await found(config, model, corpus, blobs, folder)

    return await begin(connection, config, make, keys)


async def begin(
    connection: Connection,
    config: RunConfig,
    make: Callable[[BlobStore, Path], Awaitable[RunCreated]],
    keys: tuple[NamedKey, ...] = (),
) -> RunCreated:
    """Make a run's stream and blob bucket, and append the event that `make` makes, which may store
    blobs and use a folder for them. `keys` sign its history, and our own does, where we have one.

    A creation that was interrupted is completed by doing it again. Raises RunExists, and what
    `usable` raises, before anything is made.
    """
    await usable(config.blobs)
    log = await JetStreamLog.create(connection, config.name)
    if await log.last_sequence():
        raise RunExists(f"run {config.name} exists on {connection.url}: choose another name")
    blobs = await blobs_of(connection, config.name, config.blobs, create=True)
    try:
        with TemporaryDirectory(prefix="atoll-create-") as folder:
            event = await make(blobs, Path(folder))
    finally:
        await blobs.close()
    if connection.key is not None:
        ours = NamedKey(subject=OPERATOR, key=connection.key.public)
        keys = tuple(dict.fromkeys((ours, *keys)))
    event = event.model_copy(update={"keys": keys})
    try:
        await Writer(log, OPERATOR, key=connection.key).append([event], Stamp())
    except Conflict as error:
        raise RunExists(f"run {config.name} was created by somebody else just now") from error
    await log.close()
    return event
