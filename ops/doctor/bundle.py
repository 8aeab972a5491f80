"""What a helper needs from a machine, as one archive: findings (with the configuration of the run
that was named), logs, who runs here and where their trainers stand; no secrets, no tensors."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ops.doctor.findings import Finding
from ops.doctor.secrets import redacted
from ops.home import Home
from sitehub.stacks import stacks_file

MAX_LOG_BYTES = 2_000_000  # of each log, its end
STACK_S = 3.0  # for a trainer to write where its threads stand
SHOWN = ("ATOLL_", "SLURM_", "OMP_", "CUDA_VISIBLE", "ROCR_VISIBLE", "NCCL_")  # of the environment


def write_bundle(target: Path, findings: Sequence[Finding], home: Home) -> list[str]:
    """Write the archive (tar, gzip), readable by its owner alone; the names in it."""
    names = []
    part = target.with_name(f".{target.name}.part")
    try:
        private = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(private, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in _contents(findings, home):
                _add(archive, name, redacted(text))
                names.append(name)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return names


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    info = tarfile.TarInfo(f"atoll-doctor/{name}")
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(data))


def _contents(findings: Sequence[Finding], home: Home) -> Iterator[tuple[str, str]]:
    yield "findings.json", json.dumps([one.as_json() for one in findings], indent=1)
    shown = {key: value for key, value in sorted(os.environ.items()) if key.startswith(SHOWN)}
    yield "environment.json", json.dumps(shown, indent=1)
    for log in sorted(home.root.glob("logs/*.log")):
        yield f"logs/{log.name}", _tail(log)
    for folder in sorted(home.root.glob("sites/*/*")):
        run, site = folder.parts[-2:]
        for file in (folder / "site.json", *sorted(folder.glob("work/*.log"))):
            if file.is_file():
                yield f"sites/{run}/{site}/{file.name}", _tail(file)
        stacks = _stacks(folder)
        if stacks:
            yield f"sites/{run}/{site}/stacks.txt", stacks
    for folder in (home.broker, *sorted(home.broker.glob("nodes/*"))):  # a configured one has these
        for file in sorted((*folder.glob("*.conf"), *folder.glob("*.log"))):
            yield f"broker/{file.relative_to(home.broker).as_posix()}", _tail(file)


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - MAX_LOG_BYTES))
            return opened.read().decode(errors="replace")
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _stacks(folder: Path) -> str:
    """Where the threads of a site's trainer stand, as it wrote when asked; '' where none runs."""
    try:
        said: dict[str, Any] = json.loads((folder / "site.json").read_text())
        pid = int(said["trainer_pid"])
        file = stacks_file(folder / "work", pid)
        if b"sitehub" not in Path(f"/proc/{pid}/cmdline").read_bytes() or not file.exists():
            return ""
        before = file.stat().st_size
        os.kill(pid, signal.SIGUSR2)
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    until = time.monotonic() + STACK_S
    while time.monotonic() < until and file.stat().st_size == before:
        time.sleep(0.05)
    time.sleep(0.1)  # the rest of what it writes
    text = file.read_bytes()[before:].decode(errors="replace")
    return text or f"trainer {pid} did not answer within {STACK_S:.0f} s: it is stopped, or worse\n"
