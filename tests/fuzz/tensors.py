"""Fuzzed: files of tensors, deltas, snapshots and data manifests, by heads and by bytes."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hypothesis import strategies as st

from outer import codecs, tensorfile, versions
from outer.codecs import DeltaInvalid
from outer.tensorfile import TensorFileInvalid
from outer.versions import SnapshotInvalid
from sitehub import manifest
from sitehub.documents import DataInvalid
from tests.fuzz.logs import as_json_text
from tests.support.odd import KEYS, NUMBERS, OTHERS, STEPS, changed

SHAPES: dict[str, tuple[int, ...]] = {"block": (3, 50), "empty": (0, 3), "one": ()}
REFERENCE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
MAX_HEAD = 100_000


def _sound() -> list[bytes]:
    """A delta in each codec, and a version's parameters."""
    chance = torch.Generator().manual_seed(1)
    values = {name: torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}
    with TemporaryDirectory() as folder:
        path, found = Path(folder) / "sound", []
        for codec in sorted(codecs.CODECS):
            codecs.encode(values, codec, path)
            found.append(path.read_bytes())
        versions.save_parameters(values, path)
        return [*found, path.read_bytes()]


TENSOR_SEEDS = [*_sound(), b"\xff" * 8, struct.pack("<Q", 2) + b"{}"]
_ODD = st.sampled_from((*NUMBERS, *OTHERS))


def _headed(sound: bytes, steps: list[int], key: str, odd: object, inner: bool) -> bytes:
    """The file with another head over the same values."""
    begin = 8 + int.from_bytes(sound[:8], "little")
    head = json.loads(sound[8:begin])
    said = head.get("__metadata__")
    if inner and said:
        header = changed(json.loads(said["atoll"]), steps, key, odd)
        text = as_json_text({**head, "__metadata__": {"atoll": as_json_text(header).decode()}})
    else:
        text = as_json_text(changed(head, steps, key, odd))
    return struct.pack("<Q", len(text)) + text + sound[begin:]


TENSOR_HEADS = st.builds(
    _headed, st.sampled_from(TENSOR_SEEDS[:-2]), STEPS, st.sampled_from(KEYS), _ODD, st.booleans()
)


def read_tensors(data: bytes, folder: Path) -> None:
    """As tensors, as a delta in every codec, and as a version's state."""
    path = folder / "file"
    path.write_bytes(data)
    with contextlib.suppress(TensorFileInvalid), tensorfile.reading(path, MAX_HEAD) as reader:
        for name in reader.names:
            assert reader.tensor(name).shape == reader.shape(name)
    for codec in codecs.CODECS:
        with contextlib.suppress(DeltaInvalid):
            codecs.validate_delta(path, REFERENCE, codec)
    for load in (versions.load_parameters, versions.load_snapshot, versions.snapshot_digests):
        with contextlib.suppress(SnapshotInvalid):
            load(path)


MANIFESTS = [b'{"format": "atoll data 2", "digest": "x"}', b'{"format": 1}', b"[]", b"[" * 5000]


def read_manifest(data: bytes, folder: Path) -> None:
    """A data manifest, as another site may have sent it."""
    path = folder / "manifest.json"
    path.write_bytes(data)
    with contextlib.suppress(DataInvalid):
        manifest.read(path)
