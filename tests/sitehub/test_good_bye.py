"""A hub that has said good-bye ends, whether or not a coordinator lives to answer (P7)."""

from __future__ import annotations

import pytest

from eventlog.events import DrainRequested, Event, RunStopped, SiteDeparting, SiteJoined
from sitehub.actions import Leave
from sitehub.logic import HubLogic
from sitehub.state import HubState, Leaving
from tests.support.desk import LEASE_S, Desk, training
from tests.support.scenario import Scenario


def test_a_job_that_ends_waits_one_lease_for_the_answer_and_then_goes() -> None:
    run = Scenario()
    run.arrive("a")
    assert run.says("a", SiteDeparting(code="walltime", reason="its job ends")) == ""
    hub = HubState("a", run.view, incarnation=run.sites["a"])
    hub.leaving, hub.departing, hub.last_append = Leaving("walltime", "its job ends", 75), True, 100
    logic, lease_s = HubLogic(hub), run.view.timing().lease_s
    assert logic.actions(100 + lease_s - 0.1) == []
    (action,) = logic.actions(100 + lease_s)
    assert isinstance(action, Leave)
    assert (action.code, "no coordinator" in action.reason) == (75, True)


@pytest.mark.parametrize("walltime_end", [None, 1e6])
@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (DrainRequested(site="a", reason="maintenance"), "the operator asked it to leave"),
        (RunStopped(reason="enough"), "the run stops: enough"),
    ],
)
def test_a_job_with_hours_left_is_drained_and_stopped_like_one_without_an_end(
    walltime_end: float | None, request_: Event, why: str
) -> None:
    desk = training(walltime_end=walltime_end)
    assert desk.run.operator(request_) == ""
    desk.turn()
    for number in (1, 2):  # what was started by then
        if desk.told[-1]["do"] == "train":
            desk.trained(number)
            desk.turn()
    assert desk.hub.leaving == Leaving("drained", why, 0)
    assert desk.told[-1]["do"] == "publish"


@pytest.mark.parametrize("joins", [True, False], ids=["unanswered", "trainer not ready"])
def test_p7_who_is_not_admitted_before_its_job_ends_goes_by_itself(joins: bool) -> None:
    desk = Desk(Scenario(elect=False), walltime_end=100.0 + 3 * LEASE_S)
    desk.turn()
    if joins:
        desk.ready()
    desk.turn(2 * LEASE_S - 0.1)
    assert len(desk.says(SiteJoined)) == joins
    assert not [action for action in desk.done if isinstance(action, Leave)]
    (leave,) = [action for action in desk.turn(0.2) if isinstance(action, Leave)]
    assert (leave.code, leave.reason) == (75, "its job ends in 16 s, before it was admitted")
    assert not desk.says(SiteDeparting)
