"""One virtual run: its log, its processes, its faults, and whoever starts things again."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from eventlog.blobs import digest_file
from eventlog.chain import Record
from eventlog.codec import content_digest
from eventlog.errors import LogDamaged
from eventlog.events import OPERATOR, DataShape, Event, RunCreated, Token
from eventlog.writer import Stamp, Writer
from ops.simulate.faults import Fault
from ops.simulate.history import History
from ops.simulate.loop import VirtualLoop
from ops.simulate.network import Network, finish
from ops.simulate.process import CoordinatorMachine, Machine, SiteMachine
from ops.simulate.scenario import Scenario
from ops.simulate.store import DAMAGED
from ops.simulate.watcher import Watcher
from outer.recover import StateLost
from sitehub.rehearsal import arithmetic, save_initial

EPOCH_NS = 1_700_000_000_000_000_000  # where all wall clocks begin
RESTORE_S = 15.0  # until an operator has restored a blob that a coordinator says it misses
MANIFEST = hashlib.sha256(b"a simulated corpus").hexdigest()


class World:
    """`folder`: empty, for what machines keep. `say`: gets a line for every event."""

    def __init__(
        self,
        loop: VirtualLoop,
        scenario: Scenario,
        seed: int,
        folder: Path,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.loop, self.scenario, self.folder = loop, scenario, folder
        self.run = scenario.config.name
        self.chance = random.Random(f"{seed} world")
        self.skew_s = 0.0  # by which the wall clocks have jumped
        self.history = History(self.run, lambda: EPOCH_NS + int(self.wall() * 1e9))
        self.history.on_stored = self._stored
        self.network = Network(loop, self.history, random.Random(f"{seed} network"))
        self.network.latency_s = scenario.latency_s
        self.blobs: dict[str, bytes] = {}
        self.spoiled: dict[str, str] = {}  # blobs that a trainer has written badly, and how
        self.watcher = Watcher(
            self.run,
            scenario.num_numbers,
            scenario.num_blocks,
            scenario.check_every,
            self._speaks,
            self.spoiled,
            max(kind.snapshot_s for kind in scenario.sites),
        )
        self.lost: dict[str, bytes] = {}  # blobs that the store has lost: as its mirror has them
        self.loses_update: list[bool] = []  # of the next versions; True: it is only damaged
        self.poisoned: set[int] = set()  # numbers of blocks that make NaN of a delta
        self.over = False
        self.pending = 0  # restarts that are due
        self.sites: list[SiteMachine] = []
        self.coordinators: list[CoordinatorMachine] = []
        self.twins: list[SiteMachine] = []
        self.last_damage: LogDamaged | None = None
        self._leader: tuple[CoordinatorMachine, object] | None = None
        self._say, self._ids = say, random.Random(f"{seed} ids")

    # -- what processes are given -----------------------------------------------------------------

    def wall(self) -> float:
        """The wall clock of everybody: seconds since EPOCH_NS, for people only."""
        return max(0.0, self.loop.time() + self.skew_s)

    def new_id(self) -> str:
        """An event id."""
        return f"{self._ids.getrandbits(128):032x}"

    def injected(self, what: str) -> None:
        """Count a fault that was really done to somebody."""
        self.network.injected[what] += 1

    def violated(self, promise: str, what: str) -> None:
        """Something that must never be."""
        self.watcher.note(self.loop.time(), promise, what)

    # -- the beginning ----------------------------------------------------------------------------

    def found(self) -> None:
        """The run's first event, and everybody who takes part, each at its time."""
        self.operator(self._created())
        for number in range(self.scenario.coordinators):
            self.add_coordinator(number)
        for kind in self.scenario.sites:
            for number, name in enumerate(kind.names()):
                rate = rate_of(kind.steps_per_s, kind.spread, self.chance)
                site = SiteMachine(self, name, rate, kind.start_s)
                site.stays_s = kind.stays_s
                site.requeue_s = kind.requeue_s if kind.returns else None
                site.snapshot_s = kind.snapshot_s
                self.sites.append(site)
                for at_s in kind.joins_s:
                    self.loop.outside(at_s + number * kind.every_s, self._come, site)

    def _come(self, site: SiteMachine) -> None:
        site.left = False
        site.start()

    def add_coordinator(self, number: int) -> None:
        """One coordinator more."""
        machine = CoordinatorMachine(self, f"coordinator-{number + 1}", f"coordinator-{number + 1}")
        self.coordinators.append(machine)
        machine.start()

    def _created(self) -> RunCreated:
        scenario, config = self.scenario, self.scenario.config
        path = self.folder / "initial"
        digest = save_initial(scenario.num_numbers, path)
        blob = digest_file(path)
        self.blobs[blob.digest] = path.read_bytes()
        operations, whole = arithmetic()
        content = config.model_dump(mode="json", exclude_none=True)
        return RunCreated(
            config=content,
            config_digest=content_digest(content),
            data=DataShape(
                manifest_digest=MANIFEST,
                num_sequences=scenario.sequences,
                sequence_tokens=scenario.sequence_tokens,
                block_sequences=config.data.block_sequences,
            ),
            parameters_blob=blob.digest,
            parameters_digest=digest,
            num_parameters=scenario.num_numbers,
            arithmetic=operations,
            arithmetic_digest=whole,
        )

    def operator(self, event: Event) -> None:
        """The operator says something, at once."""
        pen = Writer(self.history, OPERATOR, clock=self.wall, make_id=self.new_id)
        if self.watcher.view.exists():
            pen.set(*self.watcher.view.pen(OPERATOR))
        finish(pen.append([event], Stamp()))

    # -- as it goes -------------------------------------------------------------------------------

    def _stored(self, records: list[Record]) -> None:
        if self.history.restored is None:  # what a log that went back gets is not judged
            term, version = self.watcher.referee.term, self.watcher.view.run().version
            self.watcher.see(records, self.loop.time(), self._say)
            if self.watcher.referee.term != term:
                self._elected(self.watcher.view.run().holder)
            newest = self.watcher.view.run().version
            if newest != version and self.loses_update:
                row = self.watcher.view.version(newest)
                assert row is not None
                self.lose("lost update", row.update_blob, self.loses_update.pop())

    def _elected(self, holder: str) -> None:
        """A new term: the one who led until now may live on, and not know it yet."""
        before, task = self._leader or (None, None)
        if before is not None and before.name != holder and before.alive and before.task is task:
            self.injected("two coordinators")
        now = next(one for one in self.coordinators if one.name == holder)
        self._leader = (now, now.task)

    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return self.watcher.finished

    def machines(self) -> Sequence[Machine]:
        """Every machine there is."""
        return [*self.sites, *self.coordinators, *self.twins]

    def after_exit(self, machine: Machine, code: int, restart_s: float) -> None:
        """A process has ended: start it again, as its batch script would, while there is a run."""
        if isinstance(machine, SiteMachine):
            if machine in self.twins or machine.left or self.finished():
                return
            if machine.stays_s is not None and code in (0, 75):
                if machine.requeue_s is None:
                    return
                restart_s = machine.requeue_s
        elif code == 0:
            return
        self.later(restart_s, machine.start)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something after a while, and know until then that it is to come."""
        self.pending += 1

        def act() -> None:
            self.pending -= 1
            action()

        self.loop.outside(delay_s, act)

    def _speaks(self, token: Token, since_s: float) -> bool:
        """Whether the hub of this incarnation has run on, undisturbed, since then, and is not just
        about to ask what became of an append."""
        hubs = [one for one in (*self.sites, *self.twins) if one.alive and one.incarnation == token]
        now = self.loop.time()
        return any(one.troubled_s < since_s and one.client.hindered_s < now for one in hubs)

    def found_damage(self, machine: Machine, error: LogDamaged) -> None:
        """R19: somebody stopped and named a sequence. Only right when the log did go back."""
        if self.history.generation == 0:
            self.violated("P3", f"{machine.name} found damage where there is none: {error}")

    def lose(self, kind: str, blob: str, damaged: bool) -> None:
        """The store loses a blob, or damages it."""
        if self.blobs.get(blob, DAMAGED) != DAMAGED:
            self.injected(f"{kind}, damaged" if damaged else kind)
            self.lost[blob] = self.blobs.pop(blob)
            if damaged:
                self.blobs[blob] = DAMAGED

    def stopped_without(self, machine: Machine, error: StateLost) -> None:
        """A coordinator says that a blob is lost without which it cannot go on. Only right when one
        is; the operator restores it from a mirror."""
        if error.blob not in self.lost:
            self.violated("P3", f"{machine.name} misses a blob that was never lost: {error}")
        self.injected("state lost, and said")
        self.later(RESTORE_S, lambda: self.blobs.update({error.blob: self.lost[error.blob]}))

    def quiet_at(self, faults: Sequence[Fault]) -> float:
        """When the last fault is over."""
        joins = [
            at_s + kind.every_s * kind.count
            for kind in self.scenario.sites
            for at_s in kind.joins_s
        ]
        return max([*joins, *(fault.at_s + fault.duration_s for fault in faults)], default=0.0)


def rate_of(steps_per_s: float, spread: float, chance: random.Random) -> float:
    """A site's own rate."""
    return steps_per_s * (1.0 + spread * chance.uniform(-1.0, 1.0))
