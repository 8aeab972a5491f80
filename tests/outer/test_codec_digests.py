"""Codecs and outer step give the same bits on any number of threads, with any instructions."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from outer import arithmetic
from outer.packing import CODECS, pack, unpack
from tests.support import codecs_reference as reference

ROOT = Path(__file__).parents[2]
LOSSY = ("int8", "4-bit", "top-k")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def inputs() -> np.ndarray:
    """Values through all exponents that every codec holds, more than one thread takes."""
    tensors = [arithmetic.inputs(f"codecs {i}") for i in range(2)]
    return np.concatenate([one[name].reshape(-1).numpy() for one in tensors for name in one])


def found() -> dict[str, str]:
    """Digests of every codec's parts and of what is decoded, and of the self-test's operations."""
    values, digests = torch.from_numpy(inputs()), dict(arithmetic.self_test().operations)
    for codec in CODECS:
        parts = pack(CODECS[codec], values)
        for part, packed in parts.items():
            digests[f"{codec} {part}"] = sha(packed.view(torch.uint8).numpy().tobytes())
        decoded = unpack(CODECS[codec], parts, torch.empty_like(values))
        digests[f"{codec} decoded"] = sha(decoded.numpy().tobytes())
    return digests


def in_a_process(threads: int, **environment: str) -> dict[str, str]:
    code = (
        f"import json, torch\ntorch.set_num_threads({threads})\n"
        "from tests.outer.test_codec_digests import found\nprint(json.dumps(found()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


# What numpy found here beyond what it was built for: without it, it takes its plain ways.
WIDE = " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))  # type: ignore[index]
WAYS: dict[str, tuple[int, dict[str, str]]] = {
    "two threads": (2, {}),
    "three threads": (3, {}),
    "plain vectors": (1, {"ATEN_CPU_CAPABILITY": "default"}),
    "AVX2": (1, {"ATEN_CPU_CAPABILITY": "avx2"}),
    "AVX-512": (2, {"ATEN_CPU_CAPABILITY": "avx512"}),
    "compiled for any processor": (
        2,
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
    ),
    "compiled for a processor without AVX-512": (
        1,
        {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
    ),
    "numpy in its plain ways": (1, {"NPY_DISABLE_CPU_FEATURES": WIDE}),
}


@pytest.mark.parametrize("way", WAYS)
def test_digests_do_not_depend_on_threads_or_instructions(way: str) -> None:
    threads, environment = WAYS[way]
    assert in_a_process(threads, **environment) == found()


def test_digests_are_those_of_the_reference() -> None:
    values, digests = inputs(), found()
    assert len(values) > 65_536
    for codec in LOSSY:
        parts = reference.encode(codec, values)
        for part, packed in parts.items():
            assert digests[f"{codec} {part}"] == sha(packed.tobytes())
        decoded = reference.decode(codec, parts, len(values))
        assert digests[f"{codec} decoded"] == sha(decoded.tobytes())
    rounded = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    assert digests["bf16 decoded"] == sha(rounded.tobytes())
    assert digests["fp32 decoded"] == sha(values.tobytes())
