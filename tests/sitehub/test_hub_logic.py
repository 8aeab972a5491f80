"""The hub's mind without a process: it watches its trainer, waits at the door, leaves in time."""

from __future__ import annotations

import pytest

from eventlog.events import (
    DrainRequested,
    Heartbeat,
    SiteDeparted,
    SiteDeparting,
    SiteJoined,
    VersionApplied,
)
from sitehub import door
from sitehub.actions import Action, Append, EndTrainer, Leave, StartTrainer
from tests.support.desk import BLOCK_S, LEASE_S, Desk, training
from tests.support.scenario import Scenario


def ends(actions: list[Action]) -> list[EndTrainer]:
    return [action for action in actions if isinstance(action, EndTrainer)]


# -- R10 ------------------------------------------------------------------------------------------


def test_r10_a_trainer_without_a_step_for_a_lease_is_ended_and_its_incarnation_departs() -> None:
    desk = training()
    desk.step(1)
    assert ends(desk.watch(LEASE_S)) == []
    (end,) = ends(desk.watch(1.0))
    assert "its trainer hangs: no step for" in end.reason
    desk.turn()
    (good_bye,) = desk.says(SiteDeparting)
    assert good_bye.code == "trainer" and good_bye.reason == end.reason
    assert ends(desk.watch(30.0)) == []  # once
    desk.logic.on_trainer_gone("ended with exit code -9")
    assert desk.run.depart("a", "trainer") == ""
    assert StartTrainer() in desk.turn()
    desk.ready()
    desk.turn()
    assert len(desk.says(SiteJoined)) == 2


def test_r10_a_trainer_that_makes_steps_is_left_alone_however_long_a_block_takes() -> None:
    desk = training()
    for step in range(1, 10):
        desk.step(step)
        assert ends(desk.watch(LEASE_S - 1)) == []


def test_r10_ten_of_its_slowest_steps_are_waited_for() -> None:
    desk = training()
    desk.step(1, step_s=3.0)
    assert ends(desk.watch(30.0)) == []
    assert len(ends(desk.watch(1.0))) == 1


def test_r10_before_the_first_step_and_for_other_commands_the_bound_is_that_of_compiling() -> None:
    desk = training()
    assert ends(desk.watch(100.0)) == []
    assert len(ends(desk.watch(1.0))) == 1
    desk = training()
    desk.trained(1)
    desk.turn()
    desk.trained(2)
    desk.turn()
    desk.trained(3)
    desk.turn()
    assert desk.told[-1]["do"] == "publish"
    assert ends(desk.watch(100.0)) == []
    (end,) = ends(desk.watch(1.0))
    assert "no answer to 'publish'" in end.reason


def test_r10_what_a_hub_slept_through_does_not_count_against_its_trainer() -> None:
    desk = training()
    desk.step(1)
    desk.watch(5.0)
    assert ends(desk.turn(500.0)) == []  # the whole node stood still
    assert ends(desk.watch(LEASE_S)) == []
    assert len(ends(desk.watch(1.0))) == 1


def test_r10_an_idle_trainer_owes_nothing() -> None:
    desk = Desk(Scenario({"epochs": 9}))
    desk.come_in()
    assert ends(desk.watch(1000.0)) == []


def test_r10_heartbeats_carry_the_slowest_step_and_what_keeps_the_trainer_waiting() -> None:
    desk = training()
    desk.step(1, step_s=1.5)
    desk.watch(2.0)
    beat = desk.says(Heartbeat)[-1]
    assert (beat.phase, beat.step, beat.step_s) == ("training", 1, 1.5)
    assert desk.run.view.live_at("a").step_s == 1.5
    desk.trained(2)
    desk.hub.fetching["blob"] = desk.now
    desk.hub.trainer.busy = ""
    assert desk.logic._phase() == "applying"


# -- R11 ------------------------------------------------------------------------------------------


def committed(num: int) -> Scenario:
    """A run at version `num` whose site `a` lives and speaks."""
    run = Scenario({"epochs": 9})
    run.arrive("a")
    for version in range(num):
        run.open(a=1)
        run.work("a", version)
        run.commit()
        run.apply("a", version + 1)
    return run


def test_r11_a_successor_waits_at_the_door_with_the_newest_version_loaded() -> None:
    run = committed(2)
    predecessor = run.sites["a"]
    desk = Desk(run, successor=True)
    desk.turn()
    desk.ready()
    desk.turn()
    (join,) = desk.says(SiteJoined)
    assert join.successor and run.view.waiting_joins()[0].successor
    assert [command["do"] for command in desk.told] == ["load"]
    desk.hold(0)
    for version in (1, 2):
        desk.turn()
        assert (desk.told[-1]["do"], desk.told[-1]["version"]) == ("apply", version)
        desk.hold(version)
    desk.turn()  # it drops the files that the trainer has read
    assert run.says("a", Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0)) == ""
    assert desk.turn() == [] and desk.says(VersionApplied) == []
    assert run.view.live_at("a").token == predecessor
    run.depart("a", "walltime")
    assert run.admit("a", run.view.waiting_joins()[0].token) == ""
    assert [type(one) for one in desk.turn()] == [Append]  # at once, with nothing left to load
    (applied,) = desk.says(VersionApplied)
    assert applied.version == 2 and run.view.live_at("a").version == 2


