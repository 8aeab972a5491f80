"""`atoll place`: be where the queues let us."""

from __future__ import annotations

import importlib

import click

# name -> (module, command in it, short help), imported when it is called
PLACE: dict[str, tuple[str, str, str]] = {
    "agent": (
        "ops.placement.commands.agent",
        "agent",
        "Serve the site SITE of RUN from its login node.",
    ),
    "planner": (
        "ops.placement.commands.planner",
        "planner",
        "Plan where RUN stands in queues, or stand by.",
    ),
    "plan": (
        "ops.placement.commands.planner",
        "plan_",
        "Print what would be planned for RUN as things stand.",
    ),
    "why": (
        "ops.placement.commands.planner",
        "why",
        "Tell where RUN stands in queues, why, and what is next.",
    ),
    "probe": (
        "ops.placement.commands.agent",
        "probe",
        "Ask once when jobs of SITE would start.",
    ),
    "halt": ("ops.placement.commands.agent", "halt_", "Have the agents here keep still."),
    "go": ("ops.placement.commands.agent", "go_", "Let the agents here go on."),
    "calibration": (
        "ops.placement.commands.calibration",
        "calibration",
        "Tell how often starts kept within stated bounds.",
    ),
    "simulate": (
        "ops.placement.commands.simulate",
        "simulate",
        "Simulate runs that live on queues, and compare policies.",
    ),
}


class _Lazy(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PLACE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PLACE:
            return None
        module, attribute, _ = PLACE[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=_Lazy)
def place() -> None:
    """Ask the sites' queues for compute, as any user may: agents, a planner, and why.

    An agent runs on each login node and asks its scheduler little, at a pace that is capped; one
    planner decides. Both read one sites file. What it does to a scheduler: docs/placement.md.
    """
