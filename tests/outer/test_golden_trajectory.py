"""The outer loop reproduces reviewed trajectories, which exact scalar arithmetic produced.

`golden/outer_loop.json` holds, for each codec, inputs and state of five rounds with one to three
deltas, among them denormals and large values. The reference below computes with Python's rationals
and floats only; run this file as a script to write the golden file anew, and review the difference.
"""

import json
import math
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from outer import codecs
from outer.merge import take_step
from outer.nesterov import Rule
from outer.versions import OuterState

GOLDEN = Path(__file__).parent / "golden" / "outer_loop.json"
LR, MOMENTUM = 0.7, 0.9
START = [0.5, -1.25, 0.1, 3e-39, 2.5e8, 0.0]
ROUNDS: list[tuple[list[float], list[list[float]]]] = [  # (weights, deltas)
    ([1.0], [[0.01, -0.02, 1e-3, 1e-40, 1e5, 0.0]]),
    (
        [0.25, 0.75],
        [[0.013, 0.02, 0.3, -2e-40, -3e4, 1e-12], [0.011, 0.07, 0.1, 7e-41, 9e3, -1e-12]],
    ),
    ([1 / 3, 2 / 3], [[-0.5, 0.25, 0.1, 1e-38, 7.0, 5e-5], [0.1, 0.1, 0.1, 1e-39, 0.3, 5e-5]]),
    (
        [0.1, 0.2, 0.7],
        [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.3] * 6, [-0.1, 0.1, -0.1, 1e-45, -0.1, 0.1]],
    ),
    ([1.0], [[0.0, -0.0, 0.0, 0.0, 0.0, 0.0]]),
]


def fp32(x: float) -> float:
    """The nearest fp32. A product of two fp32 is exact in float64, and a sum rounded to float64
    first rounds to the same fp32 (53 >= 2 * 24 + 2 digits), so this rounds each operation once."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def bf16(x: float) -> float:
    """The nearest of the numbers with 8 digits (fewer below 2^-126), ties to even."""
    if x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, -126)
    spacing = Fraction(2) ** (exponent - 7)
    return float(round(Fraction(x) / spacing) * spacing)


def reference(codec: str) -> list[dict[str, list[float]]]:
    """The state after each round, element by element."""
    lr, mu = fp32(LR), fp32(MOMENTUM)
    columns = [_element(codec, lr, mu, i) for i in range(len(START))]
    keys = ("update", "residual", "momentum", "parameters")
    return [
        {key: [column[r][k] for column in columns] for k, key in enumerate(keys)}
        for r in range(len(ROUNDS))
    ]


def _element(codec: str, lr: float, mu: float, i: int) -> list[tuple[float, float, float, float]]:
    theta, m, e, states = fp32(START[i]), 0.0, 0.0, []
    carry = fp32((1 - MOMENTUM) / LR)
    for weights, deltas in ROUNDS:
        terms = [fp32(fp32(w) * fp32(d[i])) for w, d in zip(weights, deltas, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = fp32(total + term)
        total = fp32(total + e)
        d = bf16(total) if codec == "bf16" else total
        e = fp32(total - d)
        m = fp32(fp32(mu * m) + d)
        move, before = fp32(lr * fp32(d + fp32(mu * m))), theta
        theta = fp32(theta - move)
        e = fp32(e + fp32(carry * fp32(move - fp32(before - theta))))
        states.append((d, e, m, theta))
    return states


def tensors(row: list[float]) -> dict[str, torch.Tensor]:
    whole = torch.tensor(row, dtype=torch.float64).to(torch.float32)
    return {"a": whole[:4].clone().reshape(2, 2), "b": whole[4:].clone()}


def row(tensors: dict[str, torch.Tensor]) -> list[float]:
    return [x for name in ("a", "b") for x in tensors[name].reshape(-1).tolist()]


def signed(values: list[float]) -> list[str]:
    """Text that tells 0.0 from -0.0, which are equal as numbers."""
    return [value.hex() for value in values]


def golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GOLDEN.read_text())
    return content


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_the_outer_loop_reproduces_the_golden_trajectory_to_the_bit(
    codec: str, tmp_path: Path
) -> None:
    state = OuterState.initial(tensors(START))
    for (weights, deltas), expected in zip(ROUNDS, golden()[codec], strict=True):
        paths = [tmp_path / f"{i}" for i in range(len(deltas))]
        for path, delta in zip(paths, deltas, strict=True):
            codecs.encode(tensors(delta), "fp32", path)
        state, digests = take_step(
            state,
            list(zip(paths, weights, strict=True)),
            rule=Rule.of(LR, MOMENTUM),
            codec=codec,
            update_path=tmp_path / "update",
        )
        assert digests == state.digests()
        assert signed(row(codecs.decode(tmp_path / "update"))) == signed(expected["update"])
        assert signed(row(state.residual)) == signed(expected["residual"])
        assert signed(row(state.momentum)) == signed(expected["momentum"])
        assert signed(row(state.parameters)) == signed(expected["parameters"])


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_the_golden_trajectory_is_what_exact_scalar_arithmetic_gives(codec: str) -> None:
    assert golden()[codec] == reference(codec)


if __name__ == "__main__":
    content = {codec: reference(codec) for codec in ("fp32", "bf16")}
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
