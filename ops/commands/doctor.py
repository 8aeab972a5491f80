"""`atoll doctor`: what is wrong here, why it matters, what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ops import exits
from ops.output import Reach, broker_option, json_option, print_json, run_name, say


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return value if value is None else run_name(context, parameter, value)


@click.command()
@click.argument("run", required=False, callback=_name)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tgz",
    help="Also write what a helper needs: findings, logs, stacks of trainers; no secrets.",
)
@broker_option
@json_option
def doctor(run: str | None, bundle: Path | None, broker: Reach, as_json: bool) -> None:
    """Say what is wrong with this machine and its way to the broker, and what to do.

    With RUN, also the rate down, the broker's clock, and how long an exchange of that run takes
    from here. It stores nothing at the broker. Exit code 1 where something will not work.
    """
    from ops.doctor import link, machine
    from ops.doctor.bundle import write_bundle
    from ops.home import Home

    home = Home.find()
    findings = list(machine.look(home.root))

    async def reach() -> None:
        findings.extend([one async for one in link.look(broker, run)])

    asyncio.run(reach())
    bad = any(one.level == "bad" for one in findings)
    if as_json:
        print_json({"ok": not bad, "run": run, "findings": [one.as_json() for one in findings]})
    else:
        _print(findings)
    if bundle is not None:
        names = write_bundle(bundle, findings, home)
        say(f"{bundle}: {len(names)} files; look through it before you send it")
    if bad:
        raise click.exceptions.Exit(exits.VIOLATION)


def _print(findings: list) -> None:
    from rich.text import Text

    from ops.describe import clean
    from ops.terminal import Console

    console = Console(highlight=False, soft_wrap=True)
    signs = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "bold red")}
    width = max(len(one.check) for one in findings) + 1
    for one in findings:
        sign, style = signs[one.level]
        console.print(Text.assemble((f"{sign:<5}", style), (f"{one.check:<{width}}", "bold"),
                                    clean(one.what)))  # fmt: skip
        if one.level != "good":
            console.print(Text(f"      why: {clean(one.why)}", "dim"))
        if one.todo:
            console.print(Text(f"      do:  {clean(one.todo)}", "magenta"))
