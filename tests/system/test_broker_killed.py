"""The broker is SIGKILLed in mid-run and comes back on the same directory: nothing is lost."""

from __future__ import annotations

from pathlib import Path

from eventlog.events import CoordinatorElected, SiteDeparted
from eventlog.export import read_export
from tests.support.fleet import Fleet
from tests.support.server import Served


async def test_every_acknowledged_event_is_there_afterwards_and_the_run_goes_on(
    own_broker: Served, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().version >= 2, "version 2")
    before = tmp_path / "before.atoll"
    assert (await fleet.atoll("log", "export", fleet.run, "-o", str(before))).code == 0
    await fleet.until(lambda log: "training" in log.states("beta"), "training")
    own_broker.kill()
    seen = [entry.record for entry in fleet.history.entries]  # read, so acknowledged
    own_broker.start()
    await fleet.until(lambda log: log.of(CoordinatorElected, after=len(seen)), "a new term")
    await fleet.until(lambda log: log.new_versions(len(seen)) >= 2, "new versions")
    await fleet.finish()

    after = tmp_path / "after.atoll"
    assert (await fleet.atoll("log", "export", fleet.run, "-o", str(after))).code == 0
    exported, kept = list(read_export(before)), list(read_export(after))
    assert exported == kept[: len(exported)]
    assert seen == kept[: len(seen)] and len(seen) >= len(exported)
    codes = [gone.code for _, gone in fleet.history.of(SiteDeparted)]
    assert codes == ["drained", "drained"], "an outage of the broker departs nobody (R8)"
    await fleet.audit()
