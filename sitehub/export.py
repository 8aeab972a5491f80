"""A model as the directory that Hugging Face's libraries load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from eventlog.errors import AtollError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel


class ExportInvalid(AtollError):
    """The directory to export to cannot be used."""


def check_target(target: Path) -> None:
    """Raises ExportInvalid where something is there already."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportInvalid(f"{target}: is there already and not empty; choose another directory")


def write(
    target: Path,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    end_of_document: str,
    card: str,
) -> None:
    """Make `target`, whole or not at all: config, weights (safetensors, fp32, tied ones once),
    tokenizer, generation config, and `card` as its README. The end of a document is the token that
    ends a generated text, and pads. Raises ExportInvalid, OSError."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    logging.disable_progress_bar()  # what it draws is no talk of ours
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        end = tokenizer.token_to_id(end_of_document)
        model.generation_config = GenerationConfig(
            bos_token_id=end, eos_token_id=end, pad_token_id=end
        )
        model.config.eos_token_id = end
        model.save_pretrained(part)
        for weights in part.glob("*.safetensors"):  # which the library keeps from others' eyes
            weights.chmod((part / "config.json").stat().st_mode)
        whole = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=end_of_document,
            eos_token=end_of_document,
            pad_token=end_of_document,
            model_max_length=getattr(model.config, "max_position_embeddings", None),
            clean_up_tokenization_spaces=False,
        )
        whole.save_pretrained(part)
        (part / "README.md").write_text(card, encoding="utf-8")
        if target.exists():
            target.rmdir()  # it is empty
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
