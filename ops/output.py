"""What commands print: data as JSON lines or text on stdout, progress as talk on stderr."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from sitehub.progress import Step

_EVERY_S = 10.0

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line, and nothing else."
)


def _broker_url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Raises BrokerUrlInvalid, before anything is read or asked."""
    if value:
        from broker.urls import servers

        servers(value)
    return value


class Reach(NamedTuple):
    """How a command reaches its broker: what --broker and --creds say, or their variables."""

    url: str | None = None
    creds: Path | None = None


def broker_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--broker and --creds, as the one argument `broker` of the command."""

    @click.option(
        "--broker",
        envvar="ATOLL_BROKER",
        metavar="URL",
        callback=_broker_url,
        help="Where the broker is: tls://HOST:PORT, wss:// (through HTTPS), or nats:// and ws:// "
        "where it has no TLS; by default $ATOLL_BROKER, else what the credentials say, else the "
        "one running here, else port 4222 here.",
    )
    @click.option(
        "--creds",
        envvar="ATOLL_CREDS",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Credentials that the broker's operator issued; by default $ATOLL_CREDS, else "
        "atoll.creds in ATOLL_HOME, where there is one.",
    )
    @functools.wraps(command)
    def reaching(*args: Any, broker: str | None, creds: Path | None, **others: Any) -> Any:
        return command(*args, broker=Reach(broker, creds), **others)

    return reaching


def port_option(name: str, default: int, text: str, *, least: int = 1) -> Option:
    """A port that something listens on or is reached by; `least` 0: it may be left out, by 0."""
    kind = click.IntRange(least, 65535)
    return click.option(name, default=default, show_default=True, type=kind, help=text)


sites_option: Option = click.option(
    "--sites",
    required=True,
    envvar="ATOLL_SITES",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The sites file: queues, shapes, caps (docs/placement.md); by default $ATOLL_SITES.",
)


def run_name(_: click.Context, __: click.Parameter, value: str) -> str:
    """Callback of an argument RUN. Raises click.BadParameter where no run can have that name."""
    from eventlog.log import NAME

    if not NAME.match(value):
        raise click.BadParameter(
            f"{value!r} is no name that a run can have: a-z, 0-9 and -, at most 63 of them"
        )
    return value


def file_or_run(target: str) -> Path | str:
    """What an argument RUN|FILE means: the path, where there is such a file; else the name of a
    run. Raises click.UsageError where it can be neither."""
    from eventlog.log import NAME

    path = Path(target)
    if path.is_file():
        return path
    if not NAME.match(target):
        raise click.UsageError(f"{target}: no such file, and no name that a run can have")
    return target


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell completes where an argument is RUN|FILE: files, as it does by itself."""
    return [CompletionItem(incomplete, type="file")]


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of stdout. Numbers that JSON lacks (NaN, infinities) become null;
    what stdout cannot encode, or a terminal would act on, is escaped as JSON does."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    if not (text.isprintable() and _encodable(text)):
        text = json.dumps(_plain(value), allow_nan=False)
    click.echo(text)


def say(text: str) -> None:
    """Talk: a line on stderr."""
    click.echo(text, err=True)


class Meter:
    """Progress on stderr: one line that is rewritten on a terminal; elsewhere a line a phase, and
    of long ones a line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = ""
        self._clock, self._said_at = clock, clock()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say that `done` of `total` parts of `what` are done."""
        if self._terminal:
            self._rewrite(f"{what}: {done} of {total}")
        elif what != self._shown:
            say(f"{what} ({total})")
            self._shown = what

    def step(self, step: Step) -> None:
        """Say how far, how fast and until when."""
        if self._terminal:
            self._rewrite(step.text())
        elif step.what != self._shown or self._clock() - self._said_at > _EVERY_S:
            say(step.text())
            self._shown, self._said_at = step.what, self._clock()

    def _rewrite(self, line: str) -> None:
        click.echo("\r" + line.ljust(len(self._shown)), nl=False, err=True)
        self._shown = line

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown:
            say("")


def _encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)  # msgpack has more than JSON: a time, say
