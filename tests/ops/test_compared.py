"""A run beside its centralised baseline; what a configuration comes to: from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli import run
from tests.leases.test_evaluators import committed, measured, story
from tests.ops.test_audit_command import exported
from tests.support.history import MANIFEST

CONFIGS = Path(__file__).parent.parent.parent / "ops" / "configs"
RESULT = {
    "kind": "baseline", "loss": 2.0, "perplexity": 7.39, "bits_per_byte": 1.0, "num_tokens": 8,
    "tokens": 96, "steps": 6, "batch_sequences": 2, "lr": 1e-3, "num_parameters": 10,
    "manifest_digest": MANIFEST, "curve": [[32, 4.0], [64, 3.0], [96, 2.5]],
}  # fmt: skip


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, Any]:
    """A run of three versions, 96 tokens, whose newest evaluation is 2.25 nats."""
    scenario = story()
    committed(scenario, 3)
    assert scenario.operator(measured(3, 2.25)) == ""
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({**RESULT, **changes}))
    log = exported(scenario, tmp_path)
    found: dict[str, Any] = said(capsys, "audit", str(log), "--baseline", str(path))["baseline"]
    return found


def test_the_gap_is_told_in_nats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(tmp_path, capsys)
    assert (found["gap_nats"], found["version"], found["tokens"]) == (0.25, 3, 96)
    assert found["unlike"] == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"manifest_digest": "00" * 32}, "other data"),
        ({"num_parameters": 11}, "10 parameters, not 11"),
        ({"num_tokens": 9}, "8 held-out tokens, not 9"),
        ({"tokens": 100}, "96 tokens trained, not 100"),
    ],
)
def test_what_keeps_two_from_being_compared_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], why: str
) -> None:
    (told,) = compared(tmp_path, capsys, **changes)["unlike"]
    assert why in told


@pytest.mark.parametrize("command", ["audit", "report"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"kind": "baseline"}', "loss: Field required"),
        ("{", "Invalid JSON"),
        ("[]", "object"),
        (json.dumps({**RESULT, "kind": "run"}), "kind: "),
        (json.dumps({**RESULT, "loss": "low"}), "loss: "),
        (json.dumps({**RESULT, "tokens": 0}), "tokens: "),
        (json.dumps({**RESULT, "curve": [[32]]}), "curve.0"),
        ('{"a": ' * 10_000, "Invalid JSON"),
    ],
)
def test_a_file_that_is_no_result_is_told_before_the_log_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str, why: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    (tmp_path / "run.atoll").write_text("no log")
    assert run([command, str(tmp_path / "run.atoll"), "--baseline", str(path)]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert "not a result of atoll baseline" in said and why in said


def test_a_run_that_is_no_fork_has_no_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = exported(story(), tmp_path)
    assert run(["audit", str(log), "--parent", str(log)]) == 2
    assert "is no fork" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("preset", "parameters", "more"),
    [
        ("qwen3-0.6b-c4.toml", 596_049_920, ("--device", "A100")),
        ("laptop.toml", 6_819_456, ("--set", "model.vocab_size=8192", "--tokens-per-s", "1100")),
    ],
)
def test_presets_are_valid_and_come_to_what_they_say(
    capsys: pytest.CaptureFixture[str], preset: str, parameters: int, more: tuple[str, ...]
) -> None:
    plan = said(capsys, "run", "create", str(CONFIGS / preset), "--check", *more)
    assert plan["parameters"] == parameters
    assert plan["time"]["within_deadline"] and plan["time"]["overhead_share"] < 0.05
    if preset == "laptop.toml":
        assert 3000 < plan["time"]["run_s"] < 4500, "about an hour"
    else:
        assert plan["codecs"]["4-bit"]["bytes"] == pytest.approx(307e6, rel=0.01)
