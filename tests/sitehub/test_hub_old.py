"""R17 at the hub: what it cannot read it does not act beside."""

from __future__ import annotations

from eventlog.events import COORDINATOR, CoordinatorTick
from sitehub.actions import Append, Leave, Tell
from tests.support.desk import Desk
from tests.support.scenario import Scenario


def test_r17_a_hub_that_is_older_than_the_coordinator_leaves_and_writes_nothing() -> None:
    desk = Desk(Scenario({"epochs": 9}))
    desk.come_in()
    assert desk.run.open(a=2) == ""
    assert desk.run.grant("a", 0, 1) == ""
    desk.turn()
    assert desk.run.forged(COORDINATOR, CoordinatorTick(tick=1), type="lease.extended") != ""
    found = desk.logic.actions(desk.now + 100)
    (leave,) = found
    assert isinstance(leave, Leave) and leave.code == 6
    assert "too old" in leave.reason and "upgrade atoll" in leave.reason
    assert not [one for one in found if isinstance(one, Append | Tell)]
