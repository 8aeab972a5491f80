"""The hub's mind when its blocks or its run are taken from it: stolen, paused (R2)."""

from __future__ import annotations

from eventlog.events import BlockStarted, LeaseStolen, RunPaused
from tests.support.desk import Desk, training


def stealing(desk: Desk, *blocks: int) -> LeaseStolen:
    fields = {"incarnation": desk.run.sites["a"], "site": "a", "epoch": 0, "blocks": blocks}
    return LeaseStolen.model_validate({**fields, "reason": "another site idles"})


def test_r2_who_was_stolen_from_delivers_the_rest_at_once() -> None:
    desk = training()
    assert desk.run.decide(stealing(desk, 2)) == ""
    desk.trained(1)
    desk.turn()
    desk.trained(2)
    desk.turn()
    assert desk.told[-1]["do"] == "publish"
    assert [block.block for block in desk.hub.publication.blocks] == [0, 1]


def test_r2_what_was_trained_beside_a_delta_is_delivered_in_a_paused_run_without_a_round() -> None:
    desk = training()
    run = desk.run
    desk.trained(1)
    desk.turn()  # block 1 is in work, block 2 claimed
    run.deliver("a", 0)
    run.operator(RunPaused(reason="maintenance"))
    for step in (2, 3):
        if desk.told[-1]["do"] == "train":
            desk.trained(step)
            desk.turn()
    assert run.states(0, 1, 2) == ["delivered", "trained", "trained"]
    assert desk.told[-1]["do"] == "train", "one undecided delta at a time"
    run.commit()
    desk.turn()
    assert desk.told[-1]["do"] == "apply"
    desk.hold(1)
    desk.turn()
    assert desk.told[-1]["do"] == "publish"
    assert [block.block for block in desk.hub.publication.blocks] == [1, 2]


def test_r2_a_steal_that_overtakes_a_start_wins_and_the_block_is_not_trained() -> None:
    desk = training()
    (third,) = [block for block in desk.hub.held() if block.block == 2]
    claim = BlockStarted(epoch=0, block=2, lease=third.lease)
    desk.hub.claimed.add((0, 2, third.lease[0]))  # said, and on its way
    assert desk.run.decide(stealing(desk, 2)) == ""
    assert "not leased by the writer" in desk.run.says("a", claim)
    desk.trained(1)
    desk.turn()
    desk.trained(2)
    desk.turn()
    assert [command["block"] for command in desk.told if command["do"] == "train"] == [0, 1]
    assert desk.told[-1]["do"] == "publish"
