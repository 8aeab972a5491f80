"""Whatever bytes come, no reader crashes, and none takes memory that the input does not warrant.

Ten thousand inputs by hypothesis here; a million in `make soak`, by atheris (libFuzzer, guided by
what parts of the code an input reaches) where it is installed.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import TARGETS, Target

NUM_INPUTS = 10_000


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
def test_no_input_crashes_a_reader_or_takes_its_memory(target: Target, tmp_path: Path) -> None:
    for seed in target.seeds:
        target.feed(seed, tmp_path)  # what is made once is made before memory is counted

    @settings(
        max_examples=-(-NUM_INPUTS // len(TARGETS)),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=target.inputs)
    def fed(data: bytes) -> None:
        tracemalloc.start()
        try:
            target.feed(data, tmp_path)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert taken <= target.bound(data), f"{len(data)} bytes took {taken:,}"

    fed()
