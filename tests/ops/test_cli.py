"""The command line as a whole: help, exit codes, one clear line for what a person can mend."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import shell_complete

from eventlog.errors import AtollError, LogDamaged, LogUnavailable, RunUnknown
from ops import commands, docs, exits
from ops.cli import COMMANDS, root, run

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("eventlog", "leases", "broker", "outer", "sitehub", "ops")
ATOLL = [sys.executable, "-c", "from ops.cli import main; main()"]


def everything() -> Iterator[tuple[str, click.Command]]:
    """(full name, command) of every command there is."""
    for command, context in docs.commands(root, docs.root_context()):
        yield context.command_path, command


def atoll(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [*ATOLL, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def leaves(kind: type[Exception]) -> Iterator[type[Exception]]:
    """A class and all classes below it."""
    yield kind
    for child in kind.__subclasses__():
        yield from leaves(child)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `atoll break` a command that raises `error`."""

    @click.command("break")
    def broken() -> None:
        """Break."""
        raise error

    monkeypatch.setattr(sys.modules[__name__], "broken", broken, raising=False)
    monkeypatch.setitem(COMMANDS, "break", (__name__, "broken", "Break."))


def test_every_command_and_option_has_help() -> None:
    silent = []
    for name, command in everything():
        if not (command.help or "").strip():
            silent.append(name)
        silent += [
            f"{name} {option.opts[0]}"
            for option in command.params
            if isinstance(option, click.Option) and not option.help
        ]
    assert silent == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_listed_short_help_is_the_commands_own(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert COMMANDS[name][2] == (command.help or "").splitlines()[0]


def test_the_reference_page_is_what_the_commands_say() -> None:
    page = docs.PAGE.read_text()
    assert docs.render(page) == page, "run `make docs`"


def test_every_operating_error_of_every_room_has_its_exit_code() -> None:
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, prefix=f"{room}."):
            importlib.import_module(module.name)
    errors = {kind.__name__ for kind in leaves(AtollError) if kind.__module__.startswith(ROOMS)}
    unnamed = {
        kind.__name__
        for kind in AtollError.__subclasses__()
        if kind.__module__.startswith(ROOMS)
        and kind.__name__ not in exits.CODES
        and not kind.__name__.startswith("_")  # these never leave their module
    }
    assert unnamed == set()
    assert set(exits.CODES) - errors == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogUnavailable("no broker"), 4),
        (RunUnknown("no run"), 2),
        (LogDamaged(7, "a gap"), 3),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "/x"), 3),
        (click.UsageError("wrong"), 2),
        (click.exceptions.Exit(1), 1),
    ],
)
def test_an_error_gives_its_exit_code(monkeypatch, error: BaseException, code: int) -> None:
    fail_with(monkeypatch, error)
    assert run(["break"]) == code


def test_an_operating_error_is_one_line_on_stderr(monkeypatch, capsys) -> None:
    fail_with(monkeypatch, LogDamaged(7, "a gap"))
    run(["break"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "atoll: the log is damaged at sequence 7: a gap\n"


def test_a_missing_training_library_is_named_with_its_extra(monkeypatch, capsys) -> None:
    fail_with(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert run(["break"]) == exits.INVALID
    assert "atoll[train]" in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(["break"])


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["data", "verify", "/none"]])
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str]) -> None:
    done = atoll(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and "--help" in done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*ATOLL, "data", "-h"], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (exits.INTERRUPTED, b"")


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_is_obeyed_on_a_terminal(environment: dict[str, str], coloured: bool) -> None:
    ours, theirs = pty.openpty()
    plain = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    env = plain | {"TERM": "xterm"} | environment
    subprocess.run([*ATOLL, "nonsense"], cwd=ROOT, env=env, stderr=theirs)
    os.close(theirs)
    said = os.read(ours, 4096)
    os.close(ours)
    assert b"nonsense" in said and (b"\x1b[" in said) is coloured


def test_the_version_is_told() -> None:
    done = atoll("--version")
    assert done.stdout.startswith("atoll") and done.returncode == 0


def test_help_lists_every_command_module_once() -> None:
    _, _, section = atoll("--help").stdout.partition("\nCommands:\n")
    listed = [
        line.split()[0]
        for line in section.splitlines()
        if line.startswith("  ") and line[2:3].strip()
    ]
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert listed == list(COMMANDS)
    assert {path.rpartition(".")[2] for path, _, _ in COMMANDS.values()} == modules


def test_text_that_stdout_cannot_encode_is_escaped() -> None:
    said = [
        "import sys, click; from ops import cli, output",
        "@click.command()\ndef odd(): output.print_json({'a': 'ü\\udcff'}); click.echo('☃')",
        "cli.COMMANDS['odd'] = ('__main__', 'odd', '')",
        "sys.argv[1:] = ['odd']; cli.main()",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(said)],
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert json.loads(first) == {"a": "ü\udcff"}
    assert second == "\\u2603"


@pytest.mark.parametrize("name", ["NOPE", "a.b", "a*", "", "ü", "a" * 64])
def test_a_name_that_no_run_can_have_is_told_before_anything_is_tried(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    needed = {"eval": ["--data", str(tmp_path)], "site run": ["alpha", "--data", str(tmp_path)]}
    tried = 0
    for path, command in everything():
        words = path.split()[1:]
        if any(
            param.make_metavar(docs.root_context()) in ("RUN", "RUN|FILE")
            for param in command.params
            if isinstance(param, click.Argument)
        ):
            tried += 1
            assert run([*words, name, *needed.get(" ".join(words), [])]) == exits.USAGE, path
            assert "no name that a run can have" in capfd.readouterr().err
    assert tried >= 8


def test_a_reader_that_goes_away_is_no_failed_check() -> None:
    said = [
        "import click; from ops import cli; from ops.terminal import Console",
        "@click.command()\ndef long():\n for _ in range(99999): Console().print('line')",
        "cli.COMMANDS['long'] = ('__main__', 'long', '')",
        "cli.sys.argv[1:] = ['long']; cli.main()",
    ]
    program = [sys.executable, "-c", "\n".join(said)]
    with subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        assert writer.stdout.readline() == b"line\n"
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode == exits.INTERRUPTED


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("atoll audit mine", "file,mine"),  # the shell completes it by itself
        ("atoll audit x --parent mi", "file,mi"),
        ("atoll log verify a b", "file,b"),
        ("atoll site profile lu", "plain,lumi"),
        ("atoll simulate night", "plain,nightmare"),
        ("atoll simulate ./mine", "file,./mine"),
    ],
)
def test_the_shell_completes_what_an_argument_may_be(
    line: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert shell_complete(root, {}, "atoll", "_ATOLL_COMPLETE", "bash_complete") == 0
    assert capsys.readouterr().out.splitlines() == [told]
