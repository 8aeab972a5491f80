"""A command line that cannot be meant: one line that says so, before anything is read or asked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from ops import exits
from ops.cli import root, run
from tests.ops.test_cli import everything

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ["run", "list"],
        ["run", "create", __file__],  # before the file is read
        ["coordinate", "some-run"],
        ["site", "run", "some-run", "a", "--data", "."],
        ["watch", "some-run"],
        ["audit", "some-run"],
        ["eval", "some-run", "--data", "."],
        ["log", "tail", "some-run"],
    ],
)
def test_what_is_no_url_of_a_broker_is_refused_at_once_wherever_it_was_given(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says = "atoll: 'http://h:1' is no URL of a broker: "
    assert run([*command, "--broker", "http://h:1"]) == exits.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(says)
    monkeypatch.setenv("ATOLL_BROKER", "http://h:1")
    assert run(command) == exits.USAGE
    assert capsys.readouterr().err.startswith(says)


def test_no_listed_help_is_cut_off_on_a_terminal_of_80_columns() -> None:
    for name, command in everything():
        if isinstance(command, click.Group):
            context = click.Context(  # a command keeps its first help option: give it the real one
                command, info_name=name, terminal_width=80, **root.context_settings
            )
            listed = command.get_help(context)
            assert "..." not in listed.partition("Commands:")[2], name


def test_no_text_names_a_command_that_does_not_exist() -> None:
    """Of each group: what stands behind it in a text that is said, or in a docstring."""
    names = {name for name, _ in everything()}
    groups = {name for name, command in everything() if isinstance(command, click.Group)}
    formats = {"atoll log at", "atoll site checkpoint"}  # a word before it, and a file's first line
    rooms = ("broker", "eventlog", "leases", "ops", "outer", "sitehub")
    named = {
        found[0]
        for room in rooms
        for file in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in re.finditer(r"\batoll (?:[a-z]+) [a-z][a-z-]*", " ".join(node.value.split()))
    }
    told = {one for one in named if one.rpartition(" ")[0] in groups}
    assert len(told) > 20
    assert told - names - formats == set()


def test_a_command_line_that_lacks_something_is_one_line(capsys) -> None:
    for name, command in everything():
        lacks = any(one.required for one in command.params)
        if lacks and not isinstance(command, click.Group):
            assert run(name.split()[1:]) == exits.USAGE
            (line,) = capsys.readouterr().err.splitlines()
            assert line.endswith(f"(see `{name} --help`)")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["eval", "r", "--data", ".", "--max-tokens", "-5"], "--max-tokens"),
        (["eval", "r", "--data", ".", "--version", "-1"], "--version"),
        (["site", "run", "r", "a", "--data", ".", "--walltime", "0m"], "--walltime 0m: a job that"),
        (["site", "run", "r", "a", "--data", ".", "--walltime", "00:00"], "ends now cannot take"),
        (["site", "run", "r", "a", "--data", ".", "--walltime", "soon"], "write 90m, 4h, 02:30:00"),
        (["simulate", "lonely", "--seeds", "2", "--trace"], "--trace is for one seed"),
        (["simulate", "lonely", "--seeds", "2", "--log", "x"], "--log is for one seed"),
    ],
)
def test_what_an_option_cannot_be_is_refused_before_anything_is_done(
    command: list[str], says: str, capsys
) -> None:
    assert run(command) == exits.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
