"""The distribution without extras, in an environment of its own: logs are read without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.test_log_command import a_log, exported

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.soak
def test_the_plain_install_reads_logs_and_names_what_training_needs(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", ROOT]
    subprocess.run(pip, check=True)
    file = exported(tmp_path, a_log())

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        where = [str(venv / "bin" / command[0]), *command[1:]]
        return subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert run("python", "-c", "import torch").returncode != 0
    assert run("python", "-c", "import broker, eventlog, leases, ops.commands").returncode == 0
    assert run("atoll", "--help").returncode == 0
    assert run("atoll", "log", "verify", str(file)).returncode == 0
    built = run("atoll", "data", "build", "--stdlib", "tokens")
    assert built.returncode == 3
    assert "atoll[train]" in built.stderr and len(built.stderr.splitlines()) == 1
