"""The table of sites: as many columns as there is room for, the least telling given up first."""

from __future__ import annotations

from rich.text import Text

from ops.describe import clean
from ops.watch import bars
from ops.watch.scene import Site
from outer.waiting import span

WIDE = 96  # columns from which on all is shown
COLUMNS = ("site", "state", "life", "holds", "merged", "tokens/s", "loss", "heard", "version")
RIGHT = ("merged", "tokens/s", "loss", "heard", "version")
GIVEN_UP = ("life", "version", "merged", "holds", "heard", "loss", "tokens/s")  # in this order
PHASES = {"training": "yellow", "delivered": "cyan", "leaving": "magenta", "applying": "cyan"}
GONE = {"lost": "red", "unfit": "red", "trainer": "red"}


def rows(sites: tuple[Site, ...], width: int) -> list[Text]:
    """The head, then one line a site, those that are gone last."""
    shown = sorted(sites, key=lambda site: (site.state == "departed", site.site))
    table = [{name: Text(name, "dim") for name in COLUMNS}]
    table += [_row(site, width) for site in shown]
    names = list(COLUMNS)
    widths = {name: max(row[name].cell_len for row in table) for name in names}
    for name in GIVEN_UP:
        if sum(widths[name] for name in names) + len(names) - 1 > width:
            names.remove(name)
    return [_line(row, names, widths, width) for row in table]


def _line(row: dict[str, Text], names: list[str], widths: dict[str, int], width: int) -> Text:
    line = Text(no_wrap=True)
    for name in names:
        gap = " " * (widths[name] - row[name].cell_len)
        before, behind = (gap, "") if name in RIGHT else ("", gap)
        line.append(" " * bool(line.plain) + before).append_text(row[name]).append(behind)
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line


def _row(site: Site, width: int) -> dict[str, Text]:
    gone, wide = site.state == "departed", width >= WIDE
    style = "dim" if gone else ""
    phase = f"gone: {site.phase}" if gone else site.phase
    colour = GONE.get(site.phase, "dim") if gone else PHASES.get(phase, "")
    heard = "" if site.heard_s is None or gone else span(site.heard_s) + " ago" * wide
    name = Text(clean(site.site), f"bold {style}".strip())
    name.truncate(24 if wide else 16, overflow="ellipsis")
    return {
        "site": name,
        "state": Text(phase, colour),
        "life": Text(f"{site.life}" + (f" (#{site.incarnation})" if wide else ""), style),
        "holds": _held(site, 24 if wide else 16),
        "merged": Text(f"{site.blocks_merged:,}", style),
        "tokens/s": Text(f"{site.tokens_per_s:,.0f}" if site.tokens_per_s else ""),
        "loss": Text("" if site.loss is None else f"{site.loss:.3f}", style),
        "heard": Text(heard),
        "version": Text("" if site.version is None else str(site.version), style),
    }


def _held(site: Site, width: int) -> Text:
    """How many blocks of its leases it holds, and the first ones, each in its state's colour."""
    if not site.num_held:
        return Text("")
    text = Text(f"{site.num_held}:")
    for num, (epoch, block, state) in enumerate(site.held, 1):
        name = f" {epoch}:{block}"
        more = 2 * (num < site.num_held)  # room to say that there are others
        if text.cell_len + len(name) + more > width:
            text.append(" …")
            break
        text.append(name, bars.COLOURS[state])
    return text
