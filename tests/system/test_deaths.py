"""A site dies in every way: whole, its hub alone, its trainer alone; each time it comes back."""

from __future__ import annotations

import os
import signal

from eventlog.events import RunFinished, SiteAdmitted, SiteDeparted, SiteJoined
from tests.support.fleet import Fleet
from tests.support.watched import History


async def test_a_site_comes_back_from_the_death_of_all_of_it_or_of_either_half(
    fleet: Fleet,
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1")

    await fleet.until(_in_mid_round, "beta in mid-round")
    fleet.kill_site("beta")
    work = fleet.site_home("beta") / "work"
    left = ["delta-9", ".delta-9.4711.part", "0" * 64, "0" * 64 + ".part"]
    for one in left:
        (work / one).write_bytes(b"of no use to anybody")
    fleet.site("beta")
    await _is_back(fleet, "replaced")
    assert not {one.name for one in work.iterdir()} & set(left)
    assert (work / "residual").is_dir()

    await fleet.until(_in_mid_round, "beta in mid-round")
    trainer = fleet.trainer_pid("beta")
    fleet.kill("beta")
    await fleet.until(lambda _: not _runs(trainer), "the trainer to end without its hub")
    fleet.site("beta")
    await _is_back(fleet, "replaced")

    await fleet.until(_in_mid_round, "beta in mid-round")
    trainer = fleet.trainer_pid("beta")
    os.kill(trainer, signal.SIGKILL)
    await _is_back(fleet, "trainer")
    await fleet.until(lambda _: fleet.trainer_pid("beta") != trainer, "its new trainer's record")

    await fleet.finish()
    found = await fleet.audit()
    assert found["model_digest"] == fleet.history.of(RunFinished)[0][1].parameters_digest
    assert found["blocks_reclaimed"] >= 3  # a block in work at each death


async def test_a_site_that_hung_is_fenced_when_it_wakes_and_joins_anew(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1")
    await fleet.until(_in_mid_round, "beta in mid-round")
    thaw, log = fleet.freeze("beta"), fleet.history
    try:
        await fleet.until(lambda _: _departures(log, 0) == ["lost"], "beta's departure")
        gone = log.of(SiteDeparted)[0][0]
        await fleet.until(lambda _: log.new_versions(gone) >= 1, "a version without it")
        asleep = log.last
    finally:
        thaw()
    await fleet.until(
        lambda _: any(one.site == "beta" for _, one in log.of(SiteAdmitted, after=gone)),
        "a new one",
    )
    new = next(when for when, one in log.of(SiteAdmitted, after=gone) if one.site == "beta")
    for sequence, kind, _ in log.voids:  # what it said as who it was before has no effect
        assert log.source(sequence) == "site.beta" and asleep < sequence < new, kind
    said = [
        entry.event
        for entry in log.entries[asleep:new]
        if entry.record.subject == "site.beta" and not isinstance(entry.event, SiteJoined)
    ]
    assert len(said) == len(log.voids)
    await fleet.until(
        lambda _: any(cut.delta[0] > new and cut.site == "beta" for _, cut in log.merged(new)),
        "a delta of the new one",
    )
    await fleet.finish()
    await fleet.audit()


def _in_mid_round(log: History) -> bool:
    states = log.states("beta")
    return "trained" in states and "training" in states


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def _is_back(fleet: Fleet, code: str) -> None:
    """The old incarnation has departed for this reason; what the new one trains is merged."""
    log, at = fleet.history, fleet.history.last
    await fleet.until(lambda _: _departures(log, at) == [code], "beta's departure")
    await fleet.until(
        lambda _: any(one.site == "beta" for _, one in log.of(SiteAdmitted, after=at)), "a new one"
    )
    new = next(when for when, one in log.of(SiteAdmitted, after=at) if one.site == "beta")
    await fleet.until(
        lambda _: any(cut.site == "beta" and cut.delta[0] > new for _, cut in log.merged(new)),
        "a delta of the new one",
    )
    assert all(one.site == "beta" for _, one in log.of(SiteDeparted)), "alpha was never away"


def _departures(log: History, after: int) -> list[str]:
    return [gone.code for _, gone in log.of(SiteDeparted, after=after) if gone.site == "beta"]
