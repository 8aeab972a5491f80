"""Man pages, one a command: `make man` writes what `man atoll` and `man atoll-run-create` show.

Made of click's own help, in the man macros that every `man` knows. The same code gives the same
bytes: no date stands in them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click

from ops import exits
from ops.cli import root
from ops.docs import commands, root_context
from ops.manual.environment import VARIABLES


def write(folder: Path) -> list[Path]:
    """Write every page into `folder`, made if it is not there; their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for command, context in commands(root, root_context()):
        path = folder / f"{_page_name(context)}.1"
        path.write_text(page(command, context))
        written.append(path)
    return written


def page(command: click.Command, context: click.Context) -> str:
    """One command's page, in roff."""
    name, (first, *rest) = _page_name(context), _paragraphs(command.help or "")
    pieces = command.collect_usage_pieces(context)
    lines = [
        f'.TH "{name.upper()}" "1" "" "atoll {metadata.version("atoll")}" "atoll"',
        f".SH NAME\n{_plain(name)} \\- {_plain(first.rstrip('.'))}",
        f".SH SYNOPSIS\n.B {_plain(context.command_path)}\n{_plain(' '.join(pieces))}",
    ]
    if rest:
        lines.append(".SH DESCRIPTION\n" + "\n.PP\n".join(map(_marked, rest)))
    lines += _options(command, context)
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            said = _paragraphs((found and found.help) or "")[0]
            lines.append(f".TP\n.BR {_plain(name)}\\-{_plain(child)} (1)\n{_marked(said)}")
    lines += _common(command is root)
    return "\n".join(lines) + "\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = isinstance(parameter, click.Option) and parameter.get_help_record(context)
        if record:
            yield f".TP\n.B {_plain(record[0])}\n{_marked(record[1])}"


def _common(is_root: bool) -> Iterator[str]:
    """What holds for all: told in full once."""
    if not is_root:
        yield ".SH SEE ALSO\n.BR atoll (1)\nfor exit codes and environment"
        return
    yield ".SH EXIT STATUS"
    for code, meaning in exits.MEANING.items():
        yield f".TP\n.B {code}\n{_marked(meaning)}"
    yield ".SH ENVIRONMENT"
    for name, meaning in VARIABLES.items():
        yield f".TP\n.B {_plain(name)}\n{_marked(meaning)}"


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _paragraphs(text: str) -> list[str]:
    """Of a help, each on one line; at least one."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\b\n", ""))
    return [" ".join(part.split()) for part in parts]


def _plain(text: str) -> str:
    """Text that roff sets as it stands, on one line."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + line if line.startswith((".", "'")) else line


def _marked(text: str) -> str:
    """The same, with what stands in backticks in bold."""
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _plain(text))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
