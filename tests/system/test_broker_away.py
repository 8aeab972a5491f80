"""The broker is away for minutes in mid-round: what sites hold then is delivered after it."""

from __future__ import annotations

import asyncio

import pytest

from eventlog.events import BlockCompleted, SiteAdmitted, SiteDeparted
from tests.support.fleet import Fleet
from tests.support.server import Served
from tests.support.watched import History


def merged_after(log: History, at: int) -> set[str]:
    """The sites whose deltas were published, and merged, after a position."""
    return {cut.site for _, cut in log.merged(at) if cut.delta[0] > at}


@pytest.mark.soak
@pytest.mark.parametrize("away_s", [60.0, 600.0])
@pytest.mark.settings("data.block_sequences=256", "inner.steps=384", "rounds.deadline_s=60")
async def test_events_and_deltas_of_an_outage_are_delivered_by_the_incarnation_that_made_them(
    own_broker: Served, fleet: Fleet, away_s: float
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 120)
    await fleet.until(
        lambda log: all("training" in log.states(site) for site in ("alpha", "beta")), "both", 120
    )
    log = fleet.history
    own_broker.kill()
    at = log.last
    held = {
        (one.epoch, one.block) for live in log.view.live() for one in log.view.held(live.token[0])
    }
    await asyncio.sleep(away_s)
    own_broker.start()
    await fleet.until(lambda log: merged_after(log, at) == {"alpha", "beta"}, "their deltas", 120)
    done = {(event.epoch, event.block) for _, event in log.of(BlockCompleted, after=at)}
    assert held & done, "what was in work when the broker went was completed and told"
    assert not log.of(SiteAdmitted, after=at) and not log.of(SiteDeparted, after=at)
    await fleet.finish()
    assert (await fleet.audit("--deep"))["ok"]
