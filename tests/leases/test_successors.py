"""R11: the job that follows another waits at the door until that one departs."""

from __future__ import annotations

from eventlog.events import Heartbeat
from leases import policy
from tests.support.scenario import Scenario

K = 8  # ticks of a run of few sites with lease_s = 16 s
BEAT = Heartbeat(phase="training", step=1, tokens=32, tokens_per_s=8.0)


def at_the_door() -> Scenario:
    """`a` lives and speaks; its successor has joined."""
    run = Scenario()
    run.arrive("a")
    run.join("a", successor=True)
    assert run.says("a", BEAT) == ""
    return run


def test_r11_a_successor_is_neither_refused_nor_admitted_while_its_predecessor_lives() -> None:
    run = at_the_door()
    for _ in range(3 * K):
        run.tick()
        run.says("a", BEAT)
        assert policy.joins(run.view) == [] and policy.departures(run.view) == []


def test_r11_a_successor_is_admitted_once_its_predecessor_has_departed() -> None:
    run = at_the_door()
    first = run.sites["a"]
    assert run.depart("a", "walltime") == ""
    (answer,) = policy.joins(run.view)
    assert answer.type == "site.admitted"
    assert run.decide(answer) == ""
    assert run.view.live_at("a").token != first


def test_r11_a_successor_replaces_a_predecessor_that_fell_silent() -> None:
    run = at_the_door()
    run.tick(K)
    (event,) = policy.departures(run.view)
    assert (event.site, event.code) == ("a", "replaced")
