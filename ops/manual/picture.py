"""docs/states.svg: the life of a block, drawn from the table that the fold obeys.

The longest way from `available` stands in a row; a move back is an arc below it, a state that is
not on that way stands above the one that leads there.
"""

from __future__ import annotations

from collections.abc import Iterator

from leases.states import AVAILABLE, FINAL, MOVES

STEP, BOX, HIGH = 176, 104, 34  # pixels: from box to box, a box's width and height
LEFT, TOP, ROW = 16, 16, 104  # of the first box; the row's distance from the top
ARC = 30  # by how much a longer way back goes deeper
FONT = 'font-family="Helvetica, Arial, sans-serif"'
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img">
<title>The life of a block</title>
<desc>{said}</desc>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" \
orient="auto"><path d="M0 0 8 4 0 8z" fill="#52606d"/></marker></defs>
<rect width="{w}" height="{h}" rx="10" fill="#f7f9fb"/>
"""


def states() -> str:
    """The picture, as SVG."""
    row = _row()
    ways = _ways()
    depth = {way: number for number, way in enumerate(_back(row, ways), 1)}
    width = 2 * LEFT + STEP * (len(row) - 1) + BOX
    height = TOP + ROW + HIGH + ARC * len(depth) + 2 * TOP
    said = "; ".join(f"{old} to {new}: {moves}" for (old, new), moves in ways.items())
    parts = [HEAD.format(w=width, h=height, said=said)]
    for way, moves in ways.items():
        parts.append(_arrow(row, way, moves, depth.get(way, 0)))
    parts += _boxes(row)
    return "\n".join([*parts, "</svg>\n"])


def _row() -> list[str]:
    """The longest way from the first state that meets none twice."""

    def longest(state: str, met: list[str]) -> list[str]:
        onward = [new for (old, _), new in MOVES.items() if old == state and new not in met]
        ways = [longest(new, [*met, new]) for new in onward]
        return max(ways, key=len, default=met)

    return longest(AVAILABLE, [AVAILABLE])


def _ways() -> dict[tuple[str, str], str]:
    """(from, to) -> the moves that lead there."""
    ways: dict[tuple[str, str], str] = {}
    for (old, move), new in MOVES.items():
        ways[old, new] = f"{ways[old, new]}, {move}" if (old, new) in ways else move
    return ways


def _back(row: list[str], ways: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    """Ways back along the row, the shortest first."""
    back = [
        (row.index(old) - row.index(new), (old, new))
        for old, new in ways
        if old in row and new in row and row.index(new) < row.index(old)
    ]
    return [way for _, way in sorted(back)]


def _boxes(row: list[str]) -> Iterator[str]:
    for state in dict.fromkeys([*row, *MOVES.values()]):
        x, y = _place(row, state)
        edge = "#2f855a" if state in FINAL else "#2b6cb0"
        yield (
            f'<rect x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="8" fill="#ffffff" '
            f'stroke="{edge}" stroke-width="{2.5 if state in FINAL else 1.5}"/>'
        )
        yield _text(x + BOX / 2, y + 22, state, "#1f2933", 14)


def _arrow(row: list[str], way: tuple[str, str], moves: str, depth: int) -> str:
    """One way with its moves: along the row, back below it, or up to a state beside it."""
    (x, y), (to_x, to_y) = _place(row, way[0]), _place(row, way[1])
    half = BOX / 2
    if depth:
        low = y + HIGH + ARC * depth
        start, end = x + half, to_x + half + 12 * (depth - 1) - 18
        path = f"M{start:g} {y + HIGH} V{low} H{end:g} V{y + HIGH + 2}"
        label = _text(x + half - 6, low - 5, moves, "#52606d", 12, "end")
    elif to_y < y:
        path = f"M{x + half:g} {y} V{to_y + HIGH + 2}"
        label = _text(x + half + 8, (y + to_y + HIGH) / 2 + 4, moves, "#52606d", 12, "start")
    else:
        path = f"M{x + BOX} {y + HIGH / 2:g} H{to_x - 2}"
        label = _text((x + BOX + to_x) / 2, y + 10, moves, "#52606d", 12)
    return f'<path d="{path}" fill="none" stroke="#52606d" marker-end="url(#tip)"/>\n{label}'


def _place(row: list[str], state: str) -> tuple[int, int]:
    """Upper left corner of a state's box."""
    if state in row:
        return LEFT + STEP * row.index(state), TOP + ROW
    above = next(old for (old, _), new in MOVES.items() if new == state)
    return LEFT + STEP * row.index(above), TOP


def _text(x: float, y: float, text: str, fill: str, size: int, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" {FONT} font-size="{size}" fill="{fill}" '
        f'text-anchor="{anchor}">{text}</text>'
    )
