"""A real run's exported log is audited anywhere, and damage to it is named by its sequence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog.events import RoundCommitted, RunFinished
from eventlog.export import read_export
from tests.support.fleet import Fleet
from tests.support.forkserver import CHECKOUT

FRAME_OVERHEAD = 5 + 22 + 32  # prefix, head and seal around subject and payload


@pytest.mark.settings("target={rounds=2}")
async def test_an_export_proves_itself_without_its_broker_and_no_damage_passes(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().state == "finished", "the end", 60)
    file = tmp_path / "run.atoll"
    assert (await fleet.atoll("log", "export", fleet.run, "--blobs", "-o", str(file))).code == 0
    found = _audit_elsewhere(file, tmp_path / "elsewhere")
    end = fleet.history.of(RunFinished)[0][1]
    assert found["ok"] and found["versions"] == 2
    assert found["model_digest"] == end.parameters_digest
    assert found["anchored_through"] >= fleet.history.of(RoundCommitted)[-1][1].through
    deep = await fleet.audit("--deep", target=str(file))
    assert deep["model_digest"] == end.parameters_digest

    content, spans = file.read_bytes(), _spans(file, fleet.run)
    middle = len(spans) // 2
    (a, b), (c, d) = spans[middle - 1], spans[middle]
    changed = bytearray(content)
    changed[(a + b) // 2] ^= 1
    for name, damaged, sequence in (
        ("changed", bytes(changed), middle),
        ("removed", content[:a] + content[b:], middle),
        ("swapped", content[:a] + content[c:d] + content[a:b] + content[d:], middle),
    ):
        (tmp_path / name).write_bytes(damaged)
        answer = await fleet.atoll("audit", str(tmp_path / name), "--json")
        assert answer.code == 1, (name, answer)
        violations = json.loads(answer.out)["violations"]
        assert min(one["sequence"] for one in violations) == sequence, (name, violations)

    (tmp_path / "cut").write_bytes(content[: spans[-2][1]])
    answer = await fleet.atoll("audit", str(tmp_path / "cut"))
    assert answer.code == 1 and "footer" in answer.out + answer.err
    cut = json.loads((await fleet.atoll("audit", str(tmp_path / "cut"), "--json")).out)
    assert cut["last_sequence"] == len(spans) - 1
    assert 0 < cut["anchored_through"] <= len(spans) - 1
    assert f"{cut['anchored_through']}" in answer.out + answer.err


def _audit_elsewhere(file: Path, folder: Path) -> dict[str, object]:
    """The audit of a file in an empty directory, with no broker to ask and an empty home."""
    folder.mkdir()
    env = {"PYTHONPATH": str(CHECKOUT), "ATOLL_BROKER": "nats://127.0.0.1:1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "ops", "audit", str(file), "--json"],
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("ATOLL")}, **env},
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _spans(file: Path, run: str) -> list[tuple[int, int]]:
    """Where each record lies in the file, by the documented layout."""
    begin, spans = 12 + 2 + len(run) + 32, []
    for record in read_export(file):
        end = begin + FRAME_OVERHEAD + len(record.subject) + len(record.payload)
        spans.append((begin, end))
        begin = end
    return spans
