"""What is fuzzed, and by what: one list for hypothesis and for atheris.

A target reads bytes that somebody else wrote. It may refuse them, with the errors that its readers
name; whatever else it raises is a bug. Its memory is bounded by what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from eventlog.frames import MAX_BODY_BYTES
from tests.fuzz import logs, tensors, texts
from tests.support.odd import EDITS, edited

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """`feed(data, folder)` reads an input, with a folder to put files in. `odd` draws inputs that
    are well-formed and mean something strange. `most_bytes`: of memory for a small input."""

    name: str
    feed: Callable[[bytes, Path], None]
    seeds: Sequence[bytes]
    odd: st.SearchStrategy[bytes]
    most_bytes: int = 2 * _MIB

    @property
    def inputs(self) -> st.SearchStrategy[bytes]:
        """Odd ones, sound ones after some edits, and anything."""
        near = st.builds(edited, st.sampled_from(self.seeds), EDITS)
        return st.one_of(self.odd, near, near, st.binary(max_size=300))

    def bound(self, data: bytes) -> int:
        """Bytes that reading this input may take at a time."""
        return self.most_bytes + 100 * len(data)


def _plain(feed: Callable[[bytes], None]) -> Callable[[bytes, Path], None]:
    return lambda data, _: feed(data)


TARGETS = (
    Target("payload", _plain(logs.read_payload), logs.PAYLOADS, logs.TREES),
    Target("event", _plain(logs.fold_event), logs.EVENT_SEEDS, logs.EVENT_TREES),
    # a frame's length is believed up to what any frame may have
    Target("log-file", logs.read_file, logs.FILES, st.binary(), 2 * MAX_BODY_BYTES),
    Target("frames", logs.read_sealed, logs.SEALED, logs.SEALED_TREES, 2 * MAX_BODY_BYTES),
    Target("chunks", _plain(logs.read_chunks), logs.METAS, logs.META_TREES),
    Target("tensors", tensors.read_tensors, tensors.TENSOR_SEEDS, tensors.TENSOR_HEADS, 8 * _MIB),
    Target("manifest", tensors.read_manifest, tensors.MANIFESTS, st.binary()),
    Target("slurm", _plain(texts.read_slurm), texts.SLURM_SEEDS, texts.SLURM_TEXTS),
    Target(
        "credentials",
        texts.read_credentials,
        texts.CREDENTIALS_SEEDS,
        texts.CREDENTIALS_TREES,
        4 * _MIB,
    ),
    Target("anchor", _plain(texts.read_anchor), texts.ANCHOR_SEEDS, texts.ANCHOR_TREES),
    Target("toml", texts.read_toml, texts.TOML_SEEDS, texts.TOML, 8 * _MIB),
)
BY_NAME = {one.name: one for one in TARGETS}
