"""`atoll data` on real text: what it builds, and that damage and difference are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.cli import run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of 24 files."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(24):
        (folder / f"{number:02}.txt").write_text(f"{number} green bottles on the wall\n" * 20)
    return folder


def build(capsys, *arguments: str) -> dict[str, object]:
    """Build with a small vocabulary; what `--json` says."""
    options = ["--vocab-size", "300", "--sequence-tokens", "16", "--json"]
    assert run(["data", "build", *arguments, *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_two_builds_of_one_text_are_equal(text: Path, tmp_path: Path, capsys) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    first, second = build(capsys, str(text), one), build(capsys, str(text), two)
    assert first["manifest_digest"] == second["manifest_digest"]
    assert first["training"]["num_documents"] + first["heldout"]["num_documents"] == 24
    assert run(["data", "verify", one, two]) == 0


def test_data_that_is_there_is_never_overwritten(text: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "one"
    build(capsys, str(text), str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (text / "07.txt").write_text("another text\n")
    assert run(["data", "build", str(text), str(out), "--vocab-size", "300"]) == 2
    assert f"{out} holds data already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_changed_byte_is_named_and_gives_code_1(text: Path, tmp_path: Path, capsys) -> None:
    build(capsys, str(text), str(tmp_path / "one"))
    damaged = tmp_path / "one" / "training-00000.bin"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    assert run(["data", "verify", str(tmp_path / "one"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert [line.startswith(f"{damaged}: ") for line in found["problems"]] == [True]


def test_the_first_difference_of_two_directories_is_named(text: Path, tmp_path: Path, capsys):
    build(capsys, str(text), str(tmp_path / "one"))
    (text / "07.txt").write_text("another text\n")
    build(capsys, str(text), str(tmp_path / "two"))
    assert run(["data", "verify", str(tmp_path / "one"), str(tmp_path / "two")]) == 1
    assert capsys.readouterr().out.startswith("sources[0].num_bytes is ")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["OUT"], 2, "name a FOLDER of text"),
        (["/no/such/folder", "OUT"], 3, "/no/such/folder: no such file or folder"),
        (["TEXT", "OUT", "--vocab-size", "3"], 2, "'--vocab-size': 3 is not in the range"),
        (["TEXT", "OUT", "--vocab-size", "2000000"], 2, "'--vocab-size': 2000000 is not in"),
        (["TEXT", "OUT", "--sequence-tokens", "0"], 2, "'--sequence-tokens': 0 is not in"),
        (["TEXT", "OUT", "--heldout-every", "1"], 2, "'--heldout-every': 1 is not in"),
        (["TEXT", "OUT", "--subset", "0"], 2, "'--subset': 0 is not in"),
        (["TEXT", "OUT", "--config", "en"], 2, "--config is of a dataset of the hub"),
        (["TEXT", "OUT", "--split", "train"], 2, "--split is of --hub, or of"),
        (["FILE", "OUT", "--suffix", ".txt"], 2, "--suffix is of a folder of files"),
        (["TEXT", "OUT", "--end-of-document", "X"], 2, "--end-of-document is of --tokenizer"),
        (["TEXT", "OUT", "--tokenizer", "x", "--vocab-size", "300"], 2, "--vocab-size is of a"),
        (["FILE", "OUT"], 3, ": 1 document; at least two"),
        (["ROWS", "OUT"], 3, "(odd ones: 2 null; rows without the field are null: --field"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    text: Path, tmp_path: Path, capsys, arguments: list[str], code: int, says: str
) -> None:
    out = tmp_path / "out"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"content": "a"}\n{"content": "b"}\n')
    names = {"TEXT": text, "FILE": text / "07.txt", "ROWS": rows, "OUT": out}
    assert run(["data", "build", *(str(names.get(word, word)) for word in arguments)]) == code
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not (out / "manifest.json").exists() and (code == 3 or not out.exists())
