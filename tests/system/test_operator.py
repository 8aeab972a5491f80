"""What an operator asks for: pause, resume, drain; and jobs that end or follow each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eventlog.events import (
    BlockCompleted,
    DeltaPublished,
    EvaluationCompleted,
    LeaseGranted,
    RoundOpened,
    RunPaused,
    RunResumed,
    SiteAdmitted,
    SiteDeparted,
    VersionApplied,
)
from tests.support.fleet import Fleet
from tests.support.history import History


async def test_a_paused_run_finishes_what_is_started_and_goes_on_when_resumed(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 60)
    await fleet.until(lambda log: _in_mid_round(log, "beta"), "beta in mid-round")
    paused = await fleet.atoll("run", "pause", fleet.run, "--reason", "maintenance")
    assert paused.code == 0, paused
    log = fleet.history
    await fleet.until(lambda log: log.view.run().state == "paused" and _rests(log), "its rest")
    (at, event) = log.of(RunPaused)[0]
    assert event.reason == "maintenance"
    grants = [when for when, _ in log.of(LeaseGranted, after=at)]
    assert all(when in {sequence for sequence, _, _ in log.voids} for when in grants)
    assert all(one.base_version == log.view.run().version for one in log.view.deltas("undecided"))
    again = await fleet.atoll("run", "pause", fleet.run)
    assert again.code != 0 and "the run is paused, not running" in again.err
    resumed = await fleet.atoll("run", "resume", fleet.run)
    assert resumed.code == 0, resumed
    await fleet.until(lambda log: log.of(RunResumed), "its resumption")
    back = log.of(RunResumed)[0][0]
    await fleet.until(lambda log: log.new_versions(back) >= 1, "a version after it")
    assert not log.of(SiteDeparted), "pausing cost a site"
    opened = [when for when, _ in log.of(RoundOpened, after=at)]
    assert all(when > back or when in {s for s, _, _ in log.voids} for when in opened)
    await fleet.finish()
    await fleet.audit()


async def test_a_drained_site_leaves_well_and_the_others_go_on(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 60)
    await fleet.until(lambda log: _in_mid_round(log, "beta"), "beta in mid-round")
    asked = await fleet.atoll("site", "drain", fleet.run, "beta")
    assert asked.code == 0, asked
    assert await fleet.ended("beta") == 0
    await fleet.until(lambda log: log.of(SiteDeparted), "its departure")
    log = fleet.history
    assert [(one.site, one.code) for _, one in log.of(SiteDeparted)] == [("beta", "drained")]
    assert _delivered_all(log, "beta")
    nobody = await fleet.atoll("site", "drain", fleet.run, "beta")
    assert nobody.code != 0 and "no live site beta" in nobody.err
    at = log.last
    await fleet.until(lambda log: log.new_versions(at) >= 1, "a version without it")
    await fleet.finish()
    await fleet.audit()


@pytest.mark.settings("lease_s=4")
async def test_p7_a_job_delivers_and_departs_before_its_walltime_ends_and_its_successor_follows(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.coordinate()
    fleet.site("beta", "--walltime", "25s")
    await fleet.until(lambda log: log.of(SiteAdmitted), "its admission", 60)
    first = fleet.history.view.live_at("beta").token
    other = fleet.elsewhere(tmp_path / "other")
    try:
        other.site("beta", "--successor")
        await fleet.until(lambda log: log.view.waiting_joins(), "the successor at the door")
        assert fleet.history.view.live_at("beta").token == first, "it has fenced its predecessor"
        assert await fleet.ended("beta", 40) == 75
        log = fleet.history
        await fleet.until(lambda log: len(log.of(SiteAdmitted)) == 2, "its admission")
        (gone, event) = log.of(SiteDeparted)[0]
        assert (event.site, event.code) == ("beta", "walltime")
        assert _delivered_all(log, "beta", before=gone)
        await fleet.until(lambda log: log.of(VersionApplied, after=gone), "its version")
        new, _ = log.of(SiteAdmitted)[1]
        await fleet.until(
            lambda _: any(cut.delta[0] > new for _, cut in log.merged(new)), "its delta"
        )
        await fleet.finish()
        assert await other.ended("beta") == 0
    finally:
        other.close()
    await fleet.audit()


async def test_two_evaluations_at_once_agree_and_leave_nothing_behind(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    await fleet.until(lambda log: log.view.run().version >= 2, "version 2", 60)
    await fleet.finish()
    command = ("eval", fleet.run, "--data", str(fleet.data), "--json")
    one, two = await asyncio.gather(fleet.atoll(*command), fleet.atoll(*command))
    assert one.json() == two.json()
    assert list((fleet.home / "scratch" / fleet.run).iterdir()) == []
    await fleet.until(lambda log: len(log.of(EvaluationCompleted)) == 2, "both in the log")


def _in_mid_round(log: History, site: str) -> bool:
    states = log.states(site)
    return "trained" in states and "training" in states and states.count("leased") > 1


def _rests(log: History) -> bool:
    """Nothing is in training or on its way: unstarted blocks may still be held, and what a site
    delivered behind the last cut waits for the next round."""
    held = log.states("alpha") + log.states("beta")
    in_round = log.view.round() is not None
    moving = log.view.deltas("cut") or (log.view.deltas("undecided") and in_round)
    return not moving and set(held) <= {"leased"}


def _delivered_all(log: History, site: str, before: int = 2**60) -> bool:
    """Every block that the site completed stands in a delta of it."""
    source = f"site.{site}"
    deltas = [one for when, one in log.of(DeltaPublished, source) if when < before]
    delivered = {(b.epoch, b.block, b.lease) for one in deltas for b in one.blocks}
    done = [one for when, one in log.of(BlockCompleted, source) if when < before]
    return {(b.epoch, b.block, b.lease) for b in done} == delivered
