"""Who is told to go ends its block, delivers what is trained, departs, and says how it ended."""

from __future__ import annotations

import signal
import time

import pytest

from eventlog.events import (
    BlockCompleted,
    BlockStarted,
    DeltaPublished,
    LeaseGranted,
    RoundCommitted,
    RunFinished,
    SiteDeparted,
)
from sitehub.delivery import CLAIMS_AHEAD
from tests.support.fleet import Fleet
from tests.support.watched import History

WALLTIME_S = 15.0  # of a job; it must be gone before


@pytest.mark.settings("inner.steps=160")  # so that the slowest too gets some blocks a round
async def test_signals_and_a_stop_lose_nothing_that_was_started(fleet: Fleet) -> None:
    names = ("alpha", "beta", "gamma")
    fleet.coordinate()
    for name in names:
        fleet.site(name)
    began = time.monotonic()
    fleet.site("omega", "--walltime", f"{WALLTIME_S}s")
    fleet.leaving.add("omega")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 60)
    await fleet.until(lambda log: _in_mid_round(log, "beta"), "beta in mid-round")
    fleet.signal("beta", signal.SIGTERM)
    assert await fleet.ended("beta") == 75
    _leaves_nothing(fleet.history, "beta", "walltime")
    _was_partial(fleet.history, "beta")

    await fleet.until(lambda log: _in_mid_round(log, "gamma"), "gamma in mid-round")
    fleet.signal("gamma", signal.SIGINT)
    assert await fleet.ended("gamma") == 130
    _leaves_nothing(fleet.history, "gamma", "drained")
    _was_partial(fleet.history, "gamma")

    assert await fleet.ended("omega", WALLTIME_S) == 75
    assert time.monotonic() - began < WALLTIME_S, "its job would have been killed"
    _leaves_nothing(fleet.history, "omega", "walltime")
    assert fleet.history.of(BlockCompleted, "site.omega")

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
    """Its deltas hold every block that it trained, and it has departed for this reason."""
    source = f"site.{site}"
    deltas = [one for _, one in log.of(DeltaPublished, source)]
    delivered = {(one.epoch, one.block, one.lease) for delta in deltas for one in delta.blocks}
    trained = {(one.epoch, one.block, one.lease) for _, one in log.of(BlockCompleted, source)}
    assert delivered == trained
    voids = {sequence for sequence, _, _ in log.voids}  # starts that a steal overtook
    started = sum(when not in voids for when, _ in log.of(BlockStarted, source))
    # the one in work, where it was told to go before the trainer had begun it, and those ahead
    assert started - len(trained) <= 1 + CLAIMS_AHEAD
    gone = [one.code for _, one in log.of(SiteDeparted) if one.site == site]
    assert gone == [code]


def _was_partial(log: History, site: str) -> None:
    """Its last delta says that it is the last; of what the site was granted, something is left."""
    _, delta = log.of(DeltaPublished, f"site.{site}")[-1]
    assert delta.last
    grants = [one for _, one in log.of(LeaseGranted) if one.site == site]
    granted = sum(len(one.blocks) for one in grants)
    assert len(log.of(BlockCompleted, f"site.{site}")) < granted, "it went on to its quota"
