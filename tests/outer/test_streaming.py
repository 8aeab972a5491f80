"""Deltas are written and read tensor by tensor, and a file that lies is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from outer import codecs
from outer.codecs import DeltaInvalid, NonFinite
from outer.packing import CODECS, pack
from outer.values import GRAIN, PIECE

SHAPES = {"a": (3, 5000), "b": (), "c": (0, 2), "d": (129,)}
FLAT = ("int8", "4-bit", "top-k")


def model(seed: int = 1) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(np.asarray(random.standard_normal(shape), np.float32))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("codec", CODECS)
def test_what_add_returns_is_what_a_reader_decodes(codec: str, tmp_path: Path) -> None:
    tensors = model()
    with codecs.Writer(tmp_path / "d", codec, SHAPES, durable=True) as file:
        found = {name: file.add(name, tensors[name]) for name in reversed(tensors)}
    with codecs.Opened(tmp_path / "d", tensors) as opened:
        assert opened.codec == codec
        assert opened.names == sorted(SHAPES)
        for name in opened.names:
            assert torch.equal(opened.tensor(name), found[name])
    codecs.encode(tensors, codec, tmp_path / "e")
    assert (tmp_path / "d").read_bytes() == (tmp_path / "e").read_bytes()


@pytest.mark.parametrize("codec", CODECS)
def test_a_tensor_may_be_written_over_by_what_is_decoded(codec: str, tmp_path: Path) -> None:
    tensors = model()
    codecs.encode(tensors, codec, tmp_path / "e")
    with codecs.Writer(tmp_path / "d", codec, SHAPES) as file:
        for name, tensor in tensors.items():
            assert file.add(name, tensor, tensor) is tensor
    assert (tmp_path / "d").read_bytes() == (tmp_path / "e").read_bytes()
    for name, tensor in codecs.decode(tmp_path / "d").items():
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("codec", CODECS)
def test_pieces_are_written_and_read_as_the_whole(codec: str, tmp_path: Path) -> None:
    values, cut = model()["a"].reshape(-1), 2 * GRAIN
    codecs.encode({"w": values}, codec, tmp_path / "e")
    out = torch.empty_like(values)
    with codecs.Writer(tmp_path / "d", codec, {"w": values.shape}) as file:
        file.add_piece("w", cut, values[cut:], out[cut:].numpy())
        file.add_piece("w", 0, values[:cut], out[:cut].numpy())
    assert (tmp_path / "d").read_bytes() == (tmp_path / "e").read_bytes()
    with codecs.Opened(tmp_path / "d") as opened:
        piece = torch.empty(GRAIN)
        opened.piece("w", GRAIN, piece.numpy())
        assert torch.equal(piece, opened.tensor("w")[GRAIN:cut])
        assert torch.equal(out, opened.tensor("w"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_value_that_is_refused_leaves_no_file(codec: str, tmp_path: Path) -> None:
    tensors = model()
    tensors["d"][128] = torch.nan
    with pytest.raises(NonFinite, match="'d' holds NaN or infinity"):
        codecs.encode(tensors, codec, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", FLAT)
def test_a_value_beyond_a_codecs_range_is_refused(codec: str, tmp_path: Path) -> None:
    with pytest.raises(NonFinite, match=f"holds 3e.38, which {codec} cannot hold"):
        codecs.encode({"w": torch.full((3,), 3e38)}, codec, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_anywhere_is_torn_at_opening(codec: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / "d"
    codecs.encode(model(), codec, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DeltaInvalid) as caught, codecs.Opened(path):
        pass
    assert caught.value.code == "blob"


def rewritten(path: Path, codec: str, header: dict[str, Any], **parts: torch.Tensor) -> None:
    """A file of this codec whose header or parts say something else."""
    codecs.encode({"w": torch.ones(300)}, codec, path)
    with safe_open(path, framework="pt") as file:
        said = json.loads(file.metadata()["atoll"]) | header
    said = {key: value for key, value in said.items() if value is not None}
    stored = load_file(path) | {f"{part}/w": values for part, values in parts.items()}
    save_file(stored, path, {"atoll": json.dumps(said, sort_keys=True)})


LIES: dict[str, tuple[str, dict[str, Any], dict[str, torch.Tensor], str]] = {
    "another block": ("4-bit", {"block": 64}, {}, "with parameters .*'block': 64"),
    "another number of bits": ("int8", {"bits": 6}, {}, "with parameters .*'bits': 6"),
    "another chunk": ("top-k", {"chunk": 8192}, {}, "'chunk': 8192"),
    "more that are kept": ("top-k", {"k": 128}, {}, "'k': 128"),
    "a parameter more": ("int8", {"zero_point": 3}, {}, "'zero_point': 3"),
    "no shapes": ("4-bit", {"shapes": None}, {}, "does not say the shape"),
    "shapes of other tensors": ("4-bit", {"shapes": {"v": [300]}}, {}, "does not say the shape"),
    "a shape that is none": ("4-bit", {"shapes": {"w": "300"}}, {}, "for the shape of 'w'"),
    "a negative shape": ("4-bit", {"shapes": {"w": [-300]}}, {}, "for the shape of 'w'"),
    "a true shape": ("4-bit", {"shapes": {"w": [True]}}, {}, "for the shape of 'w'"),
    "an endless shape": ("top-k", {"shapes": {"w": [2**62, 0]}}, {}, "for the shape of 'w'"),
    "a larger shape": ("top-k", {"shapes": {"w": [2**40]}}, {}, "kept of 'w' of another length"),
    "too few scales": ("int8", {}, {"scales": torch.ones(2).bfloat16()}, "scales of 'w' of anot"),
    "scales of fp32": ("int8", {}, {"scales": torch.ones(3)}, "'scales/w' of F32"),
    "an infinite scale": (
        "int8",
        {},
        {"scales": torch.tensor([1, torch.inf, 1]).bfloat16()},
        "bad 'w': one of its scales",
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_a_file_that_says_what_is_not_so_is_refused(case: str, tmp_path: Path) -> None:
    codec, header, parts, text = LIES[case]
    rewritten(tmp_path / "delta", codec, header, **parts)
    with pytest.raises(DeltaInvalid, match=text) as caught:
        codecs.validate_delta(tmp_path / "delta", {"w": torch.ones(300)}, codec)
    assert caught.value.code == "form"


@pytest.mark.parametrize("codec", CODECS)
def test_names_and_shapes_are_checked_before_a_tensor_is_read(codec: str, tmp_path: Path) -> None:
    codecs.encode(model(), codec, tmp_path / "d")
    for name, shape in (("a", (5000, 3)), ("b", (1,)), ("z", (3,))):
        reference = model() | {name: torch.empty(shape)}
        with pytest.raises(DeltaInvalid) as caught, codecs.Opened(tmp_path / "d", reference):
            pass
        assert caught.value.code == "form"


@pytest.mark.parametrize("codec", CODECS)
def test_a_delta_is_measured_as_it_decodes(codec: str, tmp_path: Path) -> None:
    codecs.encode(model(), codec, tmp_path / "d")
    norms = codecs.validate_delta(tmp_path / "d", model(), codec)
    flat = np.concatenate([t.reshape(-1).numpy() for t in codecs.decode(tmp_path / "d").values()])
    assert norms.norm == pytest.approx(float(np.linalg.norm(flat.astype(np.float64))), rel=1e-14)
    assert norms.max_abs == np.abs(flat).max()
    assert norms.finite


def test_a_delta_of_many_pieces_is_measured_like_its_tensors(tmp_path: Path) -> None:
    tensors = {
        "w": torch.from_numpy(np.random.default_rng(1).standard_normal(2 * PIECE + 9, np.float32))
    }
    codecs.encode(tensors, "fp32", tmp_path / "d")
    assert codecs.validate_delta(tmp_path / "d", tensors, "fp32") == codecs.measure(tensors)


def test_the_norms_of_a_delta_do_not_depend_on_its_pieces() -> None:
    values = torch.from_numpy(np.random.default_rng(2).standard_normal(70_001, np.float32))
    exact = float(np.sqrt(np.sum(values.numpy().astype(np.longdouble) ** 2)))
    assert codecs.measure({"w": values}).norm == pytest.approx(exact, rel=1e-15)
    assert codecs.measure({"w": values}) == codecs.measure({"w": values.clone()})


def test_parts_that_are_stored_are_those_of_the_codec(tmp_path: Path) -> None:
    tensors = model()
    for codec in CODECS:
        codecs.encode(tensors, codec, tmp_path / "d")
        stored = load_file(tmp_path / "d")
        for name, tensor in tensors.items():
            for part, values in pack(CODECS[codec], tensor).items():
                assert torch.equal(stored.pop(f"{part}/{name}"), values)
        assert not stored
