"""The model of a run, built from its configuration's `model` table by transformers.

The table is a transformers configuration: `model_type` and that type's own fields, nothing else.
A misspelt field would be kept and ignored by transformers, so it is refused here. Nothing is
fetched: the table says all there is to know. (`sitehub.pretrained` makes a table of files.)
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a trainer has no network; fail at once, not late

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from eventlog.errors import AtollError

Parameters = dict[str, torch.Tensor]

# Common to all types, spelt at the top of a config.json and folded into rope_parameters.
_ROPE_FIELDS = frozenset({"rope_theta", "rope_scaling"})


class ModelInvalid(AtollError):
    """The `model` table describes no model that can be trained; the text says why."""


def model_config(table: Mapping[str, Any], vocab_size: int) -> PreTrainedConfig:
    """The transformers configuration of a `model` table; `vocab_size` fills an absent one.
    Raises ModelInvalid: unknown type or field, a value of the wrong kind, a vocabulary smaller
    than the data's."""
    given = dict(table)
    model_type = given.pop("model_type", None)
    kind = _config_class(model_type)
    unknown = sorted(set(given) - known_fields(kind))
    if unknown:
        raise ModelInvalid(f"model.{unknown[0]}: {_unknown_field(unknown[0], kind)}")
    given.setdefault("vocab_size", vocab_size)
    try:
        config = AutoConfig.for_model(model_type, **given)
    except Exception as error:  # the library's own validation, of several unrelated kinds
        raise ModelInvalid(f"model ({model_type}): {one_line(error)}") from error
    if config.vocab_size < vocab_size:
        raise ModelInvalid(
            f"model.vocab_size = {config.vocab_size} is smaller than the data's {vocab_size}; "
            "leave it out, or give at least that"
        )
    return config


def build_model(
    table: Mapping[str, Any], vocab_size: int, seed: int, sequence_tokens: int = 1
) -> PreTrainedModel:
    """A model of fp32 parameters on the CPU, initialised from `seed` alone; the process's own
    random state is left as it was. Raises ModelInvalid, also where the model has fewer positions
    than a sequence has tokens."""
    config = model_config(table, vocab_size)
    positions = getattr(config, "max_position_embeddings", None) or sequence_tokens
    if positions < sequence_tokens:
        raise ModelInvalid(
            f"model.max_position_embeddings = {positions} is smaller than the data's sequences of "
            f"{sequence_tokens} tokens"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            _try_out(model)
        except Exception as error:  # sizes that do not fit each other fail anywhere in it
            raise ModelInvalid(
                f"model ({config.model_type}): cannot be built: {one_line(error)}"
            ) from error
    return model


def parameters_of(model: torch.nn.Module) -> Parameters:
    """The parameters by name, sorted, tied weights once: detached views of the model's own
    storage, on its device, so writing to them changes the model."""
    return {name: value.detach() for name, value in sorted(model.named_parameters())}


def load_into(model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
    """Copy values into a model, whatever its device. Raises ModelInvalid, before anything is
    changed, where names or shapes are not the model's."""
    check_fits(model, parameters)
    for name, value in parameters_of(model).items():
        value.copy_(parameters[name])


def check_fits(model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
    """Raises ModelInvalid where names or shapes are not the model's."""
    own = parameters_of(model)
    if own.keys() != parameters.keys():
        name = min(own.keys() ^ parameters.keys())
        where = "missing" if name in own else "not one of this model's"
        raise ModelInvalid(f"parameter {name!r} is {where}; they belong to another configuration")
    for name, value in own.items():
        if value.shape != parameters[name].shape:
            raise ModelInvalid(
                f"parameter {name!r} has shape {tuple(parameters[name].shape)}, "
                f"this model's is {tuple(value.shape)}"
            )


def num_parameters(model: torch.nn.Module) -> int:
    """Numbers in all parameters, tied weights once."""
    return sum(value.numel() for value in parameters_of(model).values())


def _try_out(model: PreTrainedModel) -> None:
    """Two tokens through the model: heads that do not divide each other show only then."""
    if any(parameter.numel() == 0 for parameter in model.parameters()):
        raise ValueError("a size of 0 leaves it without parameters")
    with torch.inference_mode():
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False)


def _config_class(model_type: object) -> type[PreTrainedConfig]:
    known = AutoModelForCausalLM._model_mapping
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        kind: type[PreTrainedConfig] = CONFIG_MAPPING[model_type]
        if kind in known:
            return kind
        raise ModelInvalid(f"model.model_type = {model_type!r} is no causal language model")
    known_types = list(CONFIG_MAPPING) if isinstance(model_type, str) else []
    raise ModelInvalid(
        f"model.model_type = {model_type!r} is not a model transformers has"
        + _hint(str(model_type), known_types)
    )


def known_fields(kind: type[PreTrainedConfig]) -> set[str]:
    """The type's own fields and their aliases; those of every configuration (dtype, labels) are
    the trainer's to decide."""
    names = {item.name for item in fields(kind)} - {item.name for item in fields(PreTrainedConfig)}
    if "rope_parameters" in names:
        names |= _ROPE_FIELDS
    return names | set(kind.attribute_map)


def _unknown_field(name: str, kind: type[PreTrainedConfig]) -> str:
    return f"{kind.model_type} has no such field" + _hint(name, sorted(known_fields(kind)))


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_line(error: Exception) -> str:
    """What a library says of a mistake, without its line breaks."""
    text = " ".join(str(error).split())
    return f"unknown value {text}" if isinstance(error, KeyError) else text or type(error).__name__
