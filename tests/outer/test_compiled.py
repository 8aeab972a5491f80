"""What compiled loops leave on disk is never another source's, and nothing depends on it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import numpy as np
from outer.nesterov import Rule, step
theta, m, d = np.array([[1.0], [0.0], [0.5]], np.float32)
step(theta, m, d, Rule.of(0.5, 0.5))
print(theta[0], m[0])
"""


def found(cache: Path | str, root: Path = ROOT) -> str:
    """What a step comes to in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=root,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


RIGHT = "0.625 0.5"  # m = 0.5, θ = 1 − 0.5·(0.5 + 0.5·0.5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that a process has filled."""
    cache = tmp_path_factory.mktemp("cache")
    assert found(cache) == RIGHT
    assert {path.suffix for path in files(cache)} == {".nbi", ".nbc"}
    return cache


def files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def garbage(path: Path) -> None:
    path.write_bytes(b"nothing of use" * 100)


@pytest.mark.parametrize("harm", [emptied, torn, garbage, Path.unlink])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_what_cannot_be_read_is_compiled_anew_and_kept(
    harm: Callable[[Path], None], suffix: str, kept: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(kept, cache)
    for path in files(cache):
        if path.suffix == suffix:
            harm(path)
    assert found(cache) == RIGHT
    assert found(cache) == RIGHT
    assert min(path.stat().st_size for path in files(cache)) > 0


def test_where_nothing_can_be_kept_all_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert found(tmp_path / "file") == RIGHT
    assert found("/proc/nowhere") == RIGHT


def test_machine_code_of_another_source_is_never_run(kept: Path, tmp_path: Path) -> None:
    """Whatever the clock says of the files: a killed upgrade must leave nothing that is found."""
    for room in ("eventlog", "outer"):
        shutil.copytree(ROOT / room, tmp_path / room)
    source = tmp_path / "outer" / "nesterov.py"
    before = source.stat()
    text = source.read_text()
    assert text.count("parameters[i] -= move[i]") == 1
    source.write_text(text.replace("parameters[i] -= move[i]", "parameters[i] += move[i]"))
    os.utime(source, (before.st_atime, before.st_mtime))
    cache = tmp_path / "cache"
    shutil.copytree(kept, cache)
    assert found(cache, tmp_path) == "1.375 0.5"
    assert found(cache) == RIGHT
