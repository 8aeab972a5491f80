"""R20, R10: a site whose link is slow comes in, or is told that it cannot, with real processes."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from eventlog.events import SiteAdmitted, SiteDeparted, SnapshotSaved, VersionApplied
from ops.rates import MIN_BYTES_PER_S
from tests.support.fleet import Fleet
from tests.support.tap import Published, Trap, tapped
from tests.support.watched import History


@pytest.mark.settings(
    "snapshots.every_versions=1",
    "snapshots.retention=recovery",
    "outer.update_codec=top-k",
)
async def test_a_snapshot_that_takes_many_intervals_to_come_is_fetched_once(fleet: Fleet) -> None:
    """At a rate that makes one fetch last as long as some ten versions take, however fast this
    machine is now; updates have few bits, so that it can catch up. What it then says it holds has
    the committed digest, or its event would be void. No chunk is asked for twice."""
    asked: Counter[str] = Counter()

    def note(message: Published) -> bool:
        if ".DIRECT.GET." in message.subject:
            asked[message.subject.rpartition(".DIRECT.GET.")[2]] += 1
        return False

    fleet.coordinate()
    fleet.site("alpha")
    rate = await _rate(fleet, intervals=10)
    async with tapped(fleet.url) as tap:
        tap.set(Trap(note, "seen"))
        fleet.routes["beta"] = tap.url
        fleet.site("beta", "--max-rate", f"{rate}B")
        await fleet.until(lambda log: _admitted(log, "beta"), "beta's admission")
        admitted = _admitted(fleet.history, "beta")[0]
        await fleet.until(lambda log: log.of(VersionApplied, "site.beta"), "its version", 120)
        (first, applied), *_ = fleet.history.of(VersionApplied, "site.beta")
        meanwhile = [at for at, _ in fleet.history.of(SnapshotSaved) if admitted < at < first]
        assert len(meanwhile) > 3, f"{len(meanwhile)} snapshots while it fetched one"
        assert fleet.history.view.live_at("beta").version >= applied.version
        assert not fleet.history.of(SiteDeparted)
        assert asked and set(asked.values()) == {1}
        await fleet.finish()
    await fleet.audit()


async def _rate(fleet: Fleet, intervals: int) -> int:
    """Bytes a second at which a snapshot takes as long to come as so many take to follow it."""
    await fleet.until(lambda log: len(log.of(SnapshotSaved)) >= 3, "snapshots", 60)
    began, before = time.monotonic(), len(fleet.history.of(SnapshotSaved))
    await fleet.until(lambda log: len(log.of(SnapshotSaved)) >= before + 8, "more snapshots", 60)
    each_s = (time.monotonic() - began) / (len(fleet.history.of(SnapshotSaved)) - before)
    (_, snapshot), *_ = fleet.history.of(SnapshotSaved)
    return max(int(snapshot.num_bytes / (intervals * each_s)), int(MIN_BYTES_PER_S))


def _admitted(log: History, site: str) -> list[int]:
    return [at for at, one in log.of(SiteAdmitted) if one.site == site]


@pytest.mark.settings("limits.transfer_s=4")
async def test_a_cap_that_leaves_no_time_to_come_in_is_told_at_once(fleet: Fleet) -> None:
    fleet.site("beta", "--max-rate", "10kB")
    log = fleet.log_of("beta")
    await fleet.until(lambda _: log.exists() and "--max-rate" in log.read_text(), "the line")
    (line,) = [one for one in log.read_text().splitlines() if "--max-rate" in one]
    for part in ("beta: ", "10kB is too little", "after 4 s (limits.transfer_s)", "or more"):
        assert part in line
    fleet.kill_site("beta")
