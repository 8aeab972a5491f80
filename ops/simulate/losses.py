"""Blobs that the store loses, or damages, though they are needed."""

from __future__ import annotations

import shutil

from leases import retention
from ops.simulate.faults import Fault
from ops.simulate.process import Machine
from ops.simulate.world import World


def lost_update(world: World, whom: Machine | None, fault: Fault) -> None:
    """The update of the next version, as soon as that is committed."""
    world.loses_update.append(bool(fault.number & 1))


def lost_blob(world: World, whom: Machine | None, fault: Fault) -> None:
    """One of the blobs that the newest version is recovered from. Every other time the coordinators
    die with it, and with what they have kept of it: only who has it elsewhere can go on."""
    if not world.watcher.view.exists():
        return
    needed = sorted(retention.recovered(world.watcher.view.db))
    there = [blob for blob in needed if blob not in world.lost]
    if not there:
        return
    world.lose("lost blob", there[(fault.number >> 2) % len(there)], bool(fault.number & 1))
    if fault.number & 2:
        world.injected("lost blob, and the coordinators")
        for machine in world.coordinators:
            machine.trouble(fault.duration_s)
            machine.kill(fault.duration_s)
            shutil.rmtree(machine.folder / "blobs", ignore_errors=True)
