"""Tensor files have the library's own bytes, and appear whole or not at all."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outer import tensorfile
from outer.tensorfile import Entry, TensorFileInvalid

TENSORS = {
    "z": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "a/ü": torch.arange(5, dtype=torch.uint8),
    'a"quote': torch.ones(3, dtype=torch.int8),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "half too": torch.ones(2, dtype=torch.float16),
    "empty": torch.zeros(0, 3),
    "one": torch.tensor(1.5),
    "short": torch.ones(3, dtype=torch.int16),
    "int": torch.ones(3, dtype=torch.int32),
    "long": torch.ones(3, dtype=torch.int64),
    "double": torch.ones(3, dtype=torch.float64),
    "truth": torch.ones(3, dtype=torch.bool),
}
ENTRIES = {name: Entry(one.dtype, tuple(one.shape)) for name, one in TENSORS.items()}


@pytest.mark.parametrize("header", [None, {"codec": "fp32", "format": 1}])
def test_the_bytes_are_those_that_the_library_writes(
    header: dict[str, object] | None, tmp_path: Path
) -> None:
    tensorfile.write(TENSORS, tmp_path / "ours", header)
    metadata = None if header is None else {"atoll": json.dumps(header, sort_keys=True)}
    save_file(TENSORS, tmp_path / "theirs", metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_pieces_in_any_order_give_the_same_file(tmp_path: Path) -> None:
    tensorfile.write(TENSORS, tmp_path / "whole", None, durable=True)
    with tensorfile.Writer(tmp_path / "pieces", ENTRIES, None, durable=True) as file:
        for name in reversed(TENSORS):
            values = TENSORS[name].reshape(-1)
            half = len(values) // 2
            file.put(name, values[half:], half)
            file.put(name, values[:half])
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    assert torch.equal(load_file(tmp_path / "pieces")["z"], TENSORS["z"])


def test_a_file_that_lacks_values_does_not_appear(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"lacks bytes of its tensors: .*4}"),
        tensorfile.Writer(
            tmp_path / "file", {"w": ENTRIES["one"]} | {"v": ENTRIES["z"]}, None
        ) as file,
    ):
        file.put("v", TENSORS["z"])
    assert list(tmp_path.iterdir()) == []


def test_values_that_do_not_fit_are_refused_and_nothing_appears(tmp_path: Path) -> None:
    for tensor, start in ((torch.ones(15), 1), (torch.ones(15, dtype=torch.int32), 0)):
        with (
            pytest.raises(ValueError, match="does not fit"),
            tensorfile.Writer(tmp_path / "file", {"z": ENTRIES["z"]}, None) as file,
        ):
            file.put("z", tensor, start)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_gives_tensors_and_any_of_their_values(tmp_path: Path) -> None:
    tensorfile.write(TENSORS, tmp_path / "file", {"format": 7})
    with tensorfile.reading(tmp_path / "file") as reader:
        assert reader.header == {"format": 7}
        assert reader.names == sorted(TENSORS)
        for name, tensor in TENSORS.items():
            assert reader.shape(name) == tuple(tensor.shape)
            assert torch.equal(reader.tensor(name), tensor)
        assert reader.row("z", 4, 3).tolist() == [4.0, 5.0, 6.0]
        with pytest.raises(ValueError, match="ends before"):
            reader.row("z", 13, 3)


def test_a_file_cut_after_it_was_opened_is_torn_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensorfile.write({"w": torch.ones(100_000)}, path, None)
    with (
        pytest.raises(TensorFileInvalid, match="torn"),
        tensorfile.reading(path) as reader,
    ):
        with path.open("r+b") as file:
            file.truncate(1000)
        reader.tensor("w")
