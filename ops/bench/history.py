"""A long log that a simulated run has written: one run, told again and again, epoch after epoch.

The simulator makes some hundred events a second, so a million of them would take an hour. It runs
once, with real coordinator and hubs, until every block of its epochs is merged. `retold` then lets
the same history happen again in the next epochs of the same run: every event once more under its
own new id, sequence, counter and time, with epoch, round and version moved on and every token
(sequence, id) pointing at the event of its own telling; digests of the log are computed anew.
Between two tellings each site departs, and a new term begins. Nothing of it is void that was not
void when it was simulated, and the audit finds nothing (both are checked where a log is measured).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eventlog.chain import Record, extend, start
from eventlog.codec import Envelope, content_digest, encode, pack, unpack
from eventlog.events import COORDINATOR, SiteDeparted, SiteDeparting, Token
from eventlog.projector import Projection
from leases.table import LeaseTable
from leases.view import View
from ops.simulate import run, scenario
from ops.simulate.harm import befall
from ops.simulate.loop import VirtualLoop
from ops.simulate.scenario import Scenario
from ops.simulate.world import World

SEED = 1
GAP_NS = 1_000_000_000


def paper(num_blocks: int) -> Scenario:
    """The sites, rates, H and timing of `paper-24h`, over one epoch of so many blocks, with one
    crash on the way. Where quotas do not come out even at its end, sites idle that in a longer run
    would be given blocks of the next epoch: an audit of the run told again then says so."""
    whole = scenario.load("paper-24h").model_dump()
    whole["sequences"] = num_blocks * whole["run"]["data"]["block_sequences"]
    whole["run"] |= {"target": {"epochs": 1}}
    whole["check_every"] = 1_000_000
    crash = {"kind": "crash", "who": "mi250x-2", "at_s": 300.0, "duration_s": 120.0}
    return Scenario.model_validate({**whole, "told": [crash]})


def simulated(told: Scenario) -> list[Record]:
    """The log of one seed of a scenario, through the end of its run."""
    with TemporaryDirectory(prefix="atoll-bench-") as folder:
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            world = World(loop, told, SEED, Path(folder))
            loop.run_until_complete(_live(world))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
    if world.watcher.broken:
        raise AssertionError(f"the simulated run is broken: {world.watcher.broken[0]}")
    return world.history.all()


async def _live(world: World) -> None:
    world.found()
    for fault in run.plan_of(world.scenario, SEED):
        world.loop.outside(fault.at_s, befall, world, fault)
    while not world.finished() and not world.watcher.broken:
        await asyncio.sleep(1.0)
    world.over = True
    tasks = [machine.task for machine in world.machines() if machine.task is not None]
    for machine in world.machines():
        machine.kill(None)
    await asyncio.gather(*tasks, return_exceptions=True)


def retold(base: list[Record], num_events: int) -> Iterator[Record]:
    """So many records, from the founding of the run on: `base`, told as often as needed."""
    telling = _Telling(base, num_events)
    for number in range(num_events // len(telling.events) + 1):
        for record in telling.again(number):
            yield record
            if record.sequence == num_events:
                return


class _Telling:
    """A run that is told again: what its history adds to epoch, round, version and counters."""

    def __init__(self, base: list[Record], num_events: int) -> None:
        wires = [unpack(record.payload) for record in base]
        end = next(n for n, wire in enumerate(wires) if wire["type"] == "run.finished")
        self.run = wires[0]["run"]
        self.founding = base[0]
        self.events = list(zip(base[1:end], wires[1:end], strict=True))
        self.ids = {wire["id"] for wire in wires}
        view = _folded(base[:end], self.run)
        self.live: list[tuple[Token, str]] = [(one.token, one.site) for one in view.live()]
        self.num_epochs, self.num_rounds = len(view.epochs()), view.run().round
        self.num_versions = view.run().version
        self.counted = Counter(record.subject for record, _ in self.events)
        self.counted[COORDINATOR] += len(self.live)
        self.counted.update(f"site.{site}" for _, site in self.live)  # each says that it leaves
        self.span_ns = base[end].time_ns - base[0].time_ns + GAP_NS
        self.num_tellings = num_events // len(self.events) + 1
        last = view.version(self.num_versions)
        assert last is not None and view.round() is None and view.run().outstanding_blocks == 0
        self.initial, self.last = view.run().initial_digest, last.parameters_digest
        self.digests = [start(self.run)]  # D(i) of the log so far
        self.decision: str | None = None  # the last one's id
        self.term = 0

    def again(self, number: int) -> Iterator[Record]:
        """The `number`-th telling, from 0; the first one begins with the run's founding."""
        if number == 0:
            yield self._put(self.founding, self._founded())
        shift = len(self.digests) - 1 - 1  # the first event stands at 2 in the base
        for record, wire in self.events:
            yield self._put(record, self._moved(record, wire, number, shift), number)
        yield from self._over(number, shift)

    def _over(self, number: int, shift: int) -> Iterator[Record]:
        """The end of a telling: who is live says that it leaves, and departs."""
        last, reason = self.events[-1][0], "this telling of its history is over"
        left = len(self.live)
        for place, (token, site) in enumerate(self.live):
            subject = f"site.{site}"
            n = self.counted[subject] * (number + 1)
            name, moved = (
                _renamed(f"{left + place:032x}", number),
                self._token(token, number, shift),
            )
            leaving = SiteDeparting(code="drained", reason=reason)
            envelope = Envelope(name, leaving.type, 1, self.run, subject, n, 0.0, incarnation=moved)
            yield self._put(
                Record(0, subject, last.time_ns, b""), encode(leaving, envelope), number
            )
        for place, (token, site) in enumerate(self.live):
            gone = SiteDeparted(
                incarnation=self._token(token, number, shift),
                site=site,
                code="drained",
                reason=reason,
            )
            n = self.counted[COORDINATOR] * (number + 1) - left + place + 1
            name = _renamed(f"{place:032x}", number)
            envelope = Envelope(
                name, gone.type, 1, self.run, COORDINATOR, n, 0.0, self.term, self.decision
            )
            self.decision = name
            yield self._put(
                Record(0, COORDINATOR, last.time_ns, b""), encode(gone, envelope), number
            )

    def _put(self, record: Record, payload: bytes, number: int = 0) -> Record:
        """A record at the end of the log."""
        time_ns = record.time_ns + number * self.span_ns
        moved = Record(len(self.digests), record.subject, time_ns, payload)
        self.digests.append(extend(self.digests[-1], moved))
        return moved

    def _founded(self) -> bytes:
        """RunCreated, of a run whose target is all the epochs of all tellings."""
        wire = unpack(self.founding.payload)
        config = wire["data"]["config"]
        config["target"] = {"epochs": self.num_epochs * self.num_tellings}
        wire["data"]["config_digest"] = content_digest(config)
        return pack(wire)

    def _moved(self, record: Record, wire: dict[str, Any], number: int, shift: int) -> bytes:
        wire = self._walk(wire, number, shift)
        kind, data = wire["type"], wire["data"]
        wire["id"] = _renamed(wire["id"], number)
        wire["n"] += number * self.counted[record.subject]
        wire["at"] += number * self.span_ns / 1e9
        if record.subject == COORDINATOR:
            self.term = len(self.digests) if kind == "coordinator.elected" else self.term
            wire["term"] = None if kind == "coordinator.elected" else wire["term"] + shift
            wire["previous"], self.decision = self.decision, wire["id"]
            wire = {key: value for key, value in wire.items() if value is not None}
        if kind == "round.committed":
            data["through"] += shift
            data["log_digest"] = self.digests[data["through"]].hex()
        if number and kind == "version.applied" and data["parameters_digest"] == self.initial:
            data["parameters_digest"] = self.last
        return pack(wire)

    def _walk(self, value: Any, number: int, shift: int) -> Any:
        """Plain data with every token, epoch, round and version moved on; a copy."""
        match value:
            case [int(), str(name)] if name in self.ids:
                return self._token(value, number, shift)
            case list():
                return [self._walk(item, number, shift) for item in value]
            case dict():
                moved = {key: self._walk(item, number, shift) for key, item in value.items()}
                for key, step in _STEPS.items():
                    if isinstance(moved.get(key), int):
                        moved[key] += number * getattr(self, step)
                return moved
        return value

    def _token(self, token: Sequence[Any], number: int, shift: int) -> Token:
        return (token[0] + shift, _renamed(token[1], number))


_STEPS = {
    "epoch": "num_epochs",
    "round": "num_rounds",
    "version": "num_versions",
    "base_version": "num_versions",
}


def _renamed(name: str, number: int) -> str:
    """An event's id in a telling: unlike in any other."""
    return f"{number:06x}{name[6:]}" if number else name


def _folded(records: list[Record], name: str) -> View:
    projection = Projection(":memory:", [LeaseTable()], name)
    projection.replay(records)
    return View(projection.db)


def num_void(records: list[Record]) -> int:
    """Events of a log without effect."""
    with Projection(":memory:", [LeaseTable()], run_of(records)) as projection:
        return sum(bool(said[0]) for _, said in projection.apply(records))


def run_of(records: Sequence[Record]) -> str:
    """The run that a log is of."""
    return str(unpack(records[0].payload)["run"])
