"""Codecs give the bits they promise, and refuse what they cannot hold."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from outer import codecs
from outer.packing import CODECS, pack, unpack
from outer.values import PIECE


def from_bits(*bits: int) -> torch.Tensor:
    return torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.int32).numpy().view(np.uint32)


def through(codec: str, tensor: torch.Tensor) -> torch.Tensor:
    """Packed and unpacked again."""
    return unpack(CODECS[codec], pack(CODECS[codec], tensor), torch.empty(tensor.shape))


def bf16_by_float64(tensor: torch.Tensor) -> np.ndarray:
    """Round to nearest even by arithmetic: scale by the spacing of bf16 at each value, let numpy
    round the exact float64 quotient to an even integer, and scale back. Gives fp32 bits."""
    values = tensor.contiguous().numpy().astype(np.float64)
    _, exponent = np.frexp(values)
    spacing = np.ldexp(1.0, np.maximum(exponent - 8, -133))  # 8 bits; 2^-133: smallest denormal
    with np.errstate(over="ignore"):
        rounded: np.ndarray = (np.rint(values / spacing) * spacing).astype(np.float32)
    return rounded.view(np.uint32)


CORNERS = {
    "zeros of both signs": (0x00000000, 0x80000000),
    "smallest denormals": (0x00000001, 0x80000001, 0x00008000, 0x00008001, 0x00018000),
    "largest denormals": (0x007FFFFF, 0x807FFFFF, 0x007F8000, 0x007F7FFF),
    "smallest normals": (0x00800000, 0x80800000, 0x00808000, 0x00818000),
    "ties to even, both ways": (0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000),
    "just off a tie": (0x3F808001, 0x3F807FFF, 0x3F818001, 0x3F817FFF),
    "carry into the exponent": (0x3FFF8000, 0x3FFFFFFF, 0xBFFFFFFF),
    "largest that stays finite": (0x7F7F7FFF, 0xFF7F7FFF),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_bf16_rounds_to_nearest_even_at(corner: str) -> None:
    tensor = from_bits(*CORNERS[corner])
    assert bits_of(through("bf16", tensor)).tolist() == bf16_by_float64(tensor).tolist()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_bf16_rounds_any_finite_bits_as_the_independent_rule_says(bits: list[int]) -> None:
    finite = [b if b & 0x7FFFFFFF <= 0x7F7F7FFF else b & 0x807FFFFF for b in bits]
    tensor = from_bits(*finite)
    assert bits_of(through("bf16", tensor)).tolist() == bf16_by_float64(tensor).tolist()
    packed = pack(CODECS["bf16"], tensor)["values"]
    assert torch.equal(packed.view(torch.int16), tensor.bfloat16().view(torch.int16))


def test_bf16_rounds_alike_in_every_piece_of_a_large_tensor() -> None:
    words = np.random.default_rng(3).integers(0, 0x7F000000, 2 * PIECE + 77, dtype=np.uint32)
    tensor = torch.from_numpy(words.view(np.float32).copy())
    assert np.array_equal(bits_of(through("bf16", tensor)), bf16_by_float64(tensor))


def test_every_bf16_pattern_unpacks_to_the_upper_half_of_fp32() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    stored = torch.from_numpy(patterns.view(np.int16).copy()).view(torch.bfloat16)
    unpacked = unpack(CODECS["bf16"], {"values": stored}, torch.empty(1 << 16))
    assert np.array_equal(bits_of(unpacked), patterns.astype(np.uint32) << 16)


ELEMENTWISE = ("fp32", "bf16")
SHAPES = [(), (0,), (0, 3), (1,), (7,), (3, 5), (2, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("codec", ELEMENTWISE)
def test_a_decoded_tensor_has_the_shape_and_the_representable_values_of_the_encoded(
    codec: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    num_elements = int(np.prod(shape))
    tensor = (torch.arange(num_elements, dtype=torch.float32) - 2).reshape(shape)
    codecs.encode({"w": tensor, "constant": torch.full(shape, 0.5)}, codec, tmp_path / "d")
    decoded = codecs.decode(tmp_path / "d")
    assert list(decoded) == ["constant", "w"]
    assert decoded["w"].dtype is torch.float32
    assert torch.equal(decoded["w"], tensor)
    assert torch.equal(decoded["constant"], torch.full(shape, 0.5))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_each_tensor_of_a_file_is_decoded_as_if_it_were_alone(
    codec: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensors = {
        f"w{i}": (torch.arange(int(np.prod(shape))) - i).float().reshape(shape) for i in range(4)
    }
    codecs.encode(tensors, codec, tmp_path / "d")
    decoded = codecs.decode(tmp_path / "d")
    assert list(decoded) == sorted(tensors)
    for name, tensor in tensors.items():
        assert decoded[name].shape == shape
        assert torch.equal(decoded[name], through(codec, tensor))


def test_fp32_keeps_every_bit(tmp_path: Path) -> None:
    tensor = from_bits(0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800001)
    codecs.encode({"w": tensor}, "fp32", tmp_path / "d")
    assert bits_of(codecs.decode(tmp_path / "d")["w"]).tolist() == bits_of(tensor).tolist()


def test_a_transposed_tensor_is_encoded_by_its_values_not_its_memory(tmp_path: Path) -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).T
    for codec in CODECS:
        codecs.encode({"w": tensor}, codec, tmp_path / "d")
        expected = through(codec, tensor.contiguous())
        assert torch.equal(codecs.decode(tmp_path / "d")["w"], expected)
    assert through("fp32", tensor).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_equal_tensors_give_equal_bytes_whatever_the_order_of_the_mapping(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((i,), float(i)) for i in range(12)}
    for codec in CODECS:
        codecs.encode(tensors, codec, tmp_path / "a")
        codecs.encode(dict(reversed(tensors.items())), codec, tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_says_its_codec_under_one_metadata_key_of_sorted_json(tmp_path: Path) -> None:
    codecs.encode({"w": torch.ones(2)}, "bf16", tmp_path / "d")
    with safe_open(tmp_path / "d", framework="pt") as file:
        metadata = file.metadata()
    assert metadata == {"atoll": json.dumps({"codec": "bf16", "format": 1}, sort_keys=True)}
    assert codecs.codec_of(tmp_path / "d") == "bf16"


def test_a_file_says_the_parameters_of_its_codec_and_the_shapes_it_does_not_store(
    tmp_path: Path,
) -> None:
    said = {
        "int8": {"bits": 8, "block": 128},
        "4-bit": {"bits": 4, "block": 128},
        "top-k": {"bits": 2, "chunk": 4096, "k": 64},
    }
    for codec, parameters in said.items():
        codecs.encode({"w": torch.ones(3, 5)}, codec, tmp_path / "d")
        with safe_open(tmp_path / "d", framework="pt") as file:
            header = json.loads(file.metadata()["atoll"])
        assert header == {"codec": codec, "format": 1, "shapes": {"w": [3, 5]}} | parameters


NUM_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1 + 2 / 128, "4-bit": 0.5 + 2 / 128}


def test_a_file_is_as_large_as_its_codec_says(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(64, 4096)}
    for codec, num_bytes in (NUM_BYTES | {"top-k": (64 * 14 / 8 + 4) / 4096}).items():
        codecs.encode(tensors, codec, tmp_path / codec)
        head = (tmp_path / codec).stat().st_size - num_bytes * 64 * 4096
        assert 0 < head < 400


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_value_is_refused_at_the_source_by_the_tensors_name(
    bad: float, codec: str, tmp_path: Path
) -> None:
    tensors = {"a": torch.zeros(3), "spoilt": torch.tensor([1.0, bad]), "z": torch.zeros(0)}
    with pytest.raises(codecs.NonFinite, match="'spoilt' holds NaN or infinity") as caught:
        codecs.encode(tensors, codec, tmp_path / "d")
    assert caught.value.tensor == "spoilt"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [0x7F7F8000, 0x7F7FFFFF, 0xFF7FFFFF])
def test_a_finite_value_that_bf16_would_round_to_infinity_is_refused(
    bits: int, tmp_path: Path
) -> None:
    assert np.isinf(bf16_by_float64(from_bits(bits)).view(np.float32)).all()
    with pytest.raises(codecs.NonFinite, match="bf16 cannot hold"):
        codecs.encode({"w": from_bits(bits)}, "bf16", tmp_path / "d")
    codecs.encode({"w": from_bits(bits)}, "fp32", tmp_path / "d")


def test_a_delta_of_another_dtype_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'w' is torch\.float64"):
        codecs.encode({"w": torch.ones(2, dtype=torch.float64)}, "fp32", tmp_path / "d")


def test_a_file_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*nowhere"):
        codecs.encode({"w": torch.zeros(3)}, "fp32", tmp_path / "nowhere" / "delta")
