"""A run starts from any causal model's configuration, or from a checkpoint, told once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sitehub.corpus import Corpus
from sitehub.founding import start
from sitehub.model import ModelInvalid, build_model, parameters_of
from sitehub.pretrained import check_tokenizer, resolve, starting_model
from tests.sitehub.support import TABLE, run_config

LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_theta": 5000.0,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 300, "n_embd": 32, "n_layer": 1, "n_head": 2}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": None}  # null is not its default
TABLES = [TABLE | {"vocab_size": 300}, LLAMA, GPT2, MISTRAL]


def saved(table: dict[str, Any], folder: Path) -> PreTrainedModel:
    """A checkpoint as transformers alone writes it."""
    given = dict(table)
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(given.pop("model_type"), **given)
    )
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table["model_type"]))
def test_checkpoint_goes_on_as_it_is(table: dict[str, Any], tmp_path: Path) -> None:
    source = saved(table, tmp_path)
    resolved, model = starting_model({"checkpoint": str(tmp_path)}, 300, 0, 16)
    assert resolved["model_type"] == table["model_type"] and "checkpoint" not in resolved
    expected = parameters_of(source)
    assert all(torch.equal(value, expected[name]) for name, value in parameters_of(model).items())
    # What a site builds from the log's table alone, once it has the parameters' blob.
    site = build_model(json.loads(json.dumps(resolved)), 300, 0, 16)
    for name, value in parameters_of(site).items():
        value.copy_(expected[name])
    tokens = torch.arange(12).unsqueeze(0)
    with torch.inference_mode():
        logits = [one.eval()(input_ids=tokens).logits for one in (source, model, site)]
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table["model_type"]))
def test_configuration_by_path_is_the_table_it_was_written_from(
    table: dict[str, Any], tmp_path: Path
) -> None:
    saved(table, tmp_path)
    by_path, drawn = starting_model({"path": str(tmp_path / "config.json")}, 300, 5, 16)
    direct = parameters_of(build_model(table, 300, 5, 16))
    assert by_path["vocab_size"] == 300
    found = parameters_of(drawn)
    assert found.keys() == direct.keys()
    assert all(torch.equal(value, direct[name]) for name, value in found.items())


def test_other_keys_change_what_a_path_says(tmp_path: Path) -> None:
    saved(LLAMA, tmp_path)
    found = resolve({"path": str(tmp_path), "num_hidden_layers": 1}, 300)
    assert (found["num_hidden_layers"], found["hidden_size"]) == (1, 32)


def test_run_holds_the_written_out_table(corpus: Corpus, tmp_path: Path) -> None:
    saved(MISTRAL, tmp_path)
    config, model = start(run_config(model={"checkpoint": str(tmp_path)}), corpus)
    assert config.model["model_type"] == "mistral" and config.model["sliding_window"] is None
    assert model.config.sliding_window is None


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"checkpoint": "nowhere"}, "model.checkpoint: nowhere: no such file"),
        ({"path": "nowhere"}, "model.path: nowhere: no such file"),
        ({"checkpoint": "HERE", "hidden_size": 8}, "model.hidden_size: a checkpoint brings"),
        ({"path": "HERE", "model_type": "qwen3"}, "a llama; leave one of the two out"),
        ({"path": "HERE", "hiden_size": 8}, "hiden_size.*did you mean 'hidden_size'"),
    ],
)
def test_files_that_give_no_model_are_refused(
    table: dict[str, Any], says: str, tmp_path: Path
) -> None:
    saved(LLAMA, tmp_path)
    given = {key: str(tmp_path) if value == "HERE" else value for key, value in table.items()}
    with pytest.raises(ModelInvalid, match=says) as raised:
        starting_model(given, 300, 0, 16)
    assert "\n" not in str(raised.value)


def test_checkpoint_without_some_of_its_weights_is_refused(tmp_path: Path) -> None:
    saved(LLAMA, tmp_path)
    smaller = tmp_path / "smaller"
    saved(LLAMA | {"num_hidden_layers": 1}, smaller)
    (smaller / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    with pytest.raises(ModelInvalid, match=r"holds no model\.layers\.1"):
        starting_model({"checkpoint": str(smaller)}, 300, 0, 16)


def test_data_of_another_tokenizer_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    table = {"checkpoint": str(tmp_path)}
    content = json.loads((corpus.directory / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    check_tokenizer(table, corpus.tokenizer)
    *content["model"]["merges"], last = content["model"]["merges"]
    del content["model"]["vocab"]["".join(last)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelInvalid, match="another vocabulary"):
        check_tokenizer(table, corpus.tokenizer)
