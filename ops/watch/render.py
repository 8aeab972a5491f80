"""Draws a scene for a console of any width: text only, nothing a log says is taken as markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ops.describe import clean
from ops.watch import bars
from ops.watch.scene import Scene, Site
from ops.watch.words import Told
from outer.waiting import span

MIN_TOLD = 3  # events that a small screen shows at least
MIN_SITES = 5
WIDE = 96  # columns from which on all is shown
PHASES = {"training": "yellow", "delivered": "cyan", "leaving": "magenta"}
RUN_STATES = {
    "running": "green",
    "paused": "yellow",
    "stopping": "yellow",
    "finished": "bold green",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of a run. `height`: lines it may take; None for as many as it needs."""

    scene: Scene
    height: int | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        width, plain = options.max_width, options.ascii_only
        scene = self.scene
        top = [*_header(scene, width, plain), *_next(scene, width, console)]
        top.append(_title("sites", width, plain))
        middle = [*bars.epochs(scene.epochs, width, plain)]
        waits = _waits(scene, width, console)
        around = len(top) + 1 + len(middle) + 2
        num_sites, num_waits, num_told = _fit(self.height, around, scene, len(waits))
        yield from top
        yield _sites(scene.sites, num_sites, width)
        yield from middle
        if waits:
            yield _title("waiting", width, plain)
            yield from waits if num_waits == len(waits) else waits[: num_waits - 1]
            if num_waits < len(waits):
                yield _line(f"… {len(waits) - num_waits + 1} more lines", width, "dim")
        yield _title("events (UTC)", width, plain)
        for told in scene.told[len(scene.told) - num_told :]:
            yield _event(told, width)


def _fit(height: int | None, around: int, scene: Scene, waits: int) -> tuple[int, int, int]:
    """How many sites, lines of waiting and events find room: events give way first, then sites
    down to a few, then what is waited for."""
    sites, told = len(scene.sites), len(scene.told)
    if height is None:
        return sites, waits, told
    free = height - around
    least = min(told, MIN_TOLD)
    waits = min(waits, max(1, free - least - min(sites, MIN_SITES)))
    sites = min(sites, max(1, free - waits - least))
    return sites, waits, min(told, max(0, free - waits - sites))


def _title(name: str, width: int, plain: bool) -> Text:
    line = "-" if plain else "─"
    return _line(f"{line} {name} ".ljust(width, line), width, "dim")


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(text, style, no_wrap=True, overflow="ellipsis", end="\n")
    line.truncate(width, overflow="ellipsis")
    return line


def _header(scene: Scene, width: int, plain: bool) -> list[Text]:
    first = Text.assemble(
        ("atoll ", "bold"),
        (clean(scene.run) or "?", "bold cyan"),
        "  ",
        (
            scene.state if scene.state != "none" else "not created",
            RUN_STATES.get(scene.state, "red"),
        ),
        f"  round {scene.round}  version {scene.version}",
    )
    who = f"  led by {clean(scene.coordinator)}, term {scene.term}" if scene.term else ""
    first.append(who, "dim")
    first.truncate(width, overflow="ellipsis")
    lines = [first, bars.target(scene, width, plain), _facts(scene, width)]
    if scene.state == "finished":
        lines.append(_line(clean(scene.reason), width, "bold"))
    return lines


def _next(scene: Scene, width: int, console: Console) -> list[Text]:
    """What a person can do, wrapped: a command that is cut off is none."""
    texts = (Text(clean(f"next: {line}"), "bold magenta") for line in scene.next)
    return [line for text in texts for line in text.wrap(console, max(10, width))]


def _facts(scene: Scene, width: int) -> Text:
    parts = ["loss " + (f"{scene.loss:.3f}" if scene.loss is not None else "not known yet")]
    if scene.perplexity:
        version, perplexity = scene.perplexity
        parts.append(f"held-out perplexity {perplexity:.4g} (version {version})")
    parts.append(f"{scene.tokens_per_s:,.0f} tokens/s")
    if scene.eta_s is not None:
        soon = scene.eta_s < 1
        parts.append("done any moment" if soon else f"done in about {span(round(scene.eta_s))}")
    if scene.overhead is not None:
        parts.append(f"stalled {scene.overhead:.1%} of the time")
    return _line("  ".join(parts), width)


def _sites(sites: tuple[Site, ...], room: int, width: int) -> Table:
    """One row a site; those that are gone give way first."""
    shown = sorted(sites, key=lambda site: (site.state == "departed", site.site))
    hidden = len(shown) - room + 1 if len(shown) > room else 0
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    names = ["site", "state", "life", "holds", "merged", "tokens/s", "loss", "heard", "version"]
    for name in names:
        right = name in ("merged", "tokens/s", "loss", "heard", "version")
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if right else "left",
            max_width=(24 if width >= WIDE else 16) if name in ("site", "holds") else None,
        )
    for site in shown[: len(shown) - hidden]:
        table.add_row(*_row(site, width), style="dim" if site.state == "departed" else "")
    if hidden:
        table.add_row(Text(f"… {hidden} more", "dim"))
    return table


def _row(site: Site, width: int) -> list[Text]:
    gone = site.state == "departed"
    phase = f"gone: {site.phase}" if gone else site.phase
    life = f"{site.life}" + (f" (#{site.incarnation})" if width >= WIDE else "")
    heard = "" if site.heard_s is None or gone else span(site.heard_s) + " ago" * (width >= WIDE)
    return [
        Text(site.site, "bold"),
        Text(phase, PHASES.get(phase, "")),
        Text(life),
        _held(site),
        Text(f"{site.blocks_merged:,}"),
        Text(f"{site.tokens_per_s:,.0f}" if site.tokens_per_s else ""),
        Text("" if site.loss is None else f"{site.loss:.3f}"),
        Text(heard),
        Text("" if site.version is None else str(site.version)),
    ]


def _held(site: Site) -> Text:
    """How many blocks of its leases it holds, and the first ones, each in its state's colour."""
    if not site.num_held:
        return Text("")
    text = Text(f"{site.num_held}: ")
    for epoch, block, state in site.held:
        text.append(f"{epoch}:{block}", bars.COLOURS[state])
        text.append(" ")
    text.rstrip()
    return text


def _waits(scene: Scene, width: int, console: Console) -> list[Text]:
    """Sentences, wrapped; what goes on is indented."""
    lines: list[Text] = []
    for wait in scene.waiting:
        rest = clean(f" {wait.what}" + (f", {wait.until}" if wait.until else ""))
        text = Text.assemble((clean(wait.who), "bold yellow"), rest)
        for number, line in enumerate(text.wrap(console, max(10, width - 2))):
            line.rstrip()
            lines.append(Text.assemble("  " if number else "", line))
    return lines


def _event(told: Told, width: int) -> Text:
    text = Text.assemble((told.clock(), "dim"), "  ", (told.who, "bold"), " ")
    text.append(told.what, "red" if told.void else "")
    if told.why():
        text.append(f" — {told.why()}", "dim")
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text
