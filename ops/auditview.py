"""An audit's findings for people: the verdict first, then the figures, then where to look."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from leases.evaluators import Evaluated
from leases.findings import Findings, Share
from leases.life import Life
from leases.overhead import SECONDS as OVERHEADS
from ops.terminal import Console

if TYPE_CHECKING:
    from outer.verify import Deep

_VARYING = re.compile(r"'[^']*'|\b[0-9a-f]{12,}\b|\d+(:\d+)?")
_MAX_DEPARTURES = 40
_MAX_LINES = 20  # of violations; --json has them all


def show(found: Findings, target: str, deep: Deep | None) -> None:
    """Print the verdict and everything that supports it."""
    console = _console()
    _verdict(console, found, deep)
    _figures(console, found)
    if found.epochs:
        console.print(_epochs(found))
    _violations(console, found)
    _voids(console, found)
    if deep is not None:
        console.print(("[green]deep[/]: " if deep.ok else "[red]deep[/]: ") + escape(deep.what))
    for line in _next(found, target, deep):
        console.print(f"[dim]next:[/] {escape(line)}")


def explain(found: Findings) -> None:
    """Print what share of the granted blocks was taken back, from whom, and why."""
    console = _console()
    console.print(
        f"\n{found.blocks_reclaimed:,} of {found.blocks_granted:,} granted blocks were reclaimed "
        f"({found.reclaimed_share:.1%}): each was granted again, or the run ended. "
        f"Stolen before they were started: {found.blocks_stolen:,}."
    )
    table = Table(box=box.SIMPLE)
    columns = ("site", "granted", "merged", "stolen", "reclaimed", "share", "unstarted", "started")
    for column in (*columns, "why"):
        table.add_column(column, justify="left" if column in ("site", "why") else "right")
    for one in found.shares:
        table.add_row(*_share(one))
    console.print(table)
    _departures(console, found)
    if found.overheads:
        console.print(_overheads(found))


def _overheads(found: Findings) -> Table:
    """Seconds of the exchange a round, and the share of wall time that trainers stood still."""
    table = Table(box=box.SIMPLE, title="a round of the exchange, mean seconds; stall in all")
    for column in ("site", "rounds", *OVERHEADS, "stall of wall"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for one in found.overheads:
        means = (f"{one.seconds[name] / one.num_rounds:.2f}" for name in OVERHEADS)
        table.add_row(one.site, f"{one.num_rounds:,}", *means, f"{one.share:.1%}")
    return table


def _departures(console: Console, found: Findings) -> None:
    """What each departure gave back, the newest ones where there are many."""
    if not found.departures:
        console.print("No site has departed.")
        return
    table = Table(box=box.SIMPLE)
    for column in ("departure at", "site", "code", "unstarted", "started"):
        table.add_column(column, justify="left" if column in ("site", "code") else "right")
    for one in found.departures[-_MAX_DEPARTURES:]:
        figures = (f"{one.unstarted:,}", f"{one.started:,}")
        table.add_row(f"{one.sequence:,}", one.site, one.code, *figures)
    console.print(table)
    more = len(found.departures) - _MAX_DEPARTURES
    if more > 0:
        console.print(f"and {more:,} earlier departures (--json has all)")


def no_such_block(life: Life, found: Findings) -> str:
    """Why there is nothing to tell of a block; '' where the run has it, or an event names it."""
    if life.moments:
        return ""
    blocks = {one.epoch: one.blocks for one in found.epochs}
    if life.epoch in blocks:
        if life.block < blocks[life.epoch]:
            return ""
        why = f"epoch {life.epoch} has blocks 0 to {blocks[life.epoch] - 1}"
    else:
        begun = f"epochs 0 to {max(blocks)} have" if len(blocks) > 1 else "only epoch 0 has"
        why = f"{begun} begun" if blocks else "it was never created"
    return f"run {found.run} has no block {life.epoch}:{life.block}: {why}"


def show_life(life: Life, found: Findings) -> None:
    """Print every event that touched one block, and what the fold made of it."""
    console = _console()
    if not life.moments:
        said = no_such_block(life, found)
        at_rest = f"block {life.epoch}:{life.block}: no event of run {found.run} names it"
        console.print(said or f"{at_rest}; nobody was given it")
        return
    table = Table(box=box.SIMPLE, title=f"block {life.epoch}:{life.block} of run {found.run}")
    for column in ("sequence", "time (UTC)", "source", "event", "block", "says"):
        side: Literal["left", "right"] = "right" if column == "sequence" else "left"
        table.add_column(column, justify=side, no_wrap=column != "says")
    for one in life.moments:
        move = one.after if one.after == one.before else f"{one.before} → {one.after}"
        says = escape(one.says) + (f" [red]void: {escape(one.void)}[/]" if one.void else "")
        table.add_row(str(one.sequence), one.time[11:23], one.source, one.type, move, says)
    console.print(table)
    console.print(life.summary())
    for wrong in found.violations:
        if wrong.block == f"{life.epoch}:{life.block}":
            console.print(f"[red]violation[/] at {wrong.sequence}: {escape(wrong.what)}")


def _console() -> Console:
    """Whole lines; in a pipe, which has no width, tables get enough to say everything."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console


