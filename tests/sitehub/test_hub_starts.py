"""R7 and R9 at the hub: nothing is trained before its start stands; it speaks when silent."""

from __future__ import annotations

from eventlog.events import BlockStarted, Heartbeat
from sitehub.actions import Append, Tell
from tests.support.desk import Desk
from tests.support.scenario import Scenario


def granted() -> Desk:
    """A hub with two blocks that it has not begun."""
    desk = Desk(Scenario({"epochs": 9}))
    desk.come_in()
    assert desk.run.open(a=2) == ""
    assert desk.run.grant("a", 0, 1) == ""
    return desk


def test_r7_nothing_is_trained_before_its_start_is_acknowledged_and_folded() -> None:
    desk = granted()
    asked = [one for _ in range(5) for one in desk.logic.actions(desk.now)]
    (append,) = asked
    assert isinstance(append, Append)
    assert [type(one) for one in append.events] == [BlockStarted, BlockStarted]
    desk._do(append)  # the log takes it, and the fold of it says that it holds
    (told,) = [one for one in desk.logic.actions(desk.now) if isinstance(one, Tell)]
    assert (told.command["do"], told.command["block"]) == ("train", 0)


def test_r7_a_start_that_the_fold_finds_void_trains_nothing() -> None:
    desk = granted()
    (append,) = desk.logic.actions(desk.now)
    assert isinstance(append, Append)
    zombie = desk.hub.incarnation
    assert desk.run.depart("a") == ""
    for event in append.events:
        assert "does not live" in desk.run.says("a", event, zombie)
    desk.logic.on_appended(len(append.events), desk.run.last[0], desk.now)
    assert not [one for one in desk.logic.actions(desk.now) if isinstance(one, Tell)]


def test_r9_a_heartbeat_comes_when_the_site_was_silent_for_an_interval_and_not_before() -> None:
    desk = granted()
    desk.turn()
    interval_s = desk.run.view.timing().heartbeat_s(1)
    since = desk.now  # it has just said what it starts
    assert desk.hub.last_append == since
    beats = []
    for _ in range(8):
        desk.now += interval_s / 4
        for action in desk.logic.actions(desk.now):
            desk._do(action)
            if isinstance(action, Append):
                beats += [(desk.now - since, type(one)) for one in action.events]
    assert beats == [(interval_s, Heartbeat), (2 * interval_s, Heartbeat)]


def test_r9_a_heartbeat_tells_of_a_transfer_that_goes_on_and_not_of_one_that_is_over() -> None:
    desk = granted()
    desk.turn()

    def beat() -> Heartbeat:
        desk.now += desk.run.view.timing().heartbeat_s(1)
        for action in desk.logic.actions(desk.now):
            desk._do(action)
            if isinstance(action, Append) and isinstance(action.events[0], Heartbeat):
                return action.events[0]
        raise AssertionError("no heartbeat")

    assert beat().transfer is None
    report = desk.hub.transfers.begin("down", "blob", lambda: desk.now)
    report(10, 100)
    told = beat().transfer
    assert told is not None and (told.way, told.done_bytes, told.of_bytes) == ("down", 10, 100)
    desk.hub.transfers.end("blob")
    assert beat().transfer is None


def test_a_joiner_at_70_percent_of_the_run_trains_at_70_percent_of_the_schedule() -> None:
    run = Scenario({"epochs": 1}, num_sequences=40)  # ten blocks
    run.arrive("a")
    for block in range(7):
        assert run.open(a=1) == ""
        run.work("a", block)
        run.commit()
        run.apply("a", block + 1)
    desk = Desk(run, "b")
    desk.come_in()
    assert run.open(a=1, b=2) == ""
    assert run.grant("b", 8, 9) == ""
    desk.turn()
    desk.trained(1)
    desk.turn()
    assert desk.progress() == [(0.7, 0.8), (0.8, 0.9)]
