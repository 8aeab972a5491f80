"""The processes of a virtual run: a site's hub with its trainer, and a coordinator.

Both are the real ones. A kill cuts their input and output first, so that nothing they do on the way
out can be seen, and a supervisor starts them again as a batch queue would.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from eventlog.errors import AtollError, LogDamaged
from eventlog.events import Token
from eventlog.projector import Projection
from eventlog.writer import Writer
from leases.states import TRAINING
from leases.table import LeaseTable
from ops.simulate.anchored import allowed, unpublished
from ops.simulate.holdings import LEASED
from ops.simulate.loop import Process
from ops.simulate.network import TIMEOUT_S, Client
from ops.simulate.store import SimBlobs
from ops.simulate.trainers import SimHandover
from ops.simulate.workbench import Bench
from outer.coordinator import Coordinator
from outer.recover import StateLost, VersionDiffers
from outer.workshop import Workshop
from sitehub.hub import Hub
from sitehub.state import HubState

if TYPE_CHECKING:
    from ops.simulate.world import World

KILLED = -9
RETRY_S = 3.0  # after an exit that asks to be tried again


class Machine:
    """Something that runs as one process on one machine, whose `folder` outlives it."""

    def __init__(self, world: World, name: str, folder: str) -> None:
        self.world, self.name = world, name
        self.folder = world.folder / folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.client = Client(world.network, name)
        self.process = Process(name)
        self.task: asyncio.Task[int | None] | None = None
        self.restart_s: float | None = RETRY_S
        self.snapshot_s = 0.0  # that a snapshot takes to come here
        self.damaged: int | None = None  # the sequence it named when it stopped (R19)
        self.before_s = 0.0  # `troubled_s` before the newest fault
        self.troubled_s = 0.0  # until when faults, or a start, may keep it from what it is to do

    @property
    def gone(self) -> bool:
        """Whether it never comes back."""
        return False

    @property
    def alive(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def projection(self) -> Path:
        """Where its fold is kept."""
        raise AssertionError("a hub or a coordinator knows")

    async def life(self) -> int | None:
        """Run once, to the end; the exit code."""
        raise AssertionError("a hub or a coordinator knows")

    def start(self) -> None:
        """A new process on this machine."""
        if self.alive or self.gone or self.world.over:
            return
        self.client = Client(self.world.network, self.name)
        self.client.snapshot_s = self.snapshot_s
        self.process = Process(self.name)
        self.trouble(self.world.scenario.config.lease_s)
        self.task = self.process.spawn(self.life())
        self.task.add_done_callback(self._ended)

    def trouble(self, seconds: float) -> None:
        """For so long, and as long again as it takes to recover, nothing is expected of it."""
        patience_s = TIMEOUT_S + self.world.scenario.config.lease_s
        self.troubled_s = max(self.troubled_s, self.world.loop.time() + seconds + patience_s)

    def kill(self, restart_s: float | None) -> None:
        """SIGKILL: nothing it does from here on reaches anybody."""
        if self.alive:
            self.restart_s = restart_s  # else it is about to be started already, or never
        self.client.dead = True
        self.process.resume()
        if self.task is not None:
            self.task.cancel()

    def pen(self) -> Callable[..., Writer]:
        """Writers whose ids and clock are the world's."""
        return partial(Writer, clock=self.world.wall, make_id=self.world.new_id)

    def blobs(self) -> SimBlobs:
        whole_bytes = 3 * 4 * self.world.scenario.num_numbers  # θ, m and e
        return SimBlobs(self.client, self.world.blobs, self._removing, whole_bytes)

    def _removing(self, digests: list[str]) -> None:
        """R20: what is removed was released by an event."""
        history, named = self.world.history, self.world.watcher.referee.ledger.released
        if history.generation == 0 and not named.issuperset(digests):
            self.world.violated("P3", f"R20: {self.name} removes blobs that no event released")

    def save_projection(self) -> bool:
        """Keep the fold as it is now; whether there is one."""
        if not self.projection.exists():
            return False
        old = self.projection.with_suffix(".old")
        old.unlink(missing_ok=True)
        with sqlite3.connect(self.projection) as source, sqlite3.connect(old) as copy:
            source.backup(copy)
        source.close()
        copy.close()
        return True

    def restore_projection(self) -> bool:
        """A torn commit: the file is what it was when it was saved."""
        old = self.projection.with_suffix(".old")
        if not old.exists():
            return False
        self.forget_projection()
        old.replace(self.projection)
        return True

    def forget_projection(self) -> None:
        """Remove the fold: it is a cache."""
        for suffix in ("", "-wal", "-shm"):
            self.projection.with_name(self.projection.name + suffix).unlink(missing_ok=True)

    def _ended(self, task: asyncio.Task[int | None]) -> None:
        if self.world.over:
            return
        code, restart_s, self.restart_s = KILLED, self.restart_s, RETRY_S
        if not task.cancelled():
            error = task.exception()
            code = self._code(error) if error else (task.result() or 0)
        if self.damaged is None and restart_s is not None:
            self.world.after_exit(self, code, restart_s)

    def _code(self, error: BaseException) -> int:
        """What an exception of the real code means: most are bugs."""
        if isinstance(error, LogDamaged):
            self.damaged = error.sequence
            self.world.found_damage(self, error)
        elif isinstance(error, StateLost):
            self.world.stopped_without(self, error)
        elif isinstance(error, VersionDiffers) or not isinstance(error, AtollError):
            last = "".join(traceback.format_exception(error)[-3:])
            self.world.violated("P3", f"{self.name} broke down: {last}")
        return 4


