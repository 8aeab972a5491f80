"""The command `atoll`: one root, subcommands that are imported only when they are called.

`atoll --help` answers from the table below and imports nothing but click. Whatever goes wrong
ends here: one clear line on stderr and an exit code of `ops.exits`, never a traceback for
something that a person can mend.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from eventlog.errors import AtollError
from ops import exits

# name -> (module, command in it, short help); a test compares the help with the command's own
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": (
        "ops.commands.demo",
        "demo",
        "Train a small model over three sites, with a crash and a late join; audit it.",
    ),
    "run": (
        "ops.commands.run",
        "run",
        "Create, list, show and fork runs; pause, resume and stop one.",
    ),
    "coordinate": (
        "ops.commands.coordinate",
        "coordinate",
        "Coordinate RUN, or stand by until its coordinator is gone.",
    ),
    "site": ("ops.commands.site", "site", "Take part in a run."),
    "watch": (
        "ops.commands.watch",
        "watch",
        "Watch a run: its sites, blocks and events, and what it waits for and until when.",
    ),
    "eval": (
        "ops.commands.eval",
        "eval_",
        "Measure held-out loss, perplexity and bits per byte of a version.",
    ),
    "export": (
        "ops.commands.export",
        "export",
        "Write a version as a Hugging Face directory.",
    ),
    "baseline": (
        "ops.commands.baseline",
        "baseline",
        "Train the model of CONFIG centralised: same blocks and tokens, one optimizer.",
    ),
    "metrics": (
        "ops.commands.metrics",
        "metrics",
        "Write a run's numbers to files that other tools read.",
    ),
    "audit": (
        "ops.commands.audit",
        "audit",
        "Replay a log and verify what the run promises.",
    ),
    "report": (
        "ops.commands.report",
        "report",
        "Tell a run as one page with pictures, which needs no network.",
    ),
    "doctor": (
        "ops.commands.doctor",
        "doctor",
        "Say what is wrong with this machine and its way to the broker, and what to do.",
    ),
    "place": (
        "ops.commands.place",
        "place",
        "Ask the sites' queues for compute, as any user may: agents, a planner, and why.",
    ),
    "simulate": (
        "ops.commands.simulate",
        "simulate",
        "Run SCENARIO in a virtual world: real coordinator and hubs, virtual time and faults.",
    ),
    "bench": (
        "ops.commands.bench",
        "bench",
        "Measure NAME on this machine, in one run, against a named limit or peer.",
    ),
    "log": ("ops.commands.log", "log", "Show, follow, export, import and verify logs."),
    "broker": ("ops.commands.broker", "broker", "Run the broker that keeps logs and blobs."),
    "data": ("ops.commands.data", "data", "Build and verify training data."),
    "completion": (
        "ops.commands.completion",
        "completion",
        "Print what makes SHELL complete atoll's commands and options.",
    ),
}

# extra -> its top-level modules, which some commands need and the plain install lacks
EXTRAS = {
    "train": {"numpy", "safetensors", "tokenizers", "torch", "transformers"},
    "report": {"matplotlib"},
    "metrics": {"prometheus_client"},
}


class OutputClosed(Exception):
    """Whoever read our output has gone, as `head` does."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, which is the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the table alone."""
        rows = [(name, short_help) for name, (_, _, short_help) in COMMANDS.items()]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """As click does, but a closed pipe is no failure of a check (click would exit with 1)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosed from error


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib import metadata

        try:
            click.echo(f"atoll {metadata.version('atoll')}")
        except metadata.PackageNotFoundError:
            click.echo("atoll, not installed: run from its checkout")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def root() -> None:
    """Pre-train one language model on compute allocations at several supercomputers.

    Everything that happens is an event in one append-only log per run. Data goes to stdout, talk
    to stderr; commands that print data know --json.

    To see it all: `atoll demo`. A run of your own is, in this order: `atoll broker serve`, `data
    build`, `run create`, `coordinate`, `site run` once a site, and `watch`.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own); its exit code. Never raises for what a
    person can mend: usage, an operating error, a file that is not there, Ctrl-C."""
    try:
        result = root.main(arguments, prog_name="atoll", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else exits.GOOD
    except click.ClickException as error:
        _say_usage(error)
        return exits.USAGE
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return exits.INTERRUPTED
    except (OutputClosed, BrokenPipeError):
        sys.stdout = None  # or the interpreter would complain about flushing it at its end
        return exits.INTERRUPTED
    except AtollError as error:
        _say(str(error))
        return exits.code_of(error)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((name for name, holds in EXTRAS.items() if module in holds), None)
        if extra is None:
            raise
        _say(f"this needs {module}: install the extra `{extra}` (pip install atoll[{extra}])")
        return exits.INVALID
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return exits.INVALID


def _say(text: str) -> None:
    """Talk: each line on stderr behind the command's name, in colour only where that is welcome."""
    plain = "NO_COLOR" in os.environ
    for line in text.splitlines():
        click.echo(("atoll: " if plain else click.style("atoll: ", fg="red")) + line, err=True)


def _say_usage(error: click.ClickException) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    where = f" (see `{context.command_path} --help`)" if context else ""
    _say(" ".join(error.format_message().split()).rstrip(".") + where)


def main() -> NoReturn:
    """The console script."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever the locale can write
    sys.exit(run())
