"""What each fault of a plan does to the virtual world."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from eventlog.events import RunPaused, RunResumed
from ops.simulate import forged, leaving, losses
from ops.simulate.faults import Fault
from ops.simulate.network import DELIVERIES, finish
from ops.simulate.process import Machine, SiteMachine
from ops.simulate.rewind import log_back
from ops.simulate.world import World

M = TypeVar("M", bound=Machine)
HARMS = ("nan", "form", "huge", "torn")


def befall(world: World, fault: Fault) -> None:
    """Do what the fault says, to whom it says, if there is anybody."""
    if world.finished() or world.over or world.history.restored is not None:
        return
    if fault.kind.startswith("coordinator "):
        whom: Machine | None = _pick(world.coordinators, fault)
    else:
        whom = _pick(world.sites, fault)
    kind = fault.kind.removeprefix("coordinator ")
    if whom is not None:
        whom.before_s = whom.troubled_s
        whom.trouble(fault.duration_s)
    if whom is not None or kind in _OF_ALL:
        _HARM[kind](world, whom, fault)


def _pick(machines: Sequence[M], fault: Fault) -> M | None:
    if fault.who:
        return next((one for one in machines if one.name == fault.who), None)
    alive = [one for one in machines if one.alive]
    return alive[fault.number % len(alive)] if alive else None


def _done(world: World, fault: Fault) -> None:
    world.injected(fault.kind)


def _crash(world: World, whom: Machine, fault: Fault) -> None:
    _done(world, fault)
    whom.kill(fault.duration_s)


def _gone(world: World, whom: SiteMachine, fault: Fault) -> None:
    others = [one for one in world.sites if one is not whom and one.alive and not one.left]
    if len(others) < 2:
        return
    whom.left = True
    whom.kill(None)
    _done(world, fault)


def _trainer(world: World, whom: SiteMachine, fault: Fault) -> None:
    handover = whom.bench.handover
    if handover is not None and handover.die():
        _done(world, fault)


def _hang(world: World, whom: SiteMachine, fault: Fault) -> None:
    _done(world, fault)
    for_ever = fault.number % 2  # until somebody ends it
    whom.bench.hung_until = world.loop.time() + (1e9 if for_ever else fault.duration_s)


def _slow(world: World, whom: SiteMachine, fault: Fault) -> None:
    _done(world, fault)
    whom.bench.slow = 2.0 + fault.number % 8

    def recover() -> None:
        whom.bench.slow = 1.0

    world.later(fault.duration_s, recover)


def _pause(world: World, whom: Machine, fault: Fault) -> None:
    _done(world, fault)
    process, client = whom.process, whom.client
    process.paused = True

    def resume() -> None:
        if client.ahead_since is not None:
            client.ahead_since = world.loop.time()  # it could not notice before
        process.resume()

    world.later(fault.duration_s, resume)


def _slow_link(world: World, whom: SiteMachine, fault: Fault) -> None:
    whom.client.slow = (world.loop.time() + fault.duration_s, fault.duration_s / 2)
    _done(world, fault)


def _partition(world: World, whom: Machine, fault: Fault) -> None:
    _done(world, fault)
    whom.client.cut(fault.duration_s)


def _delivery(world: World, whom: Machine, fault: Fault) -> None:
    until = world.loop.time() + fault.duration_s
    for bit, kind in enumerate(DELIVERIES):
        if fault.number >> bit & 1 or kind == DELIVERIES[fault.number % len(DELIVERIES)]:
            whom.client.trouble[kind] = until
    _done(world, fault)


def _ambiguous(world: World, whom: Machine, fault: Fault) -> None:
    chance = random.Random(fault.number)
    whom.client.ambiguous = [chance.random() < 0.5 for _ in range(chance.randint(1, 4))]
    _done(world, fault)


def _doubled(world: World, whom: Machine, fault: Fault) -> None:
    whom.client.again = 1 + fault.number % 5
    _done(world, fault)


def _replay(world: World, whom: Machine, fault: Fault) -> None:
    """An old event of the site again, at the end of its subject: by a client that lost its mind."""
    subject = f"site.{whom.name}"
    mine = [one for one in world.history.all() if one.subject == subject]
    if mine:
        payload = mine[fault.number % len(mine)].payload
        finish(world.history.append(subject, [payload], world.history.last_of(subject)))
        _done(world, fault)


def _torn(world: World, whom: Machine, fault: Fault) -> None:
    if not whom.save_projection():
        return

    def tear() -> None:
        if not whom.alive or world.history.restored is not None:
            return
        whom.kill(None)

        def restart() -> None:
            if whom.restore_projection():
                _done(world, fault)
            whom.start()

        world.later(1.0, restart)

    world.later(fault.duration_s, tear)


def _twin(world: World, whom: SiteMachine, fault: Fault) -> None:
    twin = SiteMachine(
        world, whom.name, whom.bench.steps_per_s, whom.bench.start_s, f"twin-{len(world.twins)}"
    )
    world.twins.append(twin)
    twin.start()
    world.later(fault.duration_s + 1.0, lambda: twin.kill(None))
    _done(world, fault)


def _bad(world: World, whom: SiteMachine, fault: Fault) -> None:
    whom.bench.harm = HARMS[fault.number % len(HARMS)]  # type: ignore[assignment]


def _rotten(world: World, whom: SiteMachine, fault: Fault) -> None:
    whom.bench.rotten = HARMS[fault.number % 3]  # type: ignore[assignment]
    _done(world, fault)


def _poison(world: World, whom: Machine | None, fault: Fault) -> None:
    num_blocks, ledger = world.scenario.num_blocks, world.watcher.referee.ledger
    epochs = range(world.scenario.config.target.epochs or 1)
    open_ = [(e, b) for e in epochs for b in range(num_blocks) if (e, b) not in ledger.merged]
    if open_:
        epoch, block = open_[fault.number % len(open_)]
        world.poisoned.add(epoch * num_blocks + block)
        _done(world, fault)


def _blob(world: World, whom: SiteMachine, fault: Fault) -> None:
    whom.client.loses = True


def _claims(world: World, whom: SiteMachine, fault: Fault) -> None:
    if forged.claim(world, whom.name, fault.number):
        _done(world, fault)


def _lie(world: World, whom: SiteMachine, fault: Fault) -> None:
    whom.client.tells = forged.lie(world, fault.number)


def _strange(world: World, whom: SiteMachine, fault: Fault) -> None:
    forged.strange(world, whom.name, fault.number)
    _done(world, fault)


def _stale(world: World, whom: Machine, fault: Fault) -> None:
    if forged.stale_decision(world, fault.number):
        _done(world, fault)


def _stop_and_go(world: World, whom: Machine | None, fault: Fault) -> None:
    world.operator(RunPaused(reason="a simulated operator asks"))
    _done(world, fault)

    def go() -> None:
        if world.history.restored is not None:  # the operator finds that the log is damaged
            world.later(10.0, go)
        elif not world.finished():
            world.operator(RunResumed(reason="a simulated operator asks"))

    world.later(fault.duration_s, go)


def _more(world: World, whom: Machine | None, fault: Fault) -> None:
    world.add_coordinator(len(world.coordinators))
    _done(world, fault)


def _wall_clock(world: World, whom: Machine | None, fault: Fault) -> None:
    world.skew_s += random.Random(fault.number).uniform(-1e6, 1e6)
    _done(world, fault)


def _log_back(world: World, whom: Machine | None, fault: Fault) -> None:
    if log_back(world, fault.number % 40 + 1, fault.duration_s):
        _done(world, fault)


_OF_ALL = ("lost update", "lost blob", "poison", "stop and go", "wall clock", "log back", "more")
_HARM: dict[str, Callable] = {
    "crash": _crash,
    "gone": _gone,
    "trainer": _trainer,
    "hang": _hang,
    "slow": _slow,
    "slow link": _slow_link,
    "pause": _pause,
    "partition": _partition,
    "delivery": _delivery,
    "ambiguous": _ambiguous,
    "doubled": _doubled,
    "replay": _replay,
    "torn": _torn,
    "twin": _twin,
    "successor": leaving.successor,
    "bad": _bad,
    "rotten": _rotten,
    "poison": _poison,
    "blob": _blob,
    "lost update": losses.lost_update,
    "lost blob": losses.lost_blob,
    "claims": _claims,
    "lie": _lie,
    "strange": _strange,
    "stale": _stale,
    "walltime": leaving.walltime,
    "leave": leaving.leave,
    "drain": leaving.drain,
    "stop and go": _stop_and_go,
    "more": _more,
    "wall clock": _wall_clock,
    "log back": _log_back,
}
