"""What the hub's formats hold, streamed by name or saved: the documents that were written."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from sitehub import given_tokenizer
from sitehub.build import Options, build
from sitehub.documents import documents
from sitehub.hubdata import HubDataset, SavedDataset, is_saved
from sitehub.sources import DataInvalid, Source, file, folder
from tests.support.text import write_text

datasets = pytest.importorskip("datasets")
TEXTS = [f"document {n}: the log is truth" for n in range(600)]
CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
  - split: validation
    path: en/c4-validation.*.json.gz
---
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out as allenai/c4 is: shards of compressed JSON Lines, and a card."""
    root = tmp_path_factory.mktemp("hub") / "c4"
    (root / "en").mkdir(parents=True)
    (root / "README.md").write_text(CARD)
    for shard in range(3):
        name = root / "en" / f"c4-train.{shard:05}-of-00003.json.gz"
        with gzip.open(name, "wt") as stream:
            for text in TEXTS[shard * 200 : shard * 200 + 200]:
                stream.write(json.dumps({"text": text, "url": "u", "timestamp": "t"}) + "\n")
    with gzip.open(root / "en" / "c4-validation.00000-of-00001.json.gz", "wt") as stream:
        stream.write(json.dumps({"text": "held back", "url": "u", "timestamp": "t"}) + "\n")
    return root


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What save_to_disk writes of a dataset with an order of its own, as two splits."""
    root = tmp_path_factory.mktemp("saved")
    rows = datasets.Dataset.from_dict({"text": TEXTS}).select(range(599, -1, -1))
    datasets.DatasetDict(train=rows, other=rows.select(range(3))).save_to_disk(root / "both")
    rows.save_to_disk(root / "one")
    return root


def read(source: Source, unit_bytes: int = 2000) -> tuple[list[str], int]:
    """All documents, in order, and the number of units."""
    units = list(source.units(0, unit_bytes))
    values = [value for unit in units for value in unit.values(Counter())]
    return [one.text for v in values for one in documents(v, Counter())], len(units)


def test_a_dataset_is_streamed_by_name_and_configuration_shard_by_shard(repository: Path) -> None:
    assert read(HubDataset(str(repository), "en")) == (TEXTS, 3)
    assert read(HubDataset(str(repository), "en", "validation")) == (["held back"], 1)


def test_streamed_data_are_the_same_bytes_for_one_process_and_two(
    repository: Path, tmp_path: Path
) -> None:
    source = HubDataset(str(repository), "en")
    one, two = (build([source], tmp_path / str(n), Options(16, 300, processes=n)) for n in (1, 2))
    assert one.manifest_digest == two.manifest_digest
    assert one.manifest.sources[0].num_documents == 600
    assert one.manifest.sources[0].label["config"] == "en"
    assert str(repository.parent) not in (one.directory / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": "de"}, "de"),
        ({"split": "test"}, "test"),
        ({"text_field": "body"}, "has no column 'body' but 'text', 'url', 'timestamp'"),
        ({"name": "nobody/has-this"}, "nobody/has-this: the dataset cannot be read"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    repository: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], says: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    source = HubDataset(**{"name": str(repository), "config": "en"} | change)  # type: ignore[arg-type]
    with pytest.raises(DataInvalid) as caught:
        read(source)
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_saved_dataset_keeps_its_own_order(saved: Path) -> None:
    assert is_saved(saved / "one") and is_saved(saved / "both") and not is_saved(saved)
    for source in (SavedDataset(str(saved / "one")), SavedDataset(str(saved / "both"), "train")):
        texts, num_units = read(source)
        assert texts == TEXTS[::-1]
        assert num_units > 3
    with pytest.raises(DataInvalid, match="holds the splits train, other"):
        read(SavedDataset(str(saved / "both")))
    with pytest.raises(DataInvalid, match="has no column 'body'"):
        read(SavedDataset(str(saved / "one"), None, "body"))


@pytest.mark.parametrize("unit_bytes", [1000, 1 << 20])
def test_tables_are_read_in_parts(saved: Path, tmp_path: Path, unit_bytes: int) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.table({"text": TEXTS, "n": range(600)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    with pyarrow.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    with pyarrow.ipc.new_stream(str(tmp_path / "c.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        texts, num_units = read(file(tmp_path / name), unit_bytes)
        assert texts == TEXTS
        assert (num_units > 1) == (unit_bytes == 1000)
        with pytest.raises(DataInvalid, match="has no column 'body' but 'text', 'n'"):
            read(file(tmp_path / name, "body"))


def test_text_in_a_table_that_is_no_utf8_is_repaired(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    raw = pyarrow.array([b"caf\xe9", b"good", None], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": raw}), tmp_path / "a.parquet")
    assert read(file(tmp_path / "a.parquet"))[0] == ["caf\ufffd", "good"]


def test_a_tokenizer_is_given_as_a_file_a_folder_or_one_of_another_form(tmp_path: Path) -> None:
    source = folder(write_text(tmp_path / "text"))
    trained = build([source], tmp_path / "a", Options(16, 300))
    model = tmp_path / "model"
    model.mkdir()
    data = (trained.directory / "tokenizer.json").read_bytes()
    (model / "tokenizer.json").write_bytes(data)
    for given in (model, model / "tokenizer.json", trained.directory):
        again = build([source], tmp_path / "b", Options(16, tokenizer=given))
        assert again.manifest_digest == trained.manifest_digest
    other = data.replace(b"<|endoftext|>", b"</s>")
    (model / "tokenizer.json").write_bytes(other)
    with pytest.raises(DataInvalid, match=r"has no <\|endoftext\|> and names no end"):
        given_tokenizer.read(str(model))
    assert given_tokenizer.read(str(model), "</s>").end_of_document == "</s>"
    for token in ("</s>", {"content": "</s>", "lstrip": False}):
        (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        assert given_tokenizer.read(str(model)) == given_tokenizer.Given(other, "</s>")


def test_a_tokenizer_that_is_not_there_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("/no/such/tokenizer.json", "nobody/has-this", "./missing"):
        with pytest.raises(DataInvalid) as caught:
            given_tokenizer.read(name)
        assert name in str(caught.value) and len(str(caught.value).splitlines()) == 1
