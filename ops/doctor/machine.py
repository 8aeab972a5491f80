"""What the doctor looks at on this machine: versions, disk, limits, device, queue."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ops.doctor.findings import Finding
from ops.filesystems import MEMORY, Filesystem, filesystem
from ops.numbers import size

MIN_PYTHON = (3, 11)
NAMED = ("atoll", "nats-py", "torch", "transformers", "tokenizers", "numpy", "numba")
MIN_FILES = 1024
MIN_FREE_BYTES = 5_000_000_000
LIMIT_S = 20.0


def look(home: Path) -> Iterator[Finding]:
    """Everything about this machine; `home` is ATOLL_HOME."""
    yield versions()
    yield disk(home, filesystem(home))
    yield files()
    yield device()
    yield slurm()


def versions() -> Finding:
    """Python and the libraries that matter, and whether this can train."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for name in NAMED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    said = ", ".join(f"{name} {version}" for name, version in found.items())
    why = "sites of a run must compute the same; a coordinator and sites need the extra `train`"
    if sys.version_info < MIN_PYTHON:
        return Finding("versions", "bad", said, why, "use Python 3.11 or newer", found)
    lacking = [name for name in ("torch", "transformers", "numba") if found[name] == "missing"]
    if lacking:
        todo = f"pip install 'atoll[train]' to train here ({', '.join(lacking)} missing)"
        return Finding("versions", "note", said, why, todo, found)
    return Finding("versions", "good", said, why, "", found)


def disk(home: Path, found: Filesystem) -> Finding:
    """Where ATOLL_HOME lies, and how much is free there."""
    there = home
    while not there.exists() and there != there.parent:
        there = there.parent
    usage = shutil.disk_usage(there)
    free = f"{size(usage.free)} of {size(usage.total)} free"
    what = f"ATOLL_HOME {home} is on {found.kind}, {free}"
    measured = {"kind": found.kind, "free_bytes": usage.free, "size_bytes": usage.total}
    why = "folds are SQLite databases, which network filesystems damage; blobs need room"
    if found.is_network:
        todo = "set ATOLL_HOME to a folder on a disk of this node, such as $TMPDIR or /scratch"
        return Finding("disk", "bad", what, why, todo, measured)
    if usage.free < MIN_FREE_BYTES:
        todo = f"make room, or move ATOLL_HOME: less than {size(MIN_FREE_BYTES)} fills up soon"
        return Finding("disk", "note", what, why, todo, measured)
    if found.kind in MEMORY:
        todo = "mind that it counts as memory of the job, and is gone with a reboot"
        return Finding("disk", "note", what, why, todo, measured)
    return Finding("disk", "good", what, why, "", measured)


def files() -> Finding:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what, why = f"{soft:,} open files allowed", "a broker has one for each connection and stream"
    measured = {"soft": soft, "hard": hard}
    if soft < MIN_FILES:
        return Finding("files", "bad", what, why, f"ulimit -n {min(4096, hard)}", measured)
    return Finding("files", "good", what, why, "", measured)


def device() -> Finding:
    """What training would run on."""
    why = "training takes the accelerator where there is one, else the cores of this job"
    try:
        from sitehub.machine import hardware, pick_device
    except ImportError:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        what = f"{cores} cores; without torch, accelerators are not known"
        return Finding("device", "note", what, why, "pip install 'atoll[train]'", {"cores": cores})
    found = hardware(pick_device())
    what = (
        f"{found.get('accelerator', 'no accelerator that torch sees')}, {found['num_cpus']} cores"
    )
    todo = ""
    if found["device"] == "cpu" and (shutil.which("nvidia-smi") or shutil.which("rocm-smi")):
        todo = "there are tools of a GPU here and torch sees none: check its build, and the job"
    return Finding("device", "note" if todo else "good", what, why, todo, dict(found))


def slurm() -> Finding:
    """Whether jobs can be submitted from here, and whether this is one."""
    why = "site scripts and placement use sbatch; a job tells when its walltime ends"
    job = os.environ.get("SLURM_JOB_ID")
    if shutil.which("sbatch") is None:
        what = f"in job {job}; no sbatch here" if job else "no sbatch here"
        return Finding("slurm", "good", what, why, "", {"job": job, "version": None})
    try:
        done = subprocess.run(
            ["sbatch", "--version"], capture_output=True, text=True, timeout=LIMIT_S
        )
        said = (done.stdout or done.stderr).strip().partition("\n")[0]
        works = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        said, works = str(error), False
    what = said + (f", in job {job}" if job else "")
    if not works:
        todo = "ask the centre: sbatch is installed and does not run"
        return Finding("slurm", "note", what, why, todo, {"job": job, "version": None})
    return Finding("slurm", "good", what, why, "", {"job": job, "version": said})