def _verdict(console: Console, found: Findings, deep: Deep | None) -> None:
    if found.ok and (deep is None or deep.ok):
        console.print(f"[bold green]The audit of run {escape(found.run)} holds.[/]")
        return
    num = len(found.violations)
    what = f"{num} violation{'s' * (num != 1)}" if num else "a version that cannot be recomputed"
    console.print(f"[bold red]The audit of run {escape(found.run)} found {what}.[/]")


def _figures(console: Console, found: Findings) -> None:
    merged = sum(one.merged for one in found.epochs)
    closed = sum(one.closed for one in found.epochs)
    console.print(
        f"Checked: {found.events:,} events; {found.versions:,} version"
        f"{'s' * (found.versions != 1)}, each one step behind the last; {merged:,} merged blocks, "
        "each against its lease, its weight and every other merge; "
        f"{closed} closed epoch{'s' * (closed != 1)}."
    )
    rest = found.last_sequence - found.anchored_through
    last = "the last event stands" if rest == 1 else f"the last {rest:,} events stand"
    tail = f"; {last} on this copy's word" if rest else ""
    console.print(f"A later event attests the log through {found.anchored_through:,}{tail}.")
    if found.published is not None:
        console.print(f"It is the log that was published, through {found.published:,}.")
    if found.lineage:
        come = found.lineage
        console.print(
            f"Forked from version {come.version} of run {come.run}, {come.tokens:,} tokens into it "
            f"(parameters {come.parameters_digest[:12]})."
        )
    if found.evaluations:
        behind = found.evaluations[-1].sequence > found.anchored_through
        tail = "; nothing attests that" if behind else ""
        console.print(f"Held-out text: {escape(_evaluated(found.evaluations))}{tail}.")
    if found.signatures:
        console.print(f"Signatures of named keys: {found.signatures:,}, each verified.")


def _evaluated(evaluations: list[Evaluated]) -> str:
    """The newest evaluation, and the best where that is another."""
    newest, best = evaluations[-1], min(evaluations, key=lambda one: one.loss)
    who = newest.source.removeprefix("site.")
    said = (
        f"version {newest.version} has loss {newest.loss:.4f} nats, perplexity "
        f"{newest.perplexity:.4g}, {newest.bits_per_byte:.3f} bits per byte, by {who}"
    )
    if best.version == newest.version:
        return said
    return f"{said}; the best was version {best.version} with {best.loss:.4f}"


def _epochs(found: Findings) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    columns = ("blocks", "merged", "open", "duplicated", "lost", "quarantined", "reclaimed")
    table.add_column("epoch", justify="right")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("closed")
    for one in found.epochs:
        cells = [_cell(column, getattr(one, column)) for column in columns]
        table.add_row(str(one.epoch), *cells, "yes" if one.closed else "no")
    return table


def _cell(column: str, num: int) -> str:
    bad = num and column in ("duplicated", "lost")
    return f"[red]{num:,}[/]" if bad else f"{num:,}"


def _violations(console: Console, found: Findings) -> None:
    for one in found.violations[:_MAX_LINES]:
        head = f"{one.promise} {one.rule} at {one.sequence}"
        whom = [one.site] if one.site else []
        whom += [f"block {one.block}"] if one.block else []
        head += f" ({', '.join(whom)})" if whom else ""
        due = f"; should have been: {one.expected}" if one.expected else ""
        console.print(f"[red]violation[/] {escape(head)}: {escape(one.what + due)}")
    if len(found.violations) > _MAX_LINES:
        console.print(f"and {len(found.violations) - _MAX_LINES} more (--json has all)")


def _voids(console: Console, found: Findings) -> None:
    if not found.void:
        console.print("No event is void.")
        return
    num = len(found.void)
    what = "1 event is" if num == 1 else f"{num:,} events are"
    console.print(f"{what} void: recorded, without effect.")
    kinds = Counter((one.type, _VARYING.sub("…", one.why)) for one in found.void)
    for (kind, why), num in kinds.most_common(_MAX_LINES):
        console.print(f"  {num:>5,} × {escape(kind)}: {escape(why)}")


def _next(found: Findings, target: str, deep: Deep | None) -> list[str]:
    if found.violations:
        first = found.violations[0]
        lines = [f"atoll log show {target} --after {max(0, first.sequence - 3)}"]
        if first.rule in ("R18", "R19"):
            lines.append(f"export it again, or ask for another copy: atoll log export {found.run}")
        return lines
    if deep is None and found.versions:
        return [f"atoll audit {target} --deep recomputes every version from the deltas"]
    return []


def _share(one: Share) -> tuple[str, ...]:
    num = sum(one.reclaimed.values())
    share = f"{num / one.granted:.1%}" if one.granted else "–"
    why = ", ".join(f"{cause}: {count:,}" for cause, count in one.reclaimed.items())
    figures = (f"{value:,}" for value in (one.granted, one.merged, one.stolen, num))
    return (one.site, *figures, share, f"{one.unstarted:,}", f"{one.started:,}", why)
