"""A site whose deltas are not finite while a file says so; in all else it is a site like others.

python -m tests.support.poisoned FLAG ARGUMENTS   `atoll ARGUMENTS`, poisoned while FLAG exists
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.deathsig import arm, death_signal

if TYPE_CHECKING:
    from tests.support.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Poison:
    """Switches the poison of one site."""

    flag: Path

    def on(self) -> None:
        self.flag.touch()

    def off(self) -> None:
        self.flag.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def poisoned(fleet: Fleet, site: str) -> AsyncIterator[Poison]:
    """Starts such a site of the fleet; it is well at first. The fleet ends it."""
    flag, log = fleet.root / f"{site}-is-poisoned", fleet.log_of(site)
    arguments = ["site", "run", fleet.run, site, "--data", str(fleet.data)]
    prctl, parent = death_signal(), os.getpid()
    with log.open("ab") as output:
        fleet.processes[site] = subprocess.Popen(
            [sys.executable, "-m", "tests.support.poisoned", str(flag), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **fleet.environment()},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
        )
    yield Poison(flag)


def _spoil(path: Path) -> None:
    """Every value of a delta's file becomes NaN; its form stays."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        metadata, names = file.metadata(), file.keys()
        tensors = {name: torch.full_like(file.get_tensor(name), torch.nan) for name in names}
    save_file(tensors, path, metadata)


def _main(flag: Path, arguments: list[str]) -> int:
    from ops import cli
    from sitehub.hub import Hub

    hear = Hub._hear

    def hear_poisoned(self: Hub, message: dict[str, Any]) -> None:
        if message.get("did") == "publish" and "error" not in message and flag.exists():
            _spoil(self._handover.folder / message["path"])
        hear(self, message)

    Hub._hear = hear_poisoned  # type: ignore[method-assign]
    return cli.run(arguments)


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
