"""What a hub may do: the shell carries these out, the logic chooses them.

logic.actions(now) -> [Action, ...]      shell does each, and reports back by logic.on_...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eventlog.events import DeltaPublished, EvaluationCompleted, Event, SiteJoined


@dataclass(frozen=True, slots=True)
class StartTrainer:
    """Start a trainer process; `on_ready` or `on_trainer_gone` follows."""


@dataclass(frozen=True, slots=True)
class EndTrainer:
    """Kill the trainer process, which hangs; `on_trainer_gone` follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """One command for the trainer; one `on_answer` follows."""

    command: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Append:
    """Append these to the site's subject as one batch; `on_appended` follows, or `on_overtaken`
    where another writer was faster and everything before is folded."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch a blob into the work folder under its digest; `on_fetched` or `on_missing` follows."""

    blob: str


@dataclass(frozen=True, slots=True)
class Store:
    """Store a file of the work folder as a blob; `on_stored` follows."""

    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove files of the work folder that are no longer needed."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """End the process with this exit code and say why."""

    code: int
    reason: str


Action = StartTrainer | EndTrainer | Tell | Append | Fetch | Store | Drop | Leave


def news(event: Event) -> str:
    """What a person who reads the job's output wants to know of an event that it has appended."""
    if isinstance(event, SiteJoined):
        return "asks to be admitted"
    if isinstance(event, EvaluationCompleted):
        measured = f"loss {event.loss:.4f}, perplexity {event.perplexity:.4g} on held-out text"
        return f"evaluated version {event.version}: {measured}"
    if not isinstance(event, DeltaPublished):
        return ""
    num, tokens = len(event.blocks), sum(block.tokens for block in event.blocks)
    what = f"delivered {num} block{'s' * (num != 1)}, {tokens:,} tokens"
    return f"{what}, trained on version {event.base_version}"


def of_an_answer(answer: dict[str, Any]) -> str:
    """What such a person wants to know of what the trainer has done."""
    did, error = answer["did"], answer.get("error")
    if did == "save":
        return f"no checkpoint: {error}" if error else f"checkpoint {answer['path']} is written"
    if did == "resume" and error:
        return f"begins without what its last life has left: {error}"
    if did == "resume":
        notice = answer["notice"]
        from_ = f"takes up {answer['path']}" if answer["path"] else ""
        return "; ".join(part for part in (from_, notice) if part)
    if skipped := answer.get("num_skipped"):
        which, steps = f"block {answer['block']} of epoch {answer['epoch']}", answer["steps"]
        return f"{which}: {skipped} of {steps} steps were not finite and changed nothing"
    return ""
