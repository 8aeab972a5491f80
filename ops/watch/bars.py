"""The bars of the live view: progress towards the target, and the blocks of an epoch by state.

Each state has a colour and a sign of its own, so that the picture stands without colours; on a
console without Unicode the signs are ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from leases.states import AVAILABLE, DELIVERED, LEASED, MERGED, QUARANTINED, TRAINED, TRAINING
from ops.watch.scene import STATES, Epoch, Scene

SIGNS = {
    MERGED: "█#",
    DELIVERED: "▓D",
    TRAINED: "▒t",
    TRAINING: "░>",
    LEASED: "▁l",
    AVAILABLE: "·.",
    QUARANTINED: "××",
}
COLOURS = {
    MERGED: "green",
    DELIVERED: "cyan",
    TRAINED: "blue",
    TRAINING: "yellow",
    LEASED: "magenta",
    AVAILABLE: "dim",
    QUARANTINED: "red",
}
MAX_EPOCHS = 2  # open ones that are drawn: one ends while the next begins


def target(scene: Scene, width: int, plain: bool) -> Text:
    """How much of the target is done: numbers, and a bar in what is left of the line."""
    if scene.target_rounds is not None:
        text = f"{scene.version:,} of {scene.target_rounds:,} rounds, {scene.tokens:,} tokens"
    elif scene.target is not None:
        text = f"{scene.tokens:,} of {scene.target:,} tokens"
    else:
        text = f"{scene.tokens:,} tokens"
    line = Text(f"{text}  {int(scene.share * 100)} %  ")
    room = max(0, width - line.cell_len)
    done = int(room * scene.share)
    full, rest = "#-" if plain else "━─"
    line.append(full * done, "green").append(rest * (room - done), "dim")
    line.truncate(width, overflow="ellipsis")
    return line


def epochs(found: Sequence[Epoch], width: int, plain: bool) -> list[Text]:
    """Title, bar and legend of the current epoch, and of the next where both are open; of the last
    one where all are closed."""
    current = [epoch for epoch in found if not epoch.closed][:MAX_EPOCHS] or list(found[-1:])
    lines: list[Text] = []
    for epoch in current:
        lines.append(_title(epoch, width, plain))
        lines += _bar(epoch, width, plain)
    if current:
        lines.append(_legend(current, width, plain))
    return lines


def _title(epoch: Epoch, width: int, plain: bool) -> Text:
    line = "-" if plain else "─"
    what = f"{epoch.counts[MERGED]:,} of {epoch.blocks:,} blocks merged"
    what += ", closed" if epoch.closed else ""
    title = Text(f"{line} epoch {epoch.epoch}: {what} ".ljust(width, line), "dim")
    title.truncate(width, overflow="ellipsis")
    return title


def _bar(epoch: Epoch, width: int, plain: bool) -> list[Text]:
    """One cell a block, in the order of granting, where they fit into two lines; else each cell
    stands for many blocks of one state, and no state that occurs is left out."""
    if epoch.cells and len(epoch.cells) <= 2 * width:
        states: Sequence[str] = epoch.cells
    else:
        shares = allot([epoch.counts[state] for state in STATES], width)
        states = [state for state, cells in zip(STATES, shares, strict=True) for _ in range(cells)]
    lines = []
    length = -(-len(states) // max(1, -(-len(states) // width)))  # lines of equal length
    for first in range(0, len(states), length):
        line = Text(no_wrap=True)
        for state in states[first : first + length]:
            line.append(SIGNS[state][plain], COLOURS[state])
        lines.append(line)
    return lines


def allot(counts: Sequence[int], cells: int) -> list[int]:
    """Cells for each count, `cells` in all, in proportion; at least one where the count is not 0
    (as far as there are cells)."""
    total = sum(counts)
    if not total:
        return [0] * len(counts)
    shares = [count * cells / total for count in counts]
    given = [max(1, int(share)) if share else 0 for share in shares]
    while sum(given) != cells:
        step = 1 if sum(given) < cells else -1
        able = [i for i, cells_of in enumerate(given) if cells_of > (0 if step > 0 else 1)]
        if not able:
            break
        most = max(able, key=lambda i: step * (shares[i] - given[i]))
        given[most] += step
    return given


def _legend(current: Sequence[Epoch], width: int, plain: bool) -> Text:
    legend = Text(no_wrap=True)
    for state in STATES:
        number = sum(epoch.counts[state] for epoch in current)
        if number:
            legend.append(SIGNS[state][plain], COLOURS[state]).append(f" {state} {number:,}  ")
    legend.rstrip()
    legend.truncate(width, overflow="ellipsis")
    return legend
