"""A benchmark by its command line, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.forkserver import CHECKOUT


def quick(name: str, folder: Path = CHECKOUT) -> dict[str, Any]:
    """What `atoll bench NAME --quick --json` prints, run in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "ops", "bench", name, "--quick", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