def test_r11_a_version_that_cannot_be_had_at_the_door_is_not_asked_for_again_and_again() -> None:
    desk = Desk(committed(1), successor=True)
    desk.turn()
    desk.ready()
    desk.turn()
    desk.answer(error="the file is torn")
    assert desk.turn() == [] and len(desk.told) == 1


def test_r11_a_trainer_that_ends_at_the_door_is_replaced_after_the_admission() -> None:
    run = committed(0)
    desk = Desk(run, successor=True)
    desk.turn()
    desk.ready()
    desk.turn()
    desk.logic.on_trainer_gone("killed")
    run.depart("a", "walltime")
    run.admit("a", run.view.waiting_joins()[0].token)
    desk.turn()
    assert [one.code for one in desk.says(SiteDeparting)] == ["trainer"]
    run.depart("a", "trainer")
    assert StartTrainer() in desk.turn()


def test_r11_who_is_no_successor_does_not_say_so() -> None:
    desk = Desk(committed(0))
    desk.turn()
    desk.ready()
    desk.turn()
    (join,) = desk.says(SiteJoined)
    assert not join.successor and join.walltime_left_s is None


# -- leaving --------------------------------------------------------------------------------------


def test_p7_a_job_near_its_end_delivers_what_is_trained_and_departs() -> None:
    desk = training(walltime_end=100.0 + LEASE_S + 3.6 * BLOCK_S)
    assert desk.says(SiteJoined)[0].walltime_left_s == LEASE_S + 3.6 * BLOCK_S
    desk.now += BLOCK_S
    desk.trained(1)
    desk.turn()
    assert desk.told[-1]["do"] == "train"  # 2.6 blocks and the margin are left
    desk.now += 2 * BLOCK_S
    desk.trained(2)
    desk.turn()
    assert desk.told[-1]["do"] == "publish"  # 0.6 of a block is left
    assert desk.hub.leaving is not None and desk.hub.leaving.code == "walltime"
    trains = [command["block"] for command in desk.told if command["do"] == "train"]
    assert trains == [block.block for block in desk.hub.publication.blocks]
    assert len(trains) == 2 and desk.hub.publication.last


def test_p7_a_block_whose_end_is_not_folded_yet_is_delivered_before_the_good_bye() -> None:
    desk = training()
    desk.trained(1)
    desk.logic.ask_to_leave("walltime", "its job ends", 75)
    (append,) = desk.logic.actions(desk.now)
    assert isinstance(append, Append)
    desk.logic.on_appended(len(append.events), desk.run.last[0] + 1, desk.now)  # stored
    for _ in range(3):
        assert desk.logic.actions(desk.now) == []
    for event in append.events:
        assert desk.run.says("a", event, desk.hub.incarnation) == ""  # and now folded
    desk.turn()
    assert desk.told[-1]["do"] == "publish" and not desk.says(SiteDeparting)


def test_r12_no_block_is_started_that_would_outlast_the_job() -> None:
    desk = training(walltime_end=100.0 + 2 * LEASE_S + 1.0)
    desk.now += LEASE_S + 1.0 - 1.5 * BLOCK_S
    desk.trained(1)
    desk.turn()  # a block and a half is left: the second is in work, the third not begun
    assert desk.run.states(0, 1, 2) == ["trained", "training", "leased"]


def test_r12_a_block_that_nobody_has_timed_is_not_begun_within_a_lease_of_the_margin() -> None:
    """Its first one here, or after a restart: it might be ended by the walltime in the middle."""
    desk = Desk(Scenario({"epochs": 9}), walltime_end=100.0 + 3 * LEASE_S)
    desk.come_in()
    desk.now += LEASE_S + 0.5
    assert desk.run.open(a=2) == "" and desk.run.grant("a", 0, 1) == ""
    desk.turn()
    assert desk.run.states(0, 1) == ["leased", "leased"]
    assert [one.code for one in desk.says(SiteDeparting)] == ["walltime"]


def test_a_drained_site_ends_its_block_delivers_and_goes_with_0() -> None:
    desk = training()
    desk.run.operator(DrainRequested(site="a", reason="maintenance"))
    desk.turn()
    assert desk.told[-1]["do"] == "train"
    desk.trained(1)
    desk.turn()
    assert desk.told[-1]["do"] == "publish"
    assert desk.hub.leaving is not None and desk.hub.leaving.exit_code == door.GOOD


@pytest.mark.parametrize(
    ("ticks", "code"), [(0, door.REFUSED), (5, door.TEMPORARY)], ids=["for good", "back-off"]
)
def test_r14_who_may_come_back_ends_with_75(ticks: int, code: int) -> None:
    desk = Desk(Scenario({"epochs": 9}))
    desk.come_in()
    fields = {"incarnation": desk.run.sites["a"], "site": "a", "code": "unfit", "reason": "bad"}
    assert desk.run.decide(SiteDeparted.model_validate({**fields, "backoff_ticks": ticks})) == ""
    assert [one.code for one in desk.turn() if isinstance(one, Leave)] == [code]
