"""What the profiles of the known centres find on a machine: partitions of those names, and the
commands of a centre that this machine lacks, each as little as a job's script sees of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ops.placement.profiles import text

ROOT = Path(__file__).parents[2]
PARTITIONS = {"snellius": "gpu_h100", "lumi": "standard-g", "frontier": "batch"}
CLUSTER = {
    "cpus": 128,
    "gpus": 8,
    "memory_mb": 512_000,
    "features": ("nvme", "scratch-node"),
    "partitions": tuple(
        f"PartitionName={name} Nodes=ALL MaxTime=120:00:00 State=UP OverSubscribe=EXCLUSIVE"
        for name in PARTITIONS.values()
    ),
}


def software(folder: Path, preload: str) -> dict[str, str]:
    """Puts them into `folder`; the environment in which they are found. `module` says what it was
    asked for, a container is none, an environment holds this checkout."""
    atoll = (
        f'export PYTHONPATH="{ROOT}" OMP_NUM_THREADS=1 ATOLL_PRELOAD="{preload}"\n'
        f'exec "{sys.executable}" -m ops "$@"\n'
    )
    files = {
        "bin/singularity": 'shift 2\nexec "$@"\n',
        "bin/activate": 'PATH="$1/bin:$PATH"\n',
        "environment/bin/activate": f'PATH="{folder}/environment/bin:$PATH"\n',
        "environment/bin/atoll": atoll,
        "environment/bin/python": f'exec "{sys.executable}" "$@"\n',
    }
    for name, lines in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{lines}")
        path.chmod(0o755)
    return {
        "PATH": f"{folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
        "TMPDIR": str(folder),
        "BASH_FUNC_module%%": '() { echo "module $*"; }',
    }


def filled(centre: str, fields: dict[str, str], values: dict[str, str]) -> str:
    """The centre's profile as a person fills it in: fields below the name, values in their table,
    where one that stands there is replaced."""
    lines = []
    for line in text(centre).splitlines():
        key = line.partition(" = ")[0]
        if key not in values:
            lines.append(line)
        if line == f'name = "{centre}"':
            lines += [f'{name} = "{value}"' for name, value in fields.items()]
        if line == "[site.values]":
            lines += [f'{name} = "{value}"' for name, value in values.items()]
    if "[site.values]" not in lines:
        lines += ["[site.values]", *(f'{name} = "{value}"' for name, value in values.items())]
    return "\n".join(lines) + "\n"
