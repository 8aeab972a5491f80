"""`atoll audit`: replay a log and hold it against what a run promises."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ops import exits
from ops.output import Reach, broker_option, file_or_run, files, json_option, print_json

if TYPE_CHECKING:
    from eventlog.signatures import Anchor
    from leases.findings import Findings
    from leases.life import Life
    from ops.compared import Compared, Result
    from outer.verify import Deep

Outcome = tuple["Findings", "Deep | None"]
MAX_DIGITS = 18  # of an epoch's or a block's number; any such fits a database


class _Block(click.ParamType):
    """E:B, an epoch and a block of it."""

    name = "E:B"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        epoch, _, block = str(value).partition(":")
        if not (epoch.isdecimal() and block.isdecimal()):
            self.fail(f"{value!r} is no block; write EPOCH:BLOCK, such as 0:17", param, ctx)
        if max(len(epoch), len(block)) > MAX_DIGITS:
            self.fail(f"{value!r} is no block: no epoch and no block has such a number", param, ctx)
        return int(epoch), int(block)


@click.command()
@click.argument("target", metavar="RUN|FILE", shell_complete=files)
@click.option("--deep", is_flag=True, help="Recompute every version from the deltas, bit by bit.")
@click.option("--explain", is_flag=True, help="Say which blocks were reclaimed from whom, and why.")
@click.option(
    "--parent",
    metavar="RUN|FILE",
    shell_complete=files,
    help="Of a fork: compare where it says that it comes from with this log.",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The result of `atoll baseline`: say how far the newest evaluation is from it.",
)
@click.option("--block", type=_Block(), help="Show the life of block B of epoch E: 0:17.")
@click.option(
    "--anchor",
    metavar="FILE|LINE|RUN:SEQUENCE:DIGEST",
    help="What was published of the run, or a file of it: the log must be the one it says.",
)
@broker_option
@json_option
def audit(
    target: str,
    deep: bool,
    explain: bool,
    parent: str | None,
    baseline: Path | None,
    block: tuple[int, int] | None,
    anchor: str | None,
    broker: Reach,
    as_json: bool,
) -> None:
    """Replay a log and verify what the run promises.

    Every block merged at most once, in a closed epoch exactly once; by whom its lease allowed;
    with the weight that the data gives it; versions, digests and the log itself unbroken. A FILE
    needs no broker and, without --deep, no torch. Exit code 1 where a promise is broken or the file
    is damaged, naming the first wrong sequence; else 2 where the run has no such --block.

    A file proves that nothing in it was damaged, and through which event a later one attests it.
    Against forgery it proves what an --anchor covers (`atoll log anchor`), and, where the run names
    keys, what they signed.
    """
    from leases.life import Life

    found, published = file_or_run(target), _anchor(anchor)
    centralised = _baseline(baseline)
    life = Life(*block) if block else None
    if isinstance(found, Path):
        findings, went = _of_file(found, life, deep, published)
    else:
        findings, went = asyncio.run(_of_run(found, broker, life, deep, published))
    unlike = None if parent is None else _unlike(findings, parent, broker)
    compared = _compared(findings, centralised)
    ok = findings.ok and (went is None or went.ok) and not unlike
    if life is not None and ok:
        from ops import auditview

        if missing := auditview.no_such_block(life, findings):
            raise click.UsageError(missing)
    if as_json:
        whole = _as_json(findings, went, life, explain, ok)
        if unlike is not None:
            whole["parent"] = {"log": parent, "ok": not unlike, "what": unlike}
        if centralised is not None:
            whole["baseline"] = compared.as_json() if compared else None
        print_json(whole)
    else:
        _print(findings, went, life, explain, target)
        if unlike is not None:
            said = f"does not hold: {unlike}" if unlike else f"holds: {parent} says the same"
            click.echo(f"Its lineage {said}")
        if centralised is not None:
            from ops.compared import UNMEASURED

            click.echo(compared.line() if compared else UNMEASURED)
    if not ok:
        raise click.exceptions.Exit(exits.VIOLATION)


def _anchor(text: str | None) -> Anchor | None:
    """Raises AnchorInvalid."""
    from eventlog.signatures import Anchor, AnchorInvalid

    if text is None:
        return None
    if text.lstrip().startswith("{"):  # the line itself, too long for the name of a file
        return Anchor.parse(text)
    if ":" not in text and not Path(text).is_file():
        raise AnchorInvalid(f"{text}: no such file, nor what `atoll log anchor` prints")
    return Anchor.parse(Path(text).read_text() if Path(text).is_file() else text)


def _unlike(findings: Findings, parent: str, broker: Reach) -> str:
    """Why the parent's log does not bear a lineage out; '' where it does."""
    from ops.lineage import verify

    if findings.lineage is None:
        raise click.UsageError(f"run {findings.run} is no fork; leave --parent out")
    return asyncio.run(verify(findings.lineage, file_or_run(parent), broker))


def _baseline(path: Path | None) -> Result | None:
    """Read before the log is, so that a mistake is told at once. Raises BaselineUnreadable."""
    from ops.compared import load

    return None if path is None else load(path)


def _compared(findings: Findings, centralised: Result | None) -> Compared | None:
    from ops.compared import compare

    return None if centralised is None else compare(centralised, findings)


def _of_file(path: Path, life: Life | None, deep: bool, anchor: Anchor | None) -> Outcome:
    from ops.auditing import audited_file, bar, deep_file

    with bar("auditing") as progress, audited_file(path, life, progress) as audit:
        if anchor is not None:
            audit.hold_against(anchor)
        findings = audit.result()
        if not deep:
            return findings, None
        return findings, asyncio.run(deep_file(audit, path, progress))


async def _of_run(
    run: str, broker: Reach, life: Life | None, deep: bool, anchor: Anchor | None
) -> Outcome:
    from ops import auditing
    from ops.connect import opened

    async with opened(run, broker, moves_blobs=deep) as (log, blobs, _):
        with auditing.bar("auditing") as progress, auditing.opened_audit(run, life) as audit:
            await auditing.feed_run(audit, log, progress)
            if anchor is not None:
                audit.hold_against(anchor)
            went = await auditing.deep_run(audit, log, blobs, progress) if deep else None
            return audit.result(), went


def _as_json(
    findings: Findings, deep: Deep | None, life: Life | None, explain: bool, ok: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    whole = {**findings.as_json(), "ok": ok}
    if explain:
        whole |= findings.explained()
    if deep is not None:
        whole["deep"] = deep.as_json()
    if life is not None:
        whole["block"] = [asdict(moment) for moment in life.moments]
    return whole


def _print(
    findings: Findings, deep: Deep | None, life: Life | None, explain: bool, target: str
) -> None:
    from ops import auditview

    if life is not None:
        auditview.show_life(life, findings)
        return
    auditview.show(findings, target, deep)
    if explain:
        auditview.explain(findings)
