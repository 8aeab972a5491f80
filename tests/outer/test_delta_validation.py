"""A file that is not the delta it should be is refused with a code and a name."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outer import codecs
from outer.codecs import DeltaInvalid

LIKE = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
HEADER = {"atoll": '{"codec": "fp32", "format": 1}'}


def stored(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"values/a": torch.ones(2, 3), "values/b": torch.ones(4)} | {
        f"values/{name}": tensor for name, tensor in changes.items()
    }


def good(path: Path) -> None:
    codecs.encode({"a": torch.ones(2, 3), "b": torch.ones(4)}, "fp32", path)


def written(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = HEADER
) -> Callable[[Path], object]:
    return lambda path: save_file(tensors, path, metadata)


def cut(path: Path) -> None:
    good(path)
    path.write_bytes(path.read_bytes()[:-3])


def lengthened(path: Path) -> None:
    good(path)
    path.write_bytes(path.read_bytes() + b"\0")


def other_codec(path: Path) -> None:
    codecs.encode(LIKE, "bf16", path)


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in stored().items() if key != f"values/{name}"}


def headed(head: dict[str, object], body: bytes = b"") -> Callable[[Path], object]:
    """A file with a head that no library writes."""
    text = json.dumps(head).encode()
    return lambda path: path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def shaped(*sizes: int) -> Callable[[Path], object]:
    """A 4-bit file that says these sizes for one of its tensors."""
    parameters = dict(codecs.CODECS["4-bit"].parameters)
    said = {"codec": "4-bit", "format": 1, **parameters, "shapes": {"a": sizes, "b": [4]}}
    stored = {
        f"{part}/{name}": torch.zeros(length, dtype=dtype)
        for name in LIKE
        for part, dtype in codecs.CODECS["4-bit"].parts.items()
        for length in [codecs.CODECS["4-bit"].lengths(6)[part]]
    }
    return written(stored, {"atoll": json.dumps(said)})


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
BAD: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "an empty file": (lambda path: path.write_bytes(b""), "blob", "torn or no safetensors"),
    "text": (lambda path: path.write_text("no tensors here, sorry"), "blob", "torn or no"),
    "a cut file": (cut, "blob", "torn or no safetensors"),
    "a file with a byte more": (lengthened, "blob", "torn or no safetensors"),
    "no header": (written(stored(), None), "form", "names no codec"),
    "a foreign header": (written(stored(), {"format": "pt"}), "form", "names no codec"),
    "a header that is no JSON": (written(stored(), {"atoll": "{"}), "form", "names no codec"),
    "a header that is a list": (written(stored(), {"atoll": "[]"}), "form", "names no codec"),
    "an unknown codec": (
        written(stored(), {"atoll": '{"codec": "int3", "format": 1}'}),
        "form",
        "codec 'int3', known are fp32",
    ),
    "a newer format": (
        written(stored(), {"atoll": '{"codec": "fp32", "format": 2}'}),
        "form",
        "format 2, known here is 1",
    ),
    "another codec than claimed": (other_codec, "form", "encoded as bf16, it was said to be fp32"),
    "a lacking tensor": (written(without("b")), "form", "lacks 1 of the model's tensors.*'b'"),
    "a foreign tensor": (written(stored(c=torch.ones(1))), "form", "1 foreign tensors, first 'c'"),
    "a transposed shape": (
        written(stored(a=torch.ones(3, 2))),
        "form",
        r"'a' of shape \[3, 2\], the model has \[2, 3\]",
    ),
    "a flattened shape": (written(stored(a=torch.ones(6))), "form", r"\[6\]"),
    "a dtype that is not the codec's": (
        written(stored(b=torch.ones(4, dtype=torch.float16))),
        "form",
        "'values/b' of F16",
    ),
    "an unknown part": (written(stored() | {"scale/a": torch.ones(1)}), "form", "'scale/a'"),
    "a head that would take minutes to read": (
        headed({"__metadata__": HEADER} | {f"values/{i}": EMPTY for i in range(100_000)}),
        "blob",
        "its head has 7[0-9]{6} bytes, at most",
    ),
    "a head without an end": (
        lambda path: path.write_bytes(b"\xff" * 8 + b"{}"),
        "blob",
        "its head has 18446744073709551615 bytes",
    ),
    "a dtype that writes on the terminal": (
        headed({"w": {"dtype": "\x1b[2J\nok", "shape": [0], "data_offsets": [0, 0]}}),
        "blob",
        r"\\x1b\[2J\\nok",
    ),
    "sizes that take hours to multiply": (
        shaped(*[10**400] * 3),
        "form",
        "for the shape of 'a'",
    ),
    "more dimensions than a tensor has": (shaped(*[1] * 65), "form", "for the shape of 'a'"),
    "a size below zero": (shaped(-2, -3), "form", "for the shape of 'a'"),
    "a NaN": (written(stored(b=torch.tensor([0, 0, 0, float("nan")]))), "nonfinite", "in 'b'"),
    "an infinity": (written(stored(a=torch.full((2, 3), -torch.inf))), "nonfinite", "in 'a'"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_with_code_and_reason(case: str, tmp_path: Path) -> None:
    make, code, text = BAD[case]
    path = tmp_path / "delta"
    make(path)
    with pytest.raises(DeltaInvalid, match=text) as caught:
        codecs.validate_delta(path, LIKE, "fp32")
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    assert "delta" in str(caught.value)


@pytest.mark.parametrize("length", [0, 7, 8, 50, 150, 200])
def test_a_delta_cut_anywhere_is_torn(length: int, tmp_path: Path) -> None:
    good(tmp_path / "delta")
    (tmp_path / "delta").write_bytes((tmp_path / "delta").read_bytes()[:length])
    with pytest.raises(DeltaInvalid) as caught:
        codecs.decode(tmp_path / "delta")
    assert caught.value.code == "blob"


def test_a_file_that_is_not_there_is_no_judgement_on_a_delta(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        codecs.validate_delta(tmp_path / "delta", LIKE, "fp32")


def test_a_good_delta_is_measured_as_it_will_be_merged(tmp_path: Path) -> None:
    delta = {"a": torch.tensor([[3.0, 0, 0], [0, 0, 0]]), "b": torch.tensor([0.0, 0, -4, 0])}
    for codec in ("fp32", "bf16"):
        codecs.encode(delta, codec, tmp_path / "delta")
        norms = codecs.validate_delta(tmp_path / "delta", LIKE, codec)
        assert norms == codecs.Norms(norm=5.0, max_abs=4.0, finite=True)


def test_norms_are_summed_in_float64() -> None:
    small = torch.full((1 << 18,), 2.0**-12)  # squares sum to 2^-6; in fp32 each is lost beside 1
    assert codecs.measure({"one": torch.ones(1), "small": small}).norm == (1 + 2**-6) ** 0.5
    huge = torch.full((4,), 2.0**100)  # whose square is no fp32
    assert codecs.measure({"huge": huge}) == codecs.Norms(2.0**101, 2.0**100, True)


def test_measuring_says_when_a_value_is_not_finite() -> None:
    nan = codecs.measure({"a": torch.ones(3), "b": torch.tensor([1.0, float("nan")])})
    assert not nan.finite
    assert nan.norm != nan.norm
    inf = codecs.measure({"a": torch.tensor([-torch.inf, 1.0])})
    assert inf == codecs.Norms(float("inf"), float("inf"), False)
    assert codecs.measure({}) == codecs.Norms(0.0, 0.0, True)
    assert codecs.measure({"empty": torch.zeros(0, 2)}) == codecs.Norms(0.0, 0.0, True)


@pytest.mark.parametrize("shape", [[2**62, 0], [0, 2**62, 2**62], [1] * 65])
def test_no_shape_of_a_file_is_taken_that_no_tensor_can_have(
    shape: list[int], tmp_path: Path
) -> None:
    size = 4 * (len(shape) == 65)
    one = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
    headed({"__metadata__": HEADER, "values/a": one}, b"\0" * size)(tmp_path / "delta")
    with pytest.raises(DeltaInvalid) as caught:
        codecs.decode(tmp_path / "delta")
    assert caught.value.code in ("form", "blob")
