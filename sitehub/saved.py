"""A site's checkpoints, the hub's part: when one is made, and what a new incarnation takes up.

    FOLDER/00000012/state.json          what was saved, for whoever reads it and for `newest`
                    inner.safetensors   the inner optimizer's state, of all ranks together
                    residual/           error feedback, as `outer.feedback` keeps it

A checkpoint is a folder that appears whole, and the newest are kept. Parameters are not in it: an
incarnation starts from the log's newest version, and which blocks come next the log says too. So
what is saved is what only the site knows.

A residual counts once (docs/outer-step.md), so it is taken up only where the log shows that nobody
has delivered it since. That is judged after the admission, when no predecessor can write any more.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leases.rows import Block
from leases.states import TRAINED
from leases.view import View

if TYPE_CHECKING:
    from eventlog.events import Token
    from sitehub.state import HubState

STATE, INNER, RESIDUAL = "state.json", "inner.safetensors", "residual"
FORMAT = "atoll site checkpoint 1"
KEPT = 2


@dataclass(slots=True)
class Saving:
    """Whether and how often a site saves, and what was saved last. `folder`: on any machine."""

    folder: Path
    every_s: float
    last_s: float | None = None  # on the hub's clock; None: not looked at yet
    step: int = -1  # of the trainer when it was saved last


@dataclass(frozen=True, slots=True)
class Resume:
    """What a trainer that has just begun takes up: `path` of a checkpoint, or none; whether the
    residual in the site's folder on this machine still counts, and whether the checkpoint's does.
    """

    path: str | None
    own: bool
    saved: bool

    @property
    def is_needed(self) -> bool:
        """Whether the trainer has to be told; else it goes on with what its folder holds."""
        return self.path is not None or not self.own


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that can be read, and its state."""
    for path in _all(folder):
        try:
            state = json.loads((path / STATE).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(state, dict) and state.get("format") == FORMAT:
            return path, state
    return None


def next_path(folder: Path) -> Path:
    """Where the next one is to be."""
    last = max((int(path.name) for path in _all(folder)), default=0)
    return folder / f"{last + 1:08}"


def prune(folder: Path) -> None:
    """Remove all but the newest, and what a killed process has left half written."""
    for path in [*_all(folder)[KEPT:], *folder.glob("*.part")]:
        shutil.rmtree(path, ignore_errors=True)


def _all(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob("[0-9]*") if path.name.isdigit()), reverse=True)


def resume_of(view: View, site: str, folder: Path | None, here: Token | None) -> Resume:
    """What a site's new incarnation takes up. `here`: the one before it on this machine."""
    found = newest(folder) if folder is not None else None
    own = not _delivered(view, site, "incarnation > ?", here[0] if here else 0)
    if found is None:
        return Resume(None, own, saved=False)
    path, state = found
    since = _delivered(view, site, "seq > ?", state["known"])
    # what was on its way when it was saved is in it, and is settled as the log says
    saved = all(any(label.startswith(one) for label in state["pending"]) for one in since)
    return Resume(str(path), own, saved)


def _delivered(view: View, site: str, which: str, argument: int) -> list[str]:
    """Labels of the site's deltas that were not refused (see `sitehub.settling`), lease included as
    far as the log's row tells: those of a condition."""
    rows = view.ask(
        "SELECT incarnation, first_epoch, first_block FROM deltas "
        f"WHERE site = ? AND state NOT IN ('refused', 'void') AND {which}",
        site,
        argument,
    )
    return [f"{incarnation}:{epoch}:{block}:" for incarnation, epoch, block in rows]


def known(view: View, site: str) -> int:
    """The sequence of the last delta that the log holds of a site; 0 without one."""
    rows = view.ask("SELECT max(seq) FROM deltas WHERE site = ?", site)
    return int(rows[0][0] or 0)


def is_due(hub: HubState, now: float) -> bool:
    """Whether to save now: after some time, with something trained since, and no delta on its way
    whose residual is not decided."""
    saving, trainer = hub.saving, hub.trainer
    if saving is None:
        return False
    if saving.last_s is None:
        saving.last_s = now
    idle = hub.publication is None and not hub.unsettled and not trainer.beside
    new = trainer.step != saving.step and not trainer.saving
    return idle and new and now - saving.last_s >= saving.every_s


def is_farewell(hub: HubState, held: list[Block]) -> bool:
    """Whether to save now because the site leaves, and has delivered everything (P7)."""
    trainer = hub.trainer
    if hub.saving is None or hub.leaving is None or hub.departing or trainer.version is None:
        return False
    if hub.view.run().state == "stopping":
        return False  # there is no next job
    busy = trainer.busy or trainer.beside or trainer.saving or hub.publication is not None
    left = hub.done or any(block.state == TRAINED for block in held)
    return not busy and not left and trainer.step not in (0, hub.saving.step)


def command(hub: HubState, now: float) -> dict[str, Any]:
    """The trainer's command to save."""
    assert hub.saving is not None
    hub.saving.last_s, hub.saving.step = now, hub.trainer.step
    hub.trainer.saving, hub.trainer.saving_since = True, now
    state = {
        "format": FORMAT,
        "run": hub.view.run().name,
        "site": hub.site,
        "incarnation": hub.incarnation[0] if hub.incarnation else None,
        "version": hub.trainer.version,
        "known": known(hub.view, hub.site),
    }
    return {"do": "save", "folder": str(hub.saving.folder), "state": state}
