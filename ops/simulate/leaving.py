"""What ends a site's job well: a successor, its walltime, a signal, the operator's word."""

from __future__ import annotations

from eventlog.events import DrainRequested
from ops.simulate.faults import Fault
from ops.simulate.process import SiteMachine
from ops.simulate.world import World


def successor(world: World, whom: SiteMachine, fault: Fault) -> None:
    """The next job of the site starts on another machine, and waits at the door; then this one is
    told to end."""
    if whom.hub is None or not hasattr(whom.hub, "logic"):
        return
    folder = f"successor-{len(world.sites)}-{fault.number}"
    successor = SiteMachine(world, whom.name, whom.bench.steps_per_s, whom.bench.start_s, folder)
    successor.successor = True
    whom.left = True
    world.sites.append(successor)
    successor.start()
    world.injected(fault.kind)

    def hand_over() -> None:
        if whom.alive and whom.hub is not None and hasattr(whom.hub, "logic"):
            whom.hub.logic.ask_to_leave("walltime", "its successor waits", 0)
            world.later(2 * world.scenario.config.lease_s, lambda: whom.kill(None))

    world.later(fault.duration_s, hand_over)


def walltime(world: World, whom: SiteMachine, fault: Fault) -> None:
    """The job learns that its end is near, and is ended when it comes."""
    if whom.hub is None or not hasattr(whom.hub, "logic"):
        return
    task, undisturbed_s = whom.task, whom.before_s
    left_s = 4 * world.scenario.config.lease_s
    whom.troubled_s = undisturbed_s  # to be told of one's end is no trouble
    begun_s = world.loop.time()
    known_s = whom.hub.logic.hub.walltime_end  # a job that ends sooner is not prolonged
    whom.hub.logic.hub.walltime_end = min(begun_s + left_s, known_s or begun_s + left_s)
    world.injected(fault.kind)

    def end() -> None:
        if whom.task is task and whom.alive:
            whom.ended_by_walltime(begun_s)
            whom.kill(fault.duration_s)

    world.later(left_s, end)


def leave(world: World, whom: SiteMachine, fault: Fault) -> None:
    """SIGTERM, and after the grace that queues give, SIGKILL."""
    if whom.hub is None or not hasattr(whom.hub, "logic"):
        return
    task = whom.task
    whom.hub.logic.ask_to_leave("walltime", "its job was told to end", 75)
    world.injected(fault.kind)

    def end() -> None:
        if whom.task is task and whom.alive:
            whom.kill(fault.duration_s)

    world.later(2 * world.scenario.config.lease_s, end)


def drain(world: World, whom: SiteMachine, fault: Fault) -> None:
    world.operator(DrainRequested(site=whom.name, reason="a simulated operator asks"))
    world.injected(fault.kind)
