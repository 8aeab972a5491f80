"""`Scheduler`: all that an agent asks of a batch system, in eight questions.

An answer is a value or a `Trouble`; nothing raises for what a scheduler says. A trouble that is
`silent` means that no answer came: what was asked may still happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ops.placement.shapes import Shape
from ops.placement.slurm.ends import Told
from ops.placement.slurm.nodes import Nodes, Partition, Reserved
from ops.placement.slurm.probes import Estimate
from ops.placement.slurm.queues import Queued
from ops.placement.slurm.troubles import Trouble


@dataclass(frozen=True, slots=True)
class Machine:
    """What a centre has: nodes by partition and state, its partitions, its reservations.
    hides_jobs: a user does not see other users' jobs."""

    nodes: tuple[Nodes, ...]
    partitions: tuple[Partition, ...]
    reservations: tuple[Reserved, ...]
    hides_jobs: bool = False


class Scheduler(Protocol):
    """A batch system, asked as any of its users may ask it."""

    async def probe(self, script: Path) -> Estimate | Trouble:
        """When a job of this script would start. Nothing is submitted."""
        ...

    async def submit(self, script: Path) -> str | Trouble:
        """Submit the script; the job's id."""
        ...

    async def cancel(self, job_id: str) -> Trouble | None:
        """End a job, waiting or running; one that has ended already is no trouble."""
        ...

    async def reshape(self, job_id: str, shape: Shape) -> Trouble | None:
        """Change what a waiting job asks for; it keeps its age."""
        ...

    async def queue(self) -> list[Queued] | Trouble:
        """Every job that this user may see, of all partitions."""
        ...

    async def machine(self) -> Machine | Trouble:
        """The state of nodes, partitions and reservations."""
        ...

    async def told(self, job_ids: Sequence[str], since_s: int) -> dict[str, list[Told]] | Trouble:
        """What is known of jobs that are in the queue no more, by id; an id that was used again
        brings several. Nobody is left out: an id that nobody knows has none."""
        ...

    async def search(self, name: str, since_s: int) -> list[Told] | Trouble:
        """Jobs of this user by name, those that have ended since among them."""
        ...
