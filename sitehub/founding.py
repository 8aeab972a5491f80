"""What a run starts from: initial parameters from a seed, and the event that fixes everything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eventlog.blobs import BlobStore
from eventlog.codec import content_digest
from eventlog.config import RunConfig
from eventlog.events import DataShape, Lineage, RunCreated
from outer.arithmetic import self_test
from outer.versions import digest, save_parameters
from sitehub.corpus import Corpus
from sitehub.model import Parameters, num_parameters, parameters_of
from sitehub.pretrained import check_tokenizer, starting_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def data_shape(config: RunConfig, corpus: Corpus) -> DataShape:
    """The corpus as leases see it."""
    return DataShape(
        manifest_digest=corpus.manifest_digest,
        num_sequences=corpus.num_sequences,
        sequence_tokens=corpus.sequence_tokens,
        block_sequences=config.data.block_sequences,
    )


def start(config: RunConfig, corpus: Corpus) -> tuple[RunConfig, PreTrainedModel]:
    """The configuration as the log will hold it, its `model` table written out, and the model with
    the parameters that the run starts from. Raises ModelInvalid."""
    check_tokenizer(config.model, corpus.tokenizer)
    table, model = starting_model(
        config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens
    )
    return config.model_copy(update={"model": table}), model


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run starts from. `lineage`: of a fork."""

    parameters: Parameters
    num_parameters: int
    shape: DataShape
    lineage: Lineage | None = None


async def found(
    config: RunConfig, model: PreTrainedModel, corpus: Corpus, blobs: BlobStore, folder: Path
) -> RunCreated:
    """Store a model's parameters, from which a run starts, and say so in an event that is still to
    be appended; both as `start` gives them. Raises BlobUnavailable."""
    shape = data_shape(config, corpus)
    beginning = Beginning(parameters_of(model), num_parameters(model), shape)
    return await begun(config, beginning, blobs, folder)


async def begun(
    config: RunConfig, beginning: Beginning, blobs: BlobStore, folder: Path
) -> RunCreated:
    """As `found`, from anything. Raises BlobUnavailable."""
    path = folder / "initial-parameters"
    save_parameters(beginning.parameters, path)
    blob = await blobs.put(path)
    path.unlink()
    content = config.model_dump(mode="json", exclude_none=True)
    content["model"] = config.model  # where null has a meaning
    content["data"].pop("path")  # where it lies on this machine is nobody's business
    arithmetic = self_test()
    return RunCreated(
        config=content,
        config_digest=content_digest(content),
        data=beginning.shape,
        parameters_blob=blob.digest,
        parameters_digest=digest(beginning.parameters),
        num_parameters=beginning.num_parameters,
        arithmetic=dict(arithmetic.operations),
        arithmetic_digest=arithmetic.digest,
        lineage=beginning.lineage,
    )
