"""A trainer that hangs under a living hub: its site departs, a new incarnation goes on (R10)."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from eventlog.events import SiteAdmitted, SiteDeparted, SiteDeparting
from tests.support.fleet import Fleet
from tests.support.history import History


async def test_r10_a_trainer_that_hangs_is_ended_and_its_blocks_go_to_others(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 1, "version 1", 60)
    await fleet.until(_in_mid_round, "beta in mid-round")
    log, at, trainer = fleet.history, fleet.history.last, fleet.trainer_pid("beta")
    os.kill(trainer, signal.SIGSTOP)
    try:
        await fleet.until(lambda _: log.of(SiteDeparted, after=at), "its departure")
        await fleet.until(lambda _: _has_ended(trainer), "the end that its hub makes of it")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(trainer, signal.SIGCONT)
    (good_bye,) = [one for _, one in log.of(SiteDeparting, "site.beta", after=at)]
    assert good_bye.code == "trainer" and "its trainer hangs: no step for" in good_bye.reason
    gone = [(one.site, one.code) for _, one in log.of(SiteDeparted, after=at)]
    assert gone == [("beta", "trainer")]
    await fleet.until(lambda _: log.of(SiteAdmitted, after=at), "a new incarnation")
    new, _ = log.of(SiteAdmitted, after=at)[0]
    await fleet.until(
        lambda _: any(cut.site == "beta" and cut.delta[0] > new for _, cut in log.merged(new)),
        "a delta of the new one",
    )
    await fleet.finish()
    found = await fleet.audit()
    assert found["blocks_reclaimed"] >= 1


def _in_mid_round(log: History) -> bool:
    states = log.states("beta")
    return "trained" in states and "training" in states


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
