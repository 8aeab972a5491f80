"""A real coordinator tells a real HTTP server of a lost site and its return; it serves metrics."""

from __future__ import annotations

import json
import re

from tests.ops.test_alarm import Inbox, scraped
from tests.support.fleet import Fleet


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

        def told() -> list[tuple[str, str, str]]:
            return [(one["alert"], one["status"], one.get("site", "")) for one in inbox.posted]

        assert told() == []
        (url,) = re.findall(r"metrics at (http://\S+)", fleet.log_of("coordinator").read_text())
        await fleet.until(lambda _: scraped(url).get("atoll_version", {}).get((), 0), "metrics")
        seen = scraped(url)
        assert seen["atoll_site_up"] == {("alpha",): 1} and seen["atoll_coordinator_leading"][()]
        assert seen["atoll_merged_tokens_total"][()] > 0 and seen["atoll_disk_free_bytes"]

        fleet.kill_site("alpha")
        await fleet.until(lambda _: ("lost_site", "firing", "alpha") in told(), "the alert")
        await fleet.until(lambda _: scraped(url)["atoll_site_up"] == {("alpha",): 0}, "its metric")
        assert scraped(url)["atoll_departures_total"] == {("lost",): 1}
        fleet.site("alpha")
        await fleet.until(lambda _: ("lost_site", "resolved", "alpha") in told(), "its end")
        assert len(told()) == 2, json.dumps(inbox.posted)
        await fleet.finish()
    finally:
        inbox.close()
