"""What may be loaded by whom, checked in fresh interpreters."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "nats", "rich"}


def modules_of(room: str) -> list[str]:
    """Every module of a room, by name."""
    found = pkgutil.walk_packages([str(ROOT / room)], prefix=f"{room}.")
    return [room, *(module.name for module in found)]


def loaded_by(code: str) -> set[str]:
    """Top-level names in sys.modules after `code` ran in a fresh interpreter."""
    report = "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_language_and_the_leases_load_without_torch_transformers_nats_and_rich() -> None:
    modules = modules_of("eventlog") + modules_of("leases")
    assert "eventlog.events" in modules
    assert not loaded_by("import " + ", ".join(modules)) & HEAVY


def test_help_loads_nothing_heavier_than_click() -> None:
    code = "from ops.cli import run\nassert run(['--help']) == 0"
    heavy = HEAVY | {"pydantic", "sqlite_utils", "msgpack", "asyncio", "importlib_metadata"}
    assert not loaded_by(code) & heavy
