"""A real coordinator tells a real HTTP server of a lost site and its return, and serves metrics;
the doctor sees where a real trainer stands."""

from __future__ import annotations

import json
import re
import tarfile

from tests.ops.test_alarm import scraped
from tests.support.fleet import Fleet
from tests.support.inbox import Inbox


async def test_a_lost_site_is_posted_resolved_when_it_is_back_and_shown_in_metrics(
    fleet: Fleet,
) -> None:
    inbox = Inbox()
    try:
        file = fleet.root / "coordinator.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'metrics = "0"\n[alerts]\nwebhook = "{inbox.url}"\n')
        fleet.start("coordinator", "coordinate", fleet.run, "--config", str(file))
        fleet.site("alpha")
        await fleet.until(lambda log: log.view.run().version >= 1, "version 1")

        def posted() -> list[tuple[str, str, str]]:
            return [(one["alert"], one["status"], one.get("site", "")) for one in inbox.posted]

        assert posted() == []
        (url,) = re.findall(r"metrics at (http://\S+)", fleet.log_of("coordinator").read_text())
        await fleet.until(lambda _: scraped(url).get("atoll_version", {}).get((), 0), "metrics")
        seen = scraped(url)
        assert seen["atoll_site_up"] == {("alpha",): 1} and seen["atoll_coordinator_leading"][()]
        assert seen["atoll_merged_tokens_total"][()] > 0 and seen["atoll_disk_free_bytes"]

        bundle = fleet.root / "bundle.tgz"
        told = await fleet.atoll("doctor", fleet.run, "--bundle", str(bundle))
        assert told.code == 0, told
        with tarfile.open(bundle) as archive:
            name = f"atoll-doctor/sites/{fleet.run}/alpha/stacks.txt"
            stacks = archive.extractfile(name)
            assert stacks is not None and b"trainer.py" in stacks.read()

        fleet.kill_site("alpha")
        await fleet.until(lambda _: ("lost_site", "firing", "alpha") in posted(), "the alert")
        await fleet.until(lambda _: scraped(url)["atoll_site_up"] == {("alpha",): 0}, "its metric")
        assert scraped(url)["atoll_departures_total"][("lost",)] == 1
        fleet.site("alpha")
        await fleet.until(lambda _: ("lost_site", "resolved", "alpha") in posted(), "its end")
        assert len(posted()) == 2, json.dumps(inbox.posted)
        await fleet.finish()
    finally:
        inbox.close()
