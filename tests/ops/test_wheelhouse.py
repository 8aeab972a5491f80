"""Installing without a network: a wheelhouse with atoll's own wheel, into a new environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from ops.placement import profiles

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_wheelhouse_installs_without_an_index_and_has_the_profiles(tmp_path: Path) -> None:
    source, house = tmp_path / "source", tmp_path / "wheelhouse"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for room in ("broker", "eventlog", "leases", "ops", "outer", "sitehub"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, source / room, ignore=leave)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    build = ("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", house, source)
    made = run(*pip, *build, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert [path.name.partition("-")[0] for path in house.iterdir()] == ["atoll"]

    made = run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    there = tmp_path / "env" / "bin"
    install = ("install", "--no-index", "--find-links", house)
    into = ("--python", there / "python")
    alone = run(*pip, *into, *install, "atoll", cwd=tmp_path)
    assert alone.returncode != 0 and "No matching distribution" in alone.stderr, alone.stdout
    done = run(*pip, *into, *install, "--no-deps", "atoll", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    printed = run(there / "atoll", "site", "profile", "lumi", cwd=tmp_path)
    assert printed.stdout == profiles.text("lumi"), printed.stderr
    asked = run(there / "atoll", "site", "profile", cwd=tmp_path)
    assert asked.stdout.split() == ["frontier", "lumi", "snellius"]
