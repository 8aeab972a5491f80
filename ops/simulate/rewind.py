"""A log that went back (R19): everybody who had read on must stop writing and name the sequence."""

from __future__ import annotations

from ops.simulate.network import Client
from ops.simulate.process import Machine
from ops.simulate.store import DAMAGED
from ops.simulate.world import World

LEAST_S = 30.0  # before it is restored: everybody has had the time to notice

Concerned = list[tuple[Machine, Client]]


def log_back(world: World, num_lost: int, duration_s: float) -> bool:
    """The broker comes back without its last events; later somebody restores what it had. Whether
    there was anything to lose."""
    history, now = world.history, world.loop.time()
    records = history.all()
    kept = max(1, len(records) - num_lost)
    if kept >= len(records):
        return False
    history.restored = records
    concerned: Concerned = []
    for machine in world.machines():
        if machine.alive and machine.client.seen > kept:
            machine.client.ahead_since = now
            concerned.append((machine, machine.client))
        machine.client.breaks += 1
    history.replace(records[:kept])
    blobs = {blob: content for blob, content in world.blobs.items() if content != DAMAGED}

    def restore() -> None:
        _judge(world, concerned, kept)
        history.replace(records)
        world.blobs.update(blobs)  # with what was removed by the word of events that are no more
        history.restored = None
        _restart(world)

    world.later(max(duration_s, LEAST_S), restore)
    return True


def _judge(world: World, concerned: Concerned, kept: int) -> None:
    """Whoever was connected, and had read what is gone, has stopped and named where the log ended
    when it looked: at the first lost event, or behind what somebody who had read less (or a site
    that came back from a partition and spoke before it looked) has written there since."""
    end = len(world.history.all())
    for machine, client in concerned:
        if machine.client is not client or client.is_cut() or machine.process.paused:
            continue
        if machine.damaged is None and not client.dead:
            world.violated("P3", f"R19: {machine.name} did not notice that the log went back")
        elif machine.damaged is not None and not kept < machine.damaged <= end + 1:
            named = machine.damaged
            world.violated("P3", f"R19: {machine.name} named {named}, it was {kept + 1}")
    for name in sorted(world.network.wrote_on):
        world.violated("P3", f"R19: {name} wrote on after the log had gone back")


def _restart(world: World) -> None:
    for machine in world.machines():
        machine.kill(None)
        machine.damaged = None
        machine.forget_projection()  # it may hold what was written on the shorter log
        if machine not in world.twins:
            world.later(2.0, machine.start)
