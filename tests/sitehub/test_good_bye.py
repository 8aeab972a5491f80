"""A hub that has said good-bye ends, whether or not a coordinator lives to answer (P7)."""

from __future__ import annotations

from eventlog.events import SiteDeparting
from sitehub.actions import Leave
from sitehub.logic import HubLogic
from sitehub.state import HubState, Leaving
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
