"""Who is told to go ends its block, delivers what is trained, departs, and says how it ended."""

from __future__ import annotations

import signal

from eventlog.events import (
    BlockCompleted,
    BlockStarted,
    DeltaPublished,
    RoundCommitted,
    RunFinished,
    SiteDeparted,
)
from tests.support.fleet import Fleet
from tests.support.history import History


async def test_signals_and_a_stop_lose_nothing_that_was_started(fleet: Fleet) -> None:
    names = ("alpha", "beta", "gamma")
    fleet.coordinate()
    for name in names:
        fleet.site(name)
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 60)
    await fleet.until(lambda log: _in_mid_round(log, "beta"), "beta in mid-round")
    fleet.signal("beta", signal.SIGTERM)
    assert await fleet.ended("beta") == 75
    _leaves_nothing(fleet.history, "beta", "walltime")

    await fleet.until(lambda log: _in_mid_round(log, "gamma"), "gamma in mid-round")
    fleet.signal("gamma", signal.SIGINT)
    assert await fleet.ended("gamma") == 130
    _leaves_nothing(fleet.history, "gamma", "drained")

    await fleet.until(lambda log: _in_mid_round(log, "alpha"), "alpha in mid-round")
    await fleet.finish()  # alpha and the coordinator with 0
    _leaves_nothing(fleet.history, "alpha", "drained")
    log = fleet.history
    _, end = log.of(RunFinished)[0]
    assert end.outcome == "stopped" and end.num_returned == 0 and end.undecided == ()
    assert end.tokens == sum(one.tokens for _, one in log.of(RoundCommitted))
    last = {log.source(at): at for at, _ in log.of(DeltaPublished)}
    merged = {cut.delta[0] for _, cut in log.merged()}
    assert set(last.values()) <= merged, "a partial delta was lost"
    shown = (await fleet.atoll("run", "show", fleet.run, "--json")).json()
    assert shown["state"] == "finished" and "stop" in shown["reason"]
    await fleet.audit()


def _in_mid_round(log: History, site: str) -> bool:
    """Something is trained, something in training, and more than what is claimed ahead is left."""
    states = log.states(site)
    return "trained" in states and "training" in states and states.count("leased") > 1


def _leaves_nothing(log: History, site: str, code: str) -> None:
    """Its last delta holds every block it trained since the one before; nothing it started is
    left, and of its quota something is: the delta is partial."""
    source = f"site.{site}"
    deltas = [one for _, one in log.of(DeltaPublished, source)]
    delivered = {(b.epoch, b.block, b.lease) for one in deltas for b in one.blocks}
    trained = {(b.epoch, b.block, b.lease) for _, b in log.of(BlockCompleted, source)}
    assert delivered == trained
    assert deltas[-1].last
    assert 1 <= len(deltas[-1].blocks) < 8
    started = len(log.of(BlockStarted, source))
    assert started - len(trained) <= 1, "it may have claimed one ahead"
    gone = [one.code for _, one in log.of(SiteDeparted) if one.site == site]
    assert gone == [code]
