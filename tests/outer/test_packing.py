"""int8, 4-bit and top-k give the bits of a plain reference, within the bounds they state."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from outer import topk
from outer.packing import CODECS, pack, unpack
from outer.values import GRAIN, PIECE, OutOfRange
from tests.support import codecs_reference as reference

LOSSY = ("int8", "4-bit", "top-k")
LEVELS = {"int8": 127, "4-bit": 7}
SIZES = (1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 4095, 4096, 4097, 5001)


def spread(size: int, seed: int) -> np.ndarray:
    """Normal numbers over many magnitudes, with zeros of both signs, and ties."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(size) * np.exp2(random.integers(-12, 3, size))
    values[random.random(size) < 0.1] = 0.0
    values[random.random(size) < 0.05] *= -0.0
    values[random.random(size) < 0.2] = 0.375
    return values.astype(np.float32)


def outlier(size: int) -> np.ndarray:
    values = np.full(size, 1e-3, np.float32)
    values[size // 2] = -1e6
    return values


def denormals(size: int) -> np.ndarray:
    bits = np.random.default_rng(5).integers(0, 0x800000, size, dtype=np.uint32)
    bits[::3] |= np.uint32(0x80000000)
    bits[::7] &= np.uint32(0x8000003F)  # the smallest there are
    return bits.view(np.float32)


KINDS = {
    "spread": lambda size: spread(size, size),
    "zeros": lambda size: np.zeros(size, np.float32),
    "zeros of the other sign": lambda size: np.full(size, -0.0, np.float32),
    "a constant": lambda size: np.full(size, -0.7, np.float32),
    "two constants": lambda size: np.where(np.arange(size) % 3, 0.5, -0.25).astype(np.float32),
    "one outlier": outlier,
    "denormals": denormals,
    "around the smallest normals": lambda size: denormals(size) * np.float32(4),
    "one value": lambda size: np.eye(1, size, size // 3, dtype=np.float32)[0] * np.float32(-3),
    "huge": lambda size: spread(size, 1) * np.float32(2.0**116),
}


def through(codec: str, values: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The parts, and what is decoded of them."""
    parts = pack(CODECS[codec], torch.from_numpy(values))
    decoded = unpack(CODECS[codec], parts, torch.full(values.shape, torch.nan))
    return {
        name: (part.view(torch.int16) if part.dtype is torch.bfloat16 else part).numpy()
        for name, part in parts.items()
    }, decoded.numpy()


def check_bits(codec: str, values: np.ndarray) -> None:
    parts, decoded = through(codec, values)
    expected = reference.encode(codec, values)
    for name, part in expected.items():
        assert parts[name].tobytes() == part.tobytes(), name
    lengths = {name: len(part) for name, part in parts.items()}
    assert lengths == CODECS[codec].lengths(len(values))
    again = reference.decode(codec, expected, len(values))
    assert decoded.view(np.uint32).tolist() == again.view(np.uint32).tolist()


def check_bounds(codec: str, values: np.ndarray) -> None:
    """The bounds of the docstrings, in float64."""
    _, decoded = through(codec, values)
    size = CODECS[codec].parameters["chunk" if codec == "top-k" else "block"]
    for start in range(0, len(values), size):
        x = values[start : start + size].astype(np.float64)
        lost = x - decoded[start : start + size].astype(np.float64)
        peak = np.abs(x).max()
        if codec == "top-k":
            k = min(4 * -(-len(x) // 256), len(x))
            mean = np.sort(np.abs(x))[-k:].mean()
            bound = np.square(x).sum() - (1 - 2.0**-12) * k * mean**2
            tiny = k * (mean + 2.0**-134) * 2.0**-133  # a level is rounded to bf16
            assert np.square(lost).sum() <= bound * (1 + 2.0**-40) + tiny
            assert np.abs(lost).max() <= (1 + 2.0**-7) * peak + 2.0**-133
        else:
            scale = (1 + 2.0**-7) * peak / LEVELS[codec] + 2.0**-133
            assert np.abs(lost).max() <= (0.5 + 2.0**-16) * scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", LOSSY)
def test_bits_are_those_of_the_reference_and_errors_within_bounds(codec: str, kind: str) -> None:
    for size in SIZES:
        values = KINDS[kind](size)
        check_bits(codec, values)
        check_bounds(codec, values)


FINITE = st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100)


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float32, st.integers(1, 600), elements=FINITE))
def test_any_finite_values_give_the_bits_of_the_reference_within_bounds(values: np.ndarray) -> None:
    for codec in LOSSY:
        check_bits(codec, values)
        check_bounds(codec, values)


@settings(max_examples=30, deadline=None)
@given(arrays.arrays(np.float32, 4100, elements=st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, -0.5])))
def test_of_equal_magnitudes_the_first_are_kept(values: np.ndarray) -> None:
    _, decoded = through("top-k", values)
    expected = [place for place in reference.chosen(values[:4096]) if values[place]]
    assert np.flatnonzero(decoded[:4096]).tolist() == expected


@pytest.mark.parametrize("codec", CODECS)
def test_what_an_accelerator_packs_is_what_a_processor_packs(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topk, "_kth", topk._kth_on_device)
    monkeypatch.setattr(topk, "_places", topk._places_on_device)
    tail = KINDS["two constants"](9000)
    values = np.concatenate([spread(70_000, 8), KINDS["zeros"](8192), KINDS["denormals"](90), tail])
    expected = pack(CODECS[codec], torch.from_numpy(values))
    found = CODECS[codec].pack_on_device(torch.from_numpy(values))
    assert found.keys() == expected.keys()
    for part, packed in expected.items():
        assert torch.equal(found[part].view(packed.dtype), packed)


@settings(max_examples=30, deadline=None)
@given(arrays.arrays(np.float32, 300, elements=st.sampled_from([0.0, -0.0, 1e-40, 3.0, -1e9])))
def test_zero_stays_zero(values: np.ndarray) -> None:
    for codec in LOSSY:
        _, decoded = through(codec, values)
        assert not decoded[values == 0].any()


@pytest.mark.parametrize("codec", CODECS)
def test_a_tensor_of_many_pieces_is_that_of_its_pieces(codec: str) -> None:
    values = torch.from_numpy(spread(2 * PIECE + GRAIN + 77, 3))
    whole = pack(CODECS[codec], values)
    assert {k: len(v) for k, v in whole.items()} == CODECS[codec].lengths(len(values))
    first = pack(CODECS[codec], values[: 3 * GRAIN])
    for part, length in CODECS[codec].lengths(3 * GRAIN).items():
        assert torch.equal(whole[part][:length], first[part])
    decoded = unpack(CODECS[codec], whole, torch.empty(len(values)))
    assert torch.equal(decoded[: 3 * GRAIN], unpack(CODECS[codec], first, torch.empty(3 * GRAIN)))


@pytest.mark.parametrize("codec", LOSSY)
def test_what_is_exactly_a_level_stays(codec: str) -> None:
    values = np.tile(np.array([0.5, -0.5, 0.5, 0.5], np.float32), 16)
    if codec != "top-k":
        values = np.arange(-7, 8).astype(np.float32) * np.float32(2.0**-20)
        values *= np.float32(LEVELS[codec] / 7) if codec == "4-bit" else np.float32(1)
    _, decoded = through(codec, values)
    if codec == "top-k":  # 4 of 64 are kept: the first of equal ones
        assert decoded.tolist() == [0.5, -0.5, 0.5, 0.5] + [0.0] * 60
    elif codec == "4-bit":
        assert decoded.tolist() == values.tolist()
    else:
        assert np.abs(decoded - values).max() <= 7 * 2.0**-20 / 127 * 0.51


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_out_of_range_wherever_it_stands(codec: str, bad: float) -> None:
    for place in (0, 4095, 4096, 5000):
        values = torch.zeros(5001)
        values[place] = bad
        with pytest.raises(OutOfRange) as caught:
            pack(CODECS[codec], values)
        assert not np.isfinite(caught.value.peak)


@pytest.mark.parametrize("codec", LOSSY)
def test_the_largest_that_is_held_decodes_to_something_finite(codec: str) -> None:
    largest = np.float32(CODECS[codec].largest)  # type: ignore[attr-defined]
    values = np.full(300, -largest)
    check_bits(codec, values)
    assert np.isfinite(through(codec, values)[1]).all()
    with pytest.raises(OutOfRange):
        pack(CODECS[codec], torch.from_numpy(values * np.float32(1.5)))


def spoil(parts: dict[str, torch.Tensor], part: str, place: int, value: int) -> None:
    bits = parts[part].view(torch.int16 if parts[part].dtype is torch.bfloat16 else torch.uint8)
    bits[place] = value


BAD = {  # codec, elements, part, place, what is put there, what is then said
    "an infinite scale": ("int8", 300, "scales", 1, 0x7F80, "scales is negative or not finite"),
    "a scale that is no number": ("4-bit", 300, "scales", 2, 0x7FC0, "not finite"),
    "a negative scale": ("4-bit", 300, "scales", 0, -32768, "negative"),
    "a code behind the end": ("int8", 300, "codes", 383, 1, "goes on behind"),
    "four bits behind the end": ("4-bit", 300, "codes", 191, 0x10, "goes on behind"),
    "an infinite level": ("top-k", 5000, "levels", 3, 0x7F80, "levels is negative or not finite"),
    "a negative level": ("top-k", 5000, "levels", 0, -1, "negative"),
    "a place twice": ("top-k", 4096, "kept", 1, 0, "do not ascend"),
    "a place that descends": ("top-k", 4096, "kept", 0, 255, "do not ascend"),
    "a place behind the end": ("top-k", 60, "kept", 3, 60, "within the chunk"),
    "a place in a filling slot": ("top-k", 3, "kept", 3, 1, "more values than it has"),
    "a code in a filling slot": ("top-k", 3, "kept", 6, 0x40, "more values than it has"),
}


@pytest.mark.parametrize("case", BAD)
def test_parts_that_do_not_fit_together_are_refused(case: str) -> None:
    codec, num_elements, part, place, value, text = BAD[case]
    values = torch.zeros(num_elements)
    values[:64] = 1.0  # places 0, 1, 2, ...
    parts = pack(CODECS[codec], values)
    unpack(CODECS[codec], parts, torch.empty(num_elements))
    spoil(parts, part, place, value)
    with pytest.raises(ValueError, match=text):
        unpack(CODECS[codec], parts, torch.empty(num_elements))


@pytest.mark.parametrize("codec", CODECS)
def test_parts_of_another_length_are_refused(codec: str) -> None:
    for num_elements in (0, 1, 127, 9000):
        parts = pack(CODECS[codec], torch.ones(num_elements))
        with pytest.raises(ValueError, match="are needed"):
            unpack(CODECS[codec], parts, torch.empty(num_elements + 4096))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(LOSSY), st.integers(1, 300), st.randoms(use_true_random=False))
def test_any_bytes_of_the_right_length_decode_or_are_refused(
    codec: str, num_elements: int, random: "np.random.Generator"
) -> None:
    parts = {}
    for part, length in CODECS[codec].lengths(num_elements).items():
        dtype = CODECS[codec].parts[part]
        data = bytearray(random.randbytes(length * dtype.itemsize))  # type: ignore[attr-defined]
        parts[part] = torch.frombuffer(data, dtype=torch.uint8).view(dtype)
    out = torch.full((num_elements,), torch.nan)
    try:
        unpack(CODECS[codec], parts, out)
    except ValueError as error:
        assert str(error)
    else:
        assert not out.isnan().any()
