"""The self-test gives what IEEE arithmetic gives, on any number of threads, and sees deviations."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from outer import arithmetic, nesterov, versions
from outer.arithmetic import OPERATIONS, SITE_OPERATIONS, first_difference, self_test
from outer.pieces import Array
from tests.support import codecs_reference as reference

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "arithmetic.json"

Arrays = dict[str, np.ndarray]


def in_a_process(prelude: str, **environment: str) -> dict[str, str] | None:
    """The operations' digests found by a fresh process; None where `supported` came out false."""
    code = (
        f"import json, torch\nsupported = True\n{prelude}\nfrom outer.arithmetic import self_test\n"
        "print(json.dumps(self_test().operations if supported else None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: dict[str, str] | None = json.loads(done.stdout)
    return found


def arrays(label: str) -> Arrays:
    return {name: tensor.numpy() for name, tensor in arithmetic.inputs(label).items()}


def digest(results: Arrays) -> str:
    return versions.digest({k: torch.from_numpy(np.array(v)) for k, v in results.items()})


def ieee_merge() -> Arrays:
    weights = [np.float32(w) for w in (0.1, 1 / 3, 1 - 0.1 - 1 / 3)]
    a, b, c = (arrays(f"delta {i}") for i in range(3))
    e = arrays("residual")
    return {
        k: ((weights[0] * a[k] + weights[1] * b[k]) + weights[2] * c[k]) + e[k] for k in arrays("x")
    }


def ieee_step() -> Arrays:
    theta, m = arrays("parameters"), arrays("momentum")
    lr, mu = np.float32(0.7), np.float32(0.9)
    for i in range(2):
        for name, d in arrays(f"update {i}").items():
            m[name] = mu * m[name] + d
            theta[name] = theta[name] - lr * (d + mu * m[name])
    return {f"parameters/{k}": v for k, v in theta.items()} | {
        f"momentum/{k}": v for k, v in m.items()
    }


def ieee_carry() -> Arrays:
    e, before, after, move = map(arrays, ("residual", "parameters", "stepped", "move"))
    factor = np.float32((1 - 0.9) / 0.7)
    return {k: e[k] + factor * (move[k] - (before[k] - after[k])) for k in e}


def sum_of_squares(values: np.ndarray) -> np.ndarray:
    """Of rows of 65,536: the second half is added to the first, an odd last one to the first."""
    sums = values.astype(np.float64) ** 2
    while len(sums) > 1:
        half = len(sums) // 2
        if len(sums) % 2:
            sums[0] += sums[-1]
        sums = sums[:half] + sums[half : 2 * half]
    return sums.sum()  # of one, or of none


def ieee_settle() -> Arrays:
    theta, m, e, update = map(arrays, ("parameters", "momentum", "residual", "update 0"))
    lr, mu, factor = np.float32(0.7), np.float32(0.9), np.float32((1 - 0.9) / 0.7)
    results: Arrays = {}
    for name, d in update.items():
        m[name] = mu * m[name] + d
        move = (d + mu * m[name]) * lr
        after = theta[name] - move
        e[name] = (e[name] - d) + factor * (move - (theta[name] - after))
        results |= {f"parameters/{name}": after, f"momentum/{name}": m[name]}
        results |= {f"residual/{name}": e[name]}
        held = np.clip(d, np.float32(-1e18), np.float32(1e18)).reshape(-1)
        results[f"norm/{name}"] = np.sqrt(sum_of_squares(held))
    return results


def ieee_decode() -> Arrays:
    halves = np.arange(1 << 16, dtype=np.uint32) << 16
    results = {"bf16": halves.view(np.float32)} | arrays("decode")
    for codec in ("int8", "4-bit"):
        parts = {
            "codes": arithmetic.scaled_parts(codec)["codes"].numpy(),
            "scales": arithmetic.scaled_parts(codec)["scales"].view(torch.uint16).numpy(),
        }
        results[codec] = reference.decode(codec, parts, 1 << 16)
    parts, num_elements = arithmetic.topk_parts()
    packed = {"kept": parts["kept"].numpy(), "levels": parts["levels"].view(torch.uint16).numpy()}
    results["top-k"] = reference.decode("top-k", packed, num_elements)
    return results


def bits16(part: np.ndarray) -> torch.Tensor:
    """A part of the reference as it is stored."""
    tensor = torch.from_numpy(np.array(part))
    return tensor.view(torch.bfloat16) if part.dtype == np.uint16 else tensor


def ieee_encode() -> dict[str, torch.Tensor]:
    """bf16 by torch's own conversion, which rounds alike where denormals are on; the others by a
    reference of their own."""
    results: dict[str, torch.Tensor] = {}
    for name, merged in arithmetic.inputs("merged").items():
        half = merged.to(torch.bfloat16)
        results[f"fp32/values/{name}"] = merged
        results[f"fp32/residual/{name}"] = torch.zeros_like(merged)
        results[f"bf16/values/{name}"] = half
        lost = np.array(merged.numpy() - half.float().numpy())
        results[f"bf16/residual/{name}"] = torch.from_numpy(lost)
        for codec in ("int8", "4-bit", "top-k"):
            values = merged.numpy().reshape(-1)
            parts = reference.encode(codec, values)
            for part, packed in parts.items():
                results[f"{codec}/{part}/{name}"] = bits16(packed)
            lost = np.array(values - reference.decode(codec, parts, len(values)))
            results[f"{codec}/residual/{name}"] = torch.from_numpy(lost).reshape(merged.shape)
    return results


def test_every_operation_gives_what_ieee_fp32_gives_elsewhere() -> None:
    found = self_test().operations
    assert found["decode"] == digest(ieee_decode())
    assert found["merge"] == digest(ieee_merge())
    assert found["encode"] == versions.digest(ieee_encode())
    assert found["step"] == digest(ieee_step())
    assert found["carry"] == digest(ieee_carry())
    assert found["settle"] == digest(ieee_settle())


def test_the_digests_are_the_recorded_ones() -> None:
    # A change of these ends every run under way: it must be meant.
    found = self_test()
    assert {"operations": found.operations, "digest": found.digest} == json.loads(
        GOLDEN.read_text()
    )
    assert tuple(found.operations) == OPERATIONS


def test_the_inputs_reach_the_corners() -> None:
    values = np.concatenate([v.reshape(-1) for v in arrays("delta 0").values()])
    magnitude = np.abs(values)
    assert np.isfinite(values).all()
    assert ((magnitude > 0) & (magnitude < 2.0**-126)).sum() > 1000
    assert (magnitude > 2.0**50).sum() > 1000
    assert ((magnitude > 2.0**-20) & (magnitude < 1)).sum() > 1000
    zeros = values[values == 0]
    assert np.signbit(zeros).any()
    assert not np.signbit(zeros).all()
    assert (values.view(np.uint32) & 0xFFFF == 0x8000).sum() > 100  # halfway between two bf16
    assert values.size > 32_768  # torch splits work among threads from there on


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_digests_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    found = in_a_process(f"torch.set_num_threads({threads})", OMP_NUM_THREADS=str(threads))
    assert found == self_test().operations


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_the_digests_do_not_depend_on_the_vector_instructions(capability: str) -> None:
    assert in_a_process("", ATEN_CPU_CAPABILITY=capability) == self_test().operations


def test_flushing_denormals_to_zero_is_noticed_by_coordinator_and_site() -> None:
    found = in_a_process("supported = torch.set_flush_denormal(True)")
    if found is None:
        pytest.skip("this processor cannot flush denormals to zero")
    ours = self_test().operations
    assert all(ours[name] != found[name] for name in OPERATIONS)
    assert first_difference(ours, found, SITE_OPERATIONS) == "decode"


def fused_step(parameters: Array, momentum: Array, update: Array, rule: nesterov.Rule) -> Array:
    """The step with its products kept exact until the sum is rounded, as fused forms do."""
    eta, decay, d = float(rule.lr), float(rule.momentum), update.astype(np.float64)
    momentum[...] = decay * momentum.astype(np.float64) + d
    move = (d + decay * momentum.astype(np.float64)).astype(np.float32)
    parameters[...] = parameters.astype(np.float64) - eta * move.astype(np.float64)
    return move


def test_a_machine_that_fuses_multiply_and_add_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = self_test().operations
    monkeypatch.setattr(arithmetic, "step", fused_step)
    fused = self_test().operations
    assert first_difference(honest, fused, OPERATIONS) == "step"


def test_a_machine_that_adds_in_another_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = self_test().operations
    monkeypatch.setattr(arithmetic, "_WEIGHTS", tuple(reversed(arithmetic._WEIGHTS)))
    assert first_difference(honest, self_test().operations, OPERATIONS) == "merge"


def test_the_first_difference_is_in_the_order_of_the_operations_asked_for() -> None:
    ours = dict.fromkeys(OPERATIONS, "0")
    theirs = ours | {"encode": "1", "step": "1"}
    assert first_difference(ours, ours, OPERATIONS) is None
    assert first_difference(ours, theirs, OPERATIONS) == "encode"
    assert first_difference(ours, theirs, SITE_OPERATIONS) == "step"
    assert first_difference({"decode": "0", "step": "0"}, ours, SITE_OPERATIONS) is None
    assert first_difference(ours, {"step": "0"}, SITE_OPERATIONS) == "decode"
    assert first_difference({}, {}, SITE_OPERATIONS) == "decode"


def test_the_digest_of_all_changes_with_any_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = self_test().digest
    monkeypatch.setattr(arithmetic, "_LR", math.nextafter(0.7, 1.0))
    assert self_test().digest == honest  # lr is rounded to fp32, where the two are one
    monkeypatch.setattr(arithmetic, "_LR", 0.7 + 2.0**-24)
    assert self_test().digest != honest
