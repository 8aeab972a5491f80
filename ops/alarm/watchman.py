"""Beside a coordinator: reads its fold every few seconds, serves metrics, sends alerts.

It runs in the coordinator's own event loop, between its turns, so the fold it reads is whole. It
writes nothing to the log; where it fails, the run does not.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from eventlog.projector import Projection
from leases.view import View
from ops.alarm.due import Alert, Firings, due
from ops.alarm.reading import Disk, Reading, Surroundings, read
from ops.alarm.send import send
from ops.alarm.settings import Settings, place
from ops.watch.link import LinkWatch

if TYPE_CHECKING:
    from ops.alarm.metrics import Endpoint

EVERY_S = 2.0
MAX_SENDING = 100  # alerts on their way; more than that are not told


@dataclass(slots=True)
class Watchman:
    """`leads`: whether this process coordinates now; `breaks`: of its link; `folder`: where it
    works."""

    settings: Settings
    projection: Projection
    link: LinkWatch
    leads: Callable[[], bool]
    breaks: Callable[[], int]
    folder: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    every_s: float = EVERY_S
    _firing: Firings = field(default_factory=dict)
    _seen: tuple[str, int] = ("", -1)  # state and version
    _since: float = 0.0
    _sending: set[asyncio.Task[bool]] = field(default_factory=set)
    _failed: int = 0
    _endpoint: Endpoint | None = None

    def open(self) -> None:
        """Serve metrics from here on, where that is wanted. Raises EndpointFailed, and
        ModuleNotFoundError without the extra `metrics`."""
        if self.settings.metrics:
            from ops.alarm.metrics import serve

            self._endpoint = serve(*place(self.settings.metrics))
            self.say(f"metrics at {self._endpoint.url}")

    async def run(self) -> None:
        """Look, serve and tell, until cancelled."""
        while True:
            reading = self._read()
            if reading is not None:
                self._tell(reading)
                if self._endpoint is not None:
                    readings = self._endpoint.readings
                    readings.newest, readings.failed_alerts = reading, self._failed
            await asyncio.sleep(self.every_s)

    async def close(self) -> None:
        """Serve no more, and give up what could not be told yet."""
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def last_words(self) -> None:
        """Tell what is over now that the run has ended, and wait for what is on its way."""
        reading = self._read()
        if reading is not None:
            self._tell(reading)
        if self._sending:
            await asyncio.wait(self._sending, timeout=10.0)

    def _read(self) -> Reading | None:
        now, view = self.clock(), View(self.projection.db)
        if news := self.link.look():
            self.say(news)
        run = view.run()
        if (run.state, run.version) != self._seen:
            self._seen, self._since = (run.state, run.version), now
        around = Surroundings(
            version_age_s=now - self._since if run.state == "running" else 0.0,
            broker_away_s=self.link.away_s,
            broker_breaks=self.breaks(),
            leads=self.leads(),
            disk=self._disk(),
        )
        return read(view, self.projection.position.sequence, around)

    def _disk(self) -> Disk | None:
        try:
            usage = shutil.disk_usage(self.folder)
        except OSError:
            return None
        return Disk(str(self.folder), usage.free, usage.total)

    def _tell(self, reading: Reading) -> None:
        alerts = self.settings.alerts
        if not alerts.told:
            return
        told, self._firing = due(reading, alerts, self._firing, self.clock())
        for alert in told:
            self.say(f"alert {alert.cause.name} ({alert.status}): {alert.cause.what}")
            if len(self._sending) >= MAX_SENDING:
                self._failed += 1
                continue
            task = asyncio.create_task(self._send(alert))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, alert: Alert) -> bool:
        reached = await send(alert, self.settings.alerts, self.say)
        self._failed += not reached
        return reached
