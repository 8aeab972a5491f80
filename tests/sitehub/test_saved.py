"""A site's checkpoints: when one is made, which is found, and what of it counts."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from eventlog.events import DeltaPublished, SiteDeparting
from leases.table import LeaseTable
from leases.view import View
from sitehub import saved
from sitehub.actions import Leave
from sitehub.saved import Resume, Saving
from tests.support.desk import Desk, training
from tests.support.scenario import name

SITE, PENDING = "a", "10:0:4:12"


def checkpoint(folder: Path, number: int, known: int = 20, pending: tuple[str, ...] = ()) -> Path:
    path = folder / f"{number:08}"
    path.mkdir(parents=True)
    state = {"format": saved.FORMAT, "known": known, "pending": list(pending)}
    (path / saved.STATE).write_text(json.dumps(state))
    return path


def log_of(*deltas: tuple[int, int, int, str]) -> View:
    """A log that holds these deltas of the site: sequence, incarnation, first block, state."""
    db = sqlite3.connect(":memory:")
    LeaseTable().create(db)
    for seq, incarnation, block, state in deltas:
        db.execute(
            "INSERT INTO deltas (seq, id, incarnation, site, state, base_version, blob, codec, "
            "num_bytes, norm, max_abs, num_blocks, tokens, first_epoch, first_block, last, ticks) "
            "VALUES (?, 'd', ?, ?, ?, 0, 'b', 'int8', 1, 1, 1, 1, 1, 0, ?, 0, 0)",
            (seq, incarnation, SITE, state, block),
        )
    return View(db)


@pytest.mark.parametrize(
    ("deltas", "counts"),
    [
        ([], True),
        ([(20, 10, 1, "merged")], True),  # it was known
        ([(25, 10, 2, "merged")], False),
        ([(25, 10, 2, "undecided")], False),  # it may yet be merged
        ([(25, 10, 2, "refused")], True),  # nothing of it counts, what it used neither
        ([(25, 10, 2, "void")], True),
        ([(25, 10, 4, "merged")], True),  # it was on its way, and is in the checkpoint
        ([(25, 10, 4, "merged"), (30, 10, 5, "merged")], False),
        ([(25, 11, 4, "merged")], False),  # another incarnation's
    ],
)
def test_residual_counts_only_where_nobody_has_delivered_it_since(
    deltas: list[Any], counts: bool, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, 1, pending=(PENDING,))
    found = saved.resume_of(log_of(*deltas), SITE, tmp_path, (10, "x"))
    assert (found.path, found.saved) == (str(path), counts)


def test_residual_of_this_machine_counts_unless_a_later_life_elsewhere_delivered() -> None:
    here = (10, "x")
    for deltas, own in (
        ([(25, 10, 2, "merged")], True),
        ([(25, 11, 2, "merged")], False),
        ([(25, 11, 2, "refused")], True),
    ):
        assert saved.resume_of(log_of(*deltas), SITE, None, here) == Resume(None, own, False)
    # a folder that nobody is known to have lived in is nobody's
    assert not saved.resume_of(log_of((25, 10, 2, "merged")), SITE, None, None).own


def test_newest_that_can_be_read_is_found_and_older_ones_go(tmp_path: Path) -> None:
    assert saved.newest(tmp_path / "nothing") is None
    for number in (1, 2, 9, 10):
        checkpoint(tmp_path, number)
    (tmp_path / "00000011.part").mkdir()
    (tmp_path / "00000012").mkdir()  # without a state
    found = saved.newest(tmp_path)
    assert found is not None and found[0].name == "00000010"
    assert saved.next_path(tmp_path).name == "00000013"
    saved.prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000010", "00000012"]


# -- the hub's part -------------------------------------------------------------------------------


def saving(tmp_path: Path, every_s: float) -> Desk:
    desk = training()
    desk.logic.hub.saving = Saving(tmp_path, every_s)
    return desk


def told(desk: Desk) -> list[str]:
    return [command["do"] for command in desk.told]


def test_saves_between_blocks_once_it_is_due_and_trains_on_when_the_copy_is_made(
    tmp_path: Path,
) -> None:
    desk = saving(tmp_path, 5.0)
    desk.trained(1)
    desk.turn()
    assert told(desk)[-1] == "train"  # not yet
    desk.now += 6.0
    desk.trained(2)
    desk.turn()
    assert told(desk)[-1] == "save"
    assert desk.told[-1]["state"]["site"] == desk.logic.hub.site
    desk.turn()
    assert told(desk)[-1] == "save"
    desk.logic.on_saving()
    desk.turn()
    assert told(desk)[-1] != "save"
    desk.logic.on_answer({"did": "save", "error": "the disk is full"}, desk.now)
    desk.turn()
    assert desk.says(SiteDeparting) == []  # it costs nothing else


def test_who_leaves_saves_after_its_last_delta_and_ends_when_it_is_written(tmp_path: Path) -> None:
    desk = saving(tmp_path, 1e9)
    desk.trained(1)
    desk.logic.ask_to_leave("walltime", "its job ends", 75)
    desk.turn()
    assert told(desk)[-1] == "publish"
    desk.logic.on_cut()
    facts = {"path": desk.told[-1]["path"], "label": desk.told[-1]["label"], "codec": "bf16"}
    desk.answer(**facts, norm=1.0, max_abs=1.0, num_bytes=100, seconds=0.1)
    desk.turn()
    desk.logic.on_stored(facts["path"], name("delta"), 100, 0.1)
    desk.turn()
    assert told(desk)[-1] == "save"
    assert len(desk.says(DeltaPublished)) == 1
    assert desk.says(SiteDeparting) == []
    desk.logic.on_saving()
    desk.turn()
    assert len(desk.says(SiteDeparting)) == 1
    desk.now += 100.0
    assert not any(isinstance(action, Leave) for action in desk.turn())
    desk.logic.on_answer({"did": "save", "path": "p"}, desk.now)
    assert any(isinstance(action, Leave) for action in desk.turn())
