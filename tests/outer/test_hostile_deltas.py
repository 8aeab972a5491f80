"""Whatever bytes a site delivers, they are judged: merged as finite values of the model's form, or
refused with a code and a reason. Nothing else is raised, in any codec."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outer import codecs
from outer.codecs import DeltaInvalid
from tests.support import odd
from tests.support.odd import STEPS, changed

SHAPES = {"block": (3, 50), "chunk": (5000,), "empty": (0, 3), "one": ()}
REFERENCE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}

ODD: st.SearchStrategy[object] = st.sampled_from((*odd.NUMBERS, *odd.OTHERS))
KEYS = st.sampled_from(odd.KEYS)


def judged(path: Path, codec: str) -> str:
    """The code of the refusal, '' of a delta that can be merged."""
    try:
        norms = codecs.validate_delta(path, REFERENCE, codec)
    except DeltaInvalid as error:
        assert str(error).isprintable()
        return error.code
    decoded = codecs.decode(path)
    assert {name: tuple(one.shape) for name, one in decoded.items()} == SHAPES
    assert all(bool(one.isfinite().all()) for one in decoded.values())
    assert norms == codecs.measure(decoded)
    return ""


class Sound:
    """A delta's file as it should be, in parts."""

    def __init__(self, codec: str, path: Path) -> None:
        chance = torch.Generator().manual_seed(1)
        values = {name: torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}
        codecs.encode(values, codec, path)
        self.path, self.bytes = path, path.read_bytes()
        self.begin = 8 + int.from_bytes(self.bytes[:8], "little")
        self.head = json.loads(self.bytes[8 : self.begin])

    def write(self, head: object) -> None:
        text = json.dumps(head).encode()
        self.path.write_bytes(struct.pack("<Q", len(text)) + text + self.bytes[self.begin :])


@pytest.fixture(params=sorted(codecs.CODECS))
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


few = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@few
@given(steps=STEPS, key=KEYS, value=ODD, inner=st.booleans())
def test_a_head_that_says_anything_is_judged(
    codec: str, tmp_path: Path, steps: list[int], key: str, value: object, inner: bool
) -> None:
    sound = Sound(codec, tmp_path / "delta")
    assert judged(sound.path, codec) == ""
    if inner:
        header = changed(json.loads(sound.head["__metadata__"]["atoll"]), steps, key, value)
        sound.write({**sound.head, "__metadata__": {"atoll": json.dumps(header)}})
    else:
        sound.write(changed(sound.head, steps, key, value))
    assert judged(sound.path, codec) in ("", "blob", "form")


@few
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_body_of_any_bytes_is_judged(
    codec: str, tmp_path: Path, places: list[tuple[float, int]]
) -> None:
    sound = Sound(codec, tmp_path / "delta")
    body = bytearray(sound.bytes)
    for share, byte in places:
        body[sound.begin + int(share * (len(body) - sound.begin - 1))] = byte
    sound.path.write_bytes(body)
    assert judged(sound.path, codec) in ("", "form", "nonfinite")


@few
@given(cut=st.floats(0, 1), more=st.binary(max_size=20))
def test_a_file_of_another_length_is_torn(
    codec: str, tmp_path: Path, cut: float, more: bytes
) -> None:
    sound = Sound(codec, tmp_path / "delta")
    sound.path.write_bytes(sound.bytes[: int(cut * (len(sound.bytes) - 1))] + more)
    whole = sound.path.stat().st_size == len(sound.bytes)
    assert (judged(sound.path, codec) == "blob") or whole
