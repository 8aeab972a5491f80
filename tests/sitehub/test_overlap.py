"""Overlap, the hub's part: what a site trains while its exchange runs, and when it delivers."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.codec import decode
from eventlog.events import DeltaPublished, LeaseReclaimed, VersionApplied
from sitehub.actions import Fetch, Store
from sitehub.settling import settle
from tests.support.desk import BLOCK_S, Desk
from tests.support.scenario import Scenario, finish, name


def desk_of(quota: int, *blocks: int, **outer: Any) -> Desk:
    """A hub with this quota in round 1, granted these blocks; its trainer is in the first."""
    outer = {"overlap": "delayed", "delta_codec": "fp32", **outer}
    desk = Desk(Scenario({"epochs": 9}, outer=outer))
    desk.come_in()
    assert desk.run.open(a=quota) == ""
    assert desk.run.grant("a", *blocks) == ""
    desk.turn()
    return desk


def train(desk: Desk, *blocks: int) -> None:
    """The trainer is told these blocks, in this order, and trains each."""
    for block in blocks:
        assert (desk.told[-1]["do"], desk.told[-1].get("block")) == ("train", block)
        desk.trained(block + 1)
        desk.turn()


def cut(desk: Desk) -> dict[str, Any]:
    """The trainer says that its delta is cut; the command that told it to."""
    command = desk.told[-1]
    assert command["do"] == "publish"
    desk.logic.on_cut()
    desk.turn()
    return command


def written(desk: Desk, command: dict[str, Any], pending: bool = False) -> None:
    """The trainer has written its delta, and the hub has stored it."""
    answer = {"did": "publish", "path": command["path"], "codec": command["codec"], "norm": 1.0}
    more = {"max_abs": 1.0, "seconds": 0.5, "label": command["label"], "pending": pending}
    desk.logic.on_answer({**answer, **more}, desk.now)
    assert Store(command["path"]) in desk.turn()
    desk.logic.on_stored(command["path"], name(command["path"]), 100, 0.25)
    desk.turn()


def applied(desk: Desk, version: int, **stall: float) -> None:
    """The trainer has folded a version in, in the middle of whatever it trains."""
    assert (desk.told[-1]["do"], desk.told[-1]["version"]) == ("apply", version)
    answer = {"did": "apply", "version": version, "digest": name(f"version {version}")}
    desk.logic.on_answer({**answer, "seconds": 0.1, "stall": stall}, desk.now)
    desk.turn()


def merged(desk: Desk) -> None:
    desk.run.commit()
    desk.turn()


def hear(desk: Desk, said: str) -> None:
    """The hub reads the decision that was just made."""
    assert said == ""
    record = finish(desk.run.log.at(desk.run.last[0]))
    assert record is not None
    desk.logic.on_entry(decode(record), said)


def blocks_of(delta: DeltaPublished) -> list[int]:
    return [one.block for one in delta.blocks]


def test_at_its_quota_a_site_cuts_and_trains_on_while_the_delta_is_written_and_stored() -> None:
    desk = desk_of(2, 0, 1, 2, 3)
    train(desk, 0, 1)
    command = cut(desk)
    assert (desk.told[-1]["do"], desk.told[-1]["block"]) == ("train", 2)
    written(desk, command)
    (delta,) = desk.says(DeltaPublished)
    assert blocks_of(delta) == [0, 1] and delta.base_version == 0
    train(desk, 2)
    assert (desk.told[-1]["do"], desk.told[-1]["block"]) == ("train", 3)


def test_without_overlap_a_site_waits_for_its_delta_to_be_written() -> None:
    desk = desk_of(2, 0, 1, overlap="none")
    train(desk, 0, 1)
    num_told = len(desk.told)
    cut(desk)
    assert len(desk.told) == num_told


def test_one_delta_is_undecided_at_a_time_and_the_next_waits_for_the_version() -> None:
    desk = desk_of(1, 0, 1, 2)
    train(desk, 0)
    written(desk, cut(desk))
    train(desk, 1)
    desk.trained(3)
    desk.turn()
    assert desk.told[-1]["do"] == "train" and len(desk.says(DeltaPublished)) == 1
    merged(desk)
    assert desk.run.open(a=1) == ""
    desk.turn()
    assert desk.told[-1]["do"] == "apply", "a delta is based on the newest version"
    applied(desk, 1)
    desk.run.tick()  # the first decision after the opening
    desk.turn()
    written(desk, cut(desk))
    _, second = desk.says(DeltaPublished)
    assert blocks_of(second) == [1, 2] and second.base_version == 1


def test_each_block_begins_at_the_progress_where_the_one_before_it_ended() -> None:
    """Whether that is said, delivered, merged, or in a version that is still to be folded in."""
    desk = desk_of(1, 0, 1, 2, 3, 4)
    train(desk, 0)
    written(desk, cut(desk))
    train(desk, 1)  # beside a delta that is not decided
    merged(desk)
    assert desk.told[-1]["do"] == "apply"
    desk.trained(3)  # before the version is folded in
    desk.turn()
    train(desk, 3)
    share = 32 / (9 * 176)  # of a block in nine epochs of 176 tokens
    reached = [end for pair in desk.progress() for end in pair]
    expected = [number * share for block in range(5) for number in (block, block + 1)]
    assert reached == pytest.approx(expected)


def test_a_version_is_fetched_and_folded_in_while_a_block_is_trained() -> None:
    desk = desk_of(1, 0, 1, 2)
    train(desk, 0)
    written(desk, cut(desk))
    assert desk.hub.trainer.busy == "train"
    merged(desk)
    update = desk.run.view.version(1).update_blob
    assert Fetch(update) in desk.done
    applied(desk, 1, blocked=0.5, idle=0.25)
    assert desk.hub.trainer.busy == "train", "it was not interrupted"
    (trained,) = [one for one in desk.told if one.get("block") == 1]
    assert trained["do"] == "train"
    said = desk.says(VersionApplied)[-1]
    assert (said.version, said.stall_s) == (1, 0.75)
    assert said.seconds["encode"] == 0.5 and said.seconds["upload"] == 0.25
    assert said.seconds["apply"] == 0.1 and "wait" in said.seconds


def test_what_is_applied_for_an_incarnation_that_has_ended_is_not_taken_for_the_next() -> None:
    desk = desk_of(1, 0, 1)
    train(desk, 0)
    written(desk, cut(desk))
    merged(desk)
    assert desk.told[-1]["do"] == "apply"
    assert desk.run.depart("a", "lost") == ""
    desk.turn()
    applied_ = {"did": "apply", "version": 1, "digest": name("version 1"), "seconds": 0.1}
    desk.logic.on_answer(applied_, desk.now)
    assert desk.hub.trainer.version is None, "local parameters still stand on lost blocks"


@pytest.mark.parametrize("values", [False, True])
def test_a_refusal_is_answered_at_the_next_block_and_what_was_trained_since_is_kept(
    values: bool,
) -> None:
    desk = desk_of(1, 0, 1, 2)
    train(desk, 0)
    written(desk, cut(desk))
    (delta,) = desk.run.view.deltas("undecided")
    hear(desk, desk.run.refuse(delta.token, "a", "nonfinite" if values else "blob"))
    if values:
        held = desk.run.view.held(desk.hub.incarnation[0])
        reclaim = LeaseReclaimed(
            incarnation=desk.hub.incarnation,
            site="a",
            blocks=tuple((one.epoch, one.block) for one in held),
            reason="a test",
        )
        hear(desk, desk.run.decide(reclaim))
    desk.turn()
    assert (desk.told[-1]["do"], desk.told[-1]["block"]) == ("train", 1)
    desk.trained(2)
    desk.turn()
    if values:
        assert desk.told[-1] == {"do": "discard"}
        desk.answer()
        desk.turn()
    assert desk.told[-1] == {"do": "rebase", "reset": values}
    desk.answer()
    desk.turn()
    if values:
        assert desk.told[-1]["do"] == "rebase" and not desk.hub.done
    else:
        written(desk, cut(desk))
        assert blocks_of(desk.says(DeltaPublished)[-1]) == [1]


def test_a_delta_whose_blocks_are_taken_back_while_it_is_written_is_never_announced() -> None:
    desk = desk_of(1, 0)
    train(desk, 0)
    command = cut(desk)
    reclaim = LeaseReclaimed(
        incarnation=desk.hub.incarnation, site="a", blocks=((0, 0),), reason="a test"
    )
    hear(desk, desk.run.decide(reclaim))
    desk.turn()
    assert desk.told[-1]["do"] == "publish", "the trainer reads θ and P while it writes"
    answer = {"did": "publish", "path": command["path"], "codec": "fp32", "norm": 1.0}
    more = {"max_abs": 1.0, "seconds": 0.5, "label": command["label"], "pending": True}
    desk.logic.on_answer({**answer, **more}, desk.now)
    desk.turn()
    told = [command["do"] for command in desk.told[-2:]]
    assert sorted(told) == ["discard", "settle"] and desk.says(DeltaPublished) == []
    settled = next(command for command in desk.told if command["do"] == "settle")
    assert settled == {"do": "settle", "label": command["label"], "merged": False}


def test_a_site_that_leaves_delivers_what_it_has_trained_ahead_beside_its_undecided_delta() -> None:
    desk = desk_of(1, 0, 1, delta_codec="4-bit")
    train(desk, 0)
    first = cut(desk)
    assert first["codec"] == "4-bit"
    written(desk, first)
    desk.logic.ask_to_leave("walltime", "its job ends", 75)
    train(desk, 1)
    last = cut(desk)
    assert last["codec"] == "bf16", "what it would lose, nobody carries on"
    written(desk, last)
    one, other = desk.says(DeltaPublished)
    assert (blocks_of(one), one.last, blocks_of(other), other.last) == ([0], False, [1], True)


def test_the_deadline_of_a_round_that_has_its_delta_keeps_a_site_from_nothing() -> None:
    desk = desk_of(1, 0, 1, 2, 3)
    train(desk, 0)
    written(desk, cut(desk))
    deadline = desk.run.view.round().deadline_ticks
    for _ in range(deadline):
        desk.run.tick()
    desk.turn(BLOCK_S)
    train(desk, 1, 2)
    assert desk.told[-1]["block"] == 3


def test_a_residual_counts_once_the_log_has_merged_its_delta_and_is_asked_for_once() -> None:
    desk = desk_of(1, 0, 1)
    train(desk, 0)
    command = cut(desk)
    written(desk, command, pending=True)
    assert not [one for one in desk.told if one["do"] == "settle"]
    merged(desk)
    desk.turn()
    settled = [one for one in desk.told if one["do"] == "settle"]
    assert settled == [{"do": "settle", "label": command["label"], "merged": True}]


def test_a_new_trainer_settles_what_the_log_knows_of_its_predecessors_deltas() -> None:
    desk = desk_of(1, 0, 1)
    train(desk, 0)
    command = cut(desk)
    written(desk, command, pending=True)
    number, lease = desk.hub.incarnation[0], command["label"].rsplit(":", 1)[1]
    desk.logic.on_trainer_gone("killed")
    desk.turn()
    assert desk.run.depart("a", "trainer") == ""
    desk.turn()
    lost = f"{number}:0:1:{lease}"  # it was never announced
    report = {"hardware": {}, "software": {}, "manifest_digest": "", "arithmetic": {}}
    desk.logic.on_ready({**report, "pending": [command["label"], lost]})
    assert [(one.command["label"], one.command["merged"]) for one in settle(desk.hub)] == [
        (lost, False)
    ]
    desk.run.commit()
    assert [(one.command["label"], one.command["merged"]) for one in settle(desk.hub)] == [
        (command["label"], True)
    ]
