"""What a real Slurm 22.05.8 said, as recorded: commands with their outputs and exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent.parent / "recorded" / "slurm-22.05.8.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded command. `section`: the state of the cluster when it ran."""

    section: str
    command: str
    output: str
    code: int


def cases() -> list[Case]:
    """Every command of the recording that has an exit code."""
    found, section, command, output = [], "", "", []
    for line in FILE.read_text().splitlines():
        if line.startswith("###"):
            section = line.strip("# ")
        elif line.startswith("$ "):
            command, output = line[2:], []
        elif line.startswith("[rc="):
            found.append(Case(section, command, "\n".join(output), int(line[4:-1])))
            command, output = "", []
        else:
            output.append(line)
    return found
