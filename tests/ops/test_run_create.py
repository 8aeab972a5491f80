"""`atoll run create` before it reaches a broker: each problem is one line with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops import exits
from ops.cli import run
from sitehub.build import Options, build
from sitehub.sources import folder
from tests.support.text import write_text

CONFIG = """
name = "small"
target = { rounds = 3 }
data = { path = "DATA", block_sequences = 32 }
inner = { steps = 8, batch_sequences = 8 }
[model]
model_type = "qwen3"
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
max_position_embeddings = 16
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences of 16 tokens from a vocabulary of 300."""
    root = tmp_path_factory.mktemp("data")
    build([folder(write_text(root / "text"))], root / "tokens", Options(16, 300))
    return root / "tokens"


@pytest.fixture
def config(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(CONFIG.replace("DATA", str(data)))
    return path


def refused(capsys: pytest.CaptureFixture[str], config: Path, *options: str) -> str:
    """The one line that the refusal is, without the command's name."""
    assert run(["run", "create", str(config), *options]) == exits.INVALID
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == ""
    return line.removeprefix("atoll: ")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.model_type=nosuch", "model.model_type = 'nosuch' is not a model"),
        ("model.hiden_size=32", "model.hiden_size: qwen3 has no such field; did you mean"),
        ("model.vocab_size=10", "model.vocab_size = 10 is smaller than the data's 300"),
        ("model.max_position_embeddings=8", "model.max_position_embeddings = 8 is smaller"),
        ("model.num_attention_heads=0", "model (qwen3): "),
        ("data.path=", "data.path: missing: "),
        ("data.path=/nowhere/tokens", "data.path: /nowhere/tokens: no data here"),
    ],
)
def test_what_is_wrong_with_model_or_data_begins_with_the_files_name(
    config: Path, capsys: pytest.CaptureFixture[str], override: str, says: str
) -> None:
    assert refused(capsys, config, "--set", override).startswith(f"{config}: {says}")


def test_damaged_data_are_those_of_the_file_or_of_the_option(
    config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("manifest.json", "tokenizer.json", "heldout-00000.bin", "training-00000.bin"):
        (tmp_path / file).write_bytes((data / file).read_bytes())
    (tmp_path / "training-00000.bin").write_bytes(b"short")
    by_key = refused(capsys, config, "--set", f"data.path={tmp_path}")
    assert by_key.startswith(f"{config}: data.path: {tmp_path}/training-00000.bin: ")
    by_option = refused(capsys, config, "--data", str(tmp_path))
    assert by_option.startswith(f"--data: {tmp_path}/training-00000.bin: ")
