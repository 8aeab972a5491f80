"""What README tells a newcomer to type is what the commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from ops.cli import root
from ops.configure import load

ROOT = Path(__file__).parent.parent.parent


def commands() -> list[list[str]]:
    """The words of every `atoll` line of README's shell blocks, comments left out."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["atoll"]]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_line_to_type_is_taken(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "ops").symlink_to(ROOT / "ops")
    monkeypatch.chdir(tmp_path)
    context = root.make_context("atoll", list(words))  # a command remembers its first one's help
    command: click.Command = root
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    context = command.make_context(command.name, list(words), parent=context)
    if "overrides" in context.params:
        assert load(context.params["config"], context.params["overrides"]).name == "mine"


def test_the_walk_through_has_the_commands_that_make_a_run() -> None:
    typed = {" ".join(words[:2]) for words in commands()}
    assert {"broker serve", "data build", "run create", "coordinate mine", "site run"} <= typed
