"""What a run starts from: initial parameters from a seed, and the event that fixes everything."""

from __future__ import annotations

from pathlib import Path

from eventlog.blobs import BlobStore
from eventlog.codec import content_digest
from eventlog.config import RunConfig
from eventlog.events import DataShape, RunCreated
from outer.arithmetic import self_test
from outer.versions import digest, save_parameters
from sitehub.corpus import Corpus
from sitehub.model import build_model, num_parameters, parameters_of


def data_shape(config: RunConfig, corpus: Corpus) -> DataShape:
    """The corpus as leases see it."""
    return DataShape(
        manifest_digest=corpus.manifest_digest,
        num_sequences=corpus.num_sequences,
        sequence_tokens=corpus.sequence_tokens,
        block_sequences=config.data.block_sequences,
    )


async def found(config: RunConfig, corpus: Corpus, blobs: BlobStore, folder: Path) -> RunCreated:
    """Build the model from the configuration's seed, store its parameters, and say so in an event
    that is still to be appended. Raises ModelInvalid, BlobUnavailable."""
    model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
    parameters = parameters_of(model)
    path = folder / "initial-parameters"
    save_parameters(parameters, path)
    blob = await blobs.put(path)
    path.unlink()
    content = config.model_dump(mode="json", exclude_none=True)
    content["data"].pop("path")  # where it lies on this machine is nobody's business
    arithmetic = self_test()
    return RunCreated(
        config=content,
        config_digest=content_digest(content),
        data=data_shape(config, corpus),
        parameters_blob=blob.digest,
        parameters_digest=digest(parameters),
        num_parameters=num_parameters(model),
        arithmetic=dict(arithmetic.operations),
        arithmetic_digest=arithmetic.digest,
    )