class SiteMachine(Machine):
    """A site's job: hub and trainer, under the site's name on the log."""

    def __init__(
        self, world: World, site: str, rate: float, start_s: float, folder: str = ""
    ) -> None:
        super().__init__(world, site, folder or site)
        self.hub: Hub | None = None
        self.stays_s: float | None = None
        self.requeue_s: float | None = RETRY_S
        self.left = False  # for good
        self.successor = False  # it waits at the door for its predecessor's end
        config = world.scenario.config
        self.bench = Bench(
            loop=world.loop,
            size=world.scenario.num_numbers,
            num_blocks=world.scenario.num_blocks,
            steps_per_s=rate,
            steps_per_block=config.steps_per_block,
            start_s=start_s,
            allowed=lambda: allowed(self.mind, world.scenario.num_blocks),
            unpublished=lambda: unpublished(self.mind, world.scenario.num_blocks),
            begins=self._begins,
            poisoned=world.poisoned,
            spoiled=world.spoiled,
            violated=lambda what: world.violated("P4", f"{site}: {what}"),
            injected=world.injected,
            exchange_s=0.05 if config.outer.overlap == "none" else 0.6,
        )

    @property
    def gone(self) -> bool:
        return self.left

    @property
    def mind(self) -> HubState:
        """What its hub knows, while there is one."""
        assert self.hub is not None
        return self.hub.logic.hub

    @property
    def incarnation(self) -> Token | None:
        """Which one its hub is, if it is one."""
        logic = getattr(self.hub, "logic", None)
        return logic.hub.incarnation if logic is not None else None

    @property
    def projection(self) -> Path:
        return self.folder / "projection.sqlite"

    async def life(self) -> int | None:
        """See `Machine.life`."""
        loop = self.world.loop
        end = None if self.stays_s is None else loop.time() + self.stays_s
        self.hub = Hub(
            self.client,
            self.blobs(),
            self.name,
            self.folder,
            self.folder,
            walltime_end=end,
            successor=self.successor,
            clock=loop.time,
            pen=self.pen(),
            trainers=partial(SimHandover, bench=self.bench),  # type: ignore[arg-type]
        )
        if end is not None:
            loop.outside(end - loop.time(), self._walltime, self.task)
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        return await self.hub.run()

    def _walltime(self, task: object) -> None:
        """The queue ends the job, whatever it does."""
        if self.task is task and self.alive:
            self.world.injected("walltime over")
            self.ended_by_walltime(self.world.loop.time() - (self.stays_s or 0.0))
            self.kill(self.requeue_s)

    def ended_by_walltime(self, knew_s: float) -> None:
        """P7: who has known since `knew_s` when its job ends, and was not disturbed, holds nothing
        begun when it ends."""
        world, lease_s = self.world, self.world.scenario.config.lease_s
        if self.troubled_s > max(knew_s, world.loop.time() - 1.5 * lease_s):
            return
        lives = world.watcher.referee.lives.values()
        one = next((life for life in lives if life.site == self.name), None)
        held = world.watcher.referee.ledger.of(one.token[0]) if one is not None else {}
        begun = sorted(key for key, phase in held.items() if phase != LEASED)
        if begun:
            world.violated("P7", f"{self.name} was ended by its walltime with {begun} begun")

    def _begins(self, epoch: int, block: int) -> None:
        """R7: the start stands in the log, and the hub has folded it, before the training."""
        assert self.hub is not None
        incarnation = self.hub.logic.hub.incarnation
        world, seq = self.world, incarnation[0] if incarnation else 0
        if world.history.restored is not None or world.history.generation:
            return
        known = (seq, epoch, block) in world.watcher.referee.ledger.started
        view = self.hub.logic.hub.view
        mine = {(one.epoch, one.block): one.state for one in view.held(seq)}
        if not known or mine.get((epoch, block)) != TRAINING:
            what = f"R7: {self.name} trains block {epoch}:{block}, which it has not started"
            world.violated("P4", what)


class CoordinatorMachine(Machine):
    """A coordinator, or a standby."""

    @property
    def projection(self) -> Path:
        return self.folder / "coordinator.sqlite"

    async def life(self) -> int | None:
        """See `Machine.life`."""
        loop = self.world.loop
        table = LeaseTable()
        with Projection(self.projection, [table], self.world.run) as projection:
            shop = Workshop(self.blobs(), self.folder / "blobs", clock=loop.time)
            shop.folder.mkdir(exist_ok=True)
            await Coordinator(
                self.client,
                projection,
                shop,
                self.name,
                breaks=lambda: self.client.breaks,
                clock=loop.time,
                pen=self.pen(),
            ).run()
        return 0
