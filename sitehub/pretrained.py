"""A run's model from files: a config.json, or a Hugging Face checkpoint to go on from.

Both are read once, by `run create`: the log then holds the whole table, and the initial parameters
are a blob, so no site needs the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from sitehub.model import (
    ModelInvalid,
    build_model,
    known_fields,
    load_into,
    model_config,
    one_line,
    parameters_of,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PROBE_TOKENS = 16


def resolve(table: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """The table as a log holds it: `path` and `checkpoint` replaced by what the config.json there
    says. Raises ModelInvalid."""
    if "checkpoint" in table:
        if len(table) > 1:
            more = min(table.keys() - {"checkpoint"})
            raise ModelInvalid(
                f"model.{more}: a checkpoint brings its whole configuration; leave it out"
            )
        return _table_of(Path(str(table["checkpoint"])), "checkpoint", vocab_size)
    if "path" not in table:
        return dict(table)
    given = {key: value for key, value in table.items() if key != "path"}
    found = _table_of(Path(str(table["path"])), "path", 0)
    if given.setdefault("model_type", found["model_type"]) != found["model_type"]:
        raise ModelInvalid(
            f"model.model_type = {given['model_type']!r}, but model.path is of {table['path']}, "
            f"a {found['model_type']}; leave one of the two out"
        )
    return found | given


def starting_model(
    table: Mapping[str, Any], vocab_size: int, seed: int, sequence_tokens: int
) -> tuple[dict[str, Any], PreTrainedModel]:
    """The resolved table, and the model with the parameters that a run starts from: drawn from the
    seed, or those of `checkpoint`. Raises ModelInvalid."""
    resolved = resolve(table, vocab_size)
    model = build_model(resolved, vocab_size, seed, sequence_tokens)
    if "checkpoint" in table:
        _take_over(model, Path(str(table["checkpoint"])))
    return resolved, model


def check_tokenizer(table: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Raises ModelInvalid where a checkpoint was trained with other tokens than the data have."""
    from tokenizers import Tokenizer as Loaded

    path = Path(str(table.get("checkpoint", ""))) / "tokenizer.json"
    if "checkpoint" not in table or not path.is_file():
        return
    if Loaded.from_file(str(path)).get_vocab() != tokenizer.get_vocab():
        raise ModelInvalid(
            f"model.checkpoint: {path} has another vocabulary than the data's tokenizer; build the "
            "data with that tokenizer"
        )


def _take_over(model: PreTrainedModel, folder: Path) -> None:
    """The checkpoint's parameters into a model of its configuration; proven by equal logits, which
    covers buffers and fields that no table could hold."""
    logging.disable_progress_bar()  # what it draws is no talk of ours
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # the library's own, of many kinds
        raise ModelInvalid(f"model.checkpoint: {folder}: {one_line(error)}") from error
    loaded, info = found
    if missing := sorted(info["missing_keys"]):
        raise ModelInvalid(f"model.checkpoint: {folder} holds no {missing[0]}")
    load_into(model, parameters_of(loaded))
    probe = torch.arange(_PROBE_TOKENS).remainder(model.config.vocab_size).unsqueeze(0)
    was_training = model.training
    with torch.inference_mode():
        logits = [one.eval()(input_ids=probe, use_cache=False).logits for one in (model, loaded)]
    model.train(was_training)
    if not torch.equal(*logits):
        raise ModelInvalid(
            f"model.checkpoint: {folder}: the model has state besides its parameters and its "
            "configuration (buffers of its own), which a run cannot carry"
        )


def _table_of(path: Path, key: str, vocab_size: int) -> dict[str, Any]:
    """What a config.json says, in the words of a table: every field of the type, defaults too, for
    defaults may change with the library's version."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelInvalid(f"model.{key}: {file}: no such file")
    try:
        read: PreTrainedConfig = AutoConfig.from_pretrained(file, local_files_only=True)
    except Exception as error:
        raise ModelInvalid(f"model.{key}: {file}: {one_line(error)}") from error
    content, known = read.to_dict(), known_fields(type(read))
    table = {name: value for name, value in sorted(content.items()) if name in known}
    table["model_type"] = read.model_type
    again = model_config(table, vocab_size).to_dict()
    for name in known & content.keys():
        if again.get(name) != content[name]:
            raise ModelInvalid(
                f"model.{key}: {file}: {name} = {content[name]!r} becomes {again.get(name)!r} when "
                "it is read again; write the model as a table"
            )
    return table
