"""What a person can do where a run waits for one, or where there is nothing more to see."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outer.waiting import Wait

COMMANDS = {  # by the remedy of a wait
    "create": "atoll run create CONFIG",
    "broker": "see to the broker; where it ran, atoll broker serve starts it again",
    "coordinate": "atoll coordinate {run}",
    "site": "atoll site run {run} NAME --data DIR",
    "resume": "atoll run resume {run}",
    "fork": "atoll run fork {run} {how} (or, as it is: atoll run resume {run})",
}
OVER = (
    "atoll eval {run} --data DIR (how good the model is)",
    "atoll audit {run} --deep (whether it is what the log says)",
)
OF_A_FILE = (
    "atoll audit {file} (whether the log keeps what a run promises)",
    "atoll watch {file} --replay (how it came about)",
)
LEAVE = "(Ctrl-C leaves this view, not the run)"


@dataclass(frozen=True, slots=True)
class Advisor:
    """Advice for whoever watches a run on its broker, or the `file` that its log was exported to.
    `stays`: on a terminal, from which one would like to get away; `plays`: a replay of that log."""

    file: Path | None = None
    stays: bool = False
    plays: bool = False

    def advise(self, run: str, state: str, waits: Sequence[Wait]) -> tuple[str, ...]:
        """Commands, and what they are for where that is not plain; none while all goes by itself.
        `state`, `waits`: of the run, as they are now."""
        if self.file is not None:
            told = OF_A_FILE[:1] if self.plays else OF_A_FILE
            return tuple(line.format(file=shlex.quote(str(self.file))) for line in told)
        if state == "finished":
            return tuple(line.format(run=run) for line in OVER)
        remedies = {wait.remedy: wait.how for wait in waits if wait.remedy}
        commands = [COMMANDS[one].format(run=run, how=how) for one, how in remedies.items()]
        *lines, last = commands or [""]
        return (*lines, f"{last} {LEAVE}" if self.stays else last) if last else ()
