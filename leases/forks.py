"""A run that goes on from a version of another: what it takes over, and whether it did. Pure."""

from __future__ import annotations

import hashlib

from eventlog.codec import Entry, unpack
from eventlog.config import RunConfig
from eventlog.events import Lineage, RoundCommitted, RunCreated
from leases.divergence import Diverged
from leases.progress import goal, share_done
from leases.retention import first_left
from leases.view import View


def fork_options(view: View, found: Diverged) -> str:
    """The options of `atoll run fork` that take a diverged run up again: the newest good version
    that can still be rebuilt, with half the inner rate."""
    version = first_left(view, found.version)
    version = found.version if version is None else version
    return f"--version {version} --set inner.lr={view.config().inner.lr / 2:g}"


def child_settings(view: View, run: str, version: int, *, target: bool = True) -> dict[str, object]:
    """What a fork at a version has otherwise than its parent, as tables of the configuration.

    Its target is what is left of the parent's, and its schedules go on from where the parent stood.
    It draws the order of its epochs anew (`seed`): so it does not meet the same blocks in the same
    order again, as one wants behind a spike (PaLM, arXiv:2204.02311, section 5.1), while two forks
    of one version do, and can be compared. Raises ValueError where nothing is left to train;
    without `target` its schedules begin anew, for a target that is given.
    """
    config, index = view.config(), view.index()
    row = view.version(version)
    merged = row.merged_tokens if row else 0
    aim = goal(config, index)
    if not target:
        return {"seed": _seed(config, run, version), "start": {"share": 0.0}}
    left = (aim.rounds or 0) - version if aim.rounds is not None else (aim.tokens or 0) - merged
    if left <= 0:
        raise ValueError("its parent's target is reached: give one, such as --set target.tokens=N")
    return {
        "seed": _seed(config, run, version),
        "target": {"rounds": left} if aim.rounds is not None else {"tokens": left},
        "start": {"share": share_done(config, index, version, merged, 0)},
    }


def _seed(config: RunConfig, run: str, version: int) -> int:
    material = hashlib.sha256(f"atoll fork {config.seed} {run} {version}".encode()).digest()
    return int.from_bytes(material[:7], "big")


def lineage(view: View) -> Lineage | None:
    """Where the folded run was forked from, if it was."""
    row = view.ask("SELECT lineage FROM run")[0][0]
    return None if row is None else Lineage.model_validate(unpack(row))


def unlike(child: Lineage, made: Entry | None, void: str) -> str:
    """Why a lineage is not what the parent's log says; '' where it is. `made`: the event of that
    log at the sequence that the lineage names, with the fold's word on it."""
    if child.made is None:
        return "it does not say which event made its version"
    sequence, name = child.made
    if made is None:
        return f"the log of {child.run} has no event {sequence}, which made its version"
    if made.envelope is None or made.envelope.id != name or made.record.sequence != sequence:
        return f"event {sequence} of {child.run} is another: this is another history of that name"
    if void:
        return f"event {sequence} of {child.run} is void: {void}"
    version, event, found = None, made.event, ""
    if isinstance(event, RunCreated):
        version, found = 0, event.parameters_digest
    elif isinstance(event, RoundCommitted):
        version, found = event.version, event.parameters_digest
    if version != child.version:
        return f"the event that it names made version {version}, not {child.version}"
    if found == child.parameters_digest:
        return ""
    return (
        f"version {version} of {child.run} has parameters {found[:12]}, the fork started from "
        f"{child.parameters_digest[:12]}"
    )
