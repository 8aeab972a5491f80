"""Odd inputs for whatever reads what others wrote: bytes a little wrong, trees a little wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, -1, 1, 63, 64, 2**31, 2**48, 2**62, 2**63, 2**64, -(2**63), 1.0, 1e300, float("nan"))
OTHERS: tuple[object, ...] = (
    "",
    "F32",
    "\ud800",
    "\x1b[2J",
    None,
    True,
    [],
    {},
    [[]],
    [-1],
    [0, 2**62],
    [2**40, 2**40],
)
KEYS = ("", "/", "codes/one", "values/", "codec", "shapes", "\ud800", "dtype")
PIECES = (b"", b"\0" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"9" * 40, b"\x1b[2J", b'"', b"[" * 200)
Edit = tuple[int, float, bytes]

STEPS = st.lists(st.integers(0, 50), min_size=1, max_size=4)
EDITS: st.SearchStrategy[list[Edit]] = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.floats(0, 1),
        st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)),
    ),
    min_size=1,
    max_size=5,
)


def changed(tree: Any, steps: list[int], key: object, odd: object) -> Any:
    """The tree with one place, to which the steps lead, removed, added, or put otherwise."""
    if not steps or not isinstance(tree, dict | list) or not tree:
        return odd
    first, *rest = steps
    if isinstance(tree, list):
        at = first % len(tree)
        return [*tree[:at], changed(tree[at], rest, key, odd), *tree[at + 1 :]]
    at = sorted(tree, key=repr)[first % len(tree)]
    if first % 7 == 0:
        return {name: one for name, one in tree.items() if name != at}
    if first % 7 == 1:
        return {**tree, key: tree[at]}
    return {**tree, at: changed(tree[at], rest, key, odd)}


def edited(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The bytes after some edits, each at a share of their length: put over, put in, cut out, cut
    off, said twice, or one bit flipped."""
    found = bytearray(data)
    for kind, share, piece in edits:
        at = int(share * len(found))
        if kind == 0:
            found[at : at + len(piece)] = piece
        elif kind == 1:
            found[at:at] = piece
        elif kind == 2:
            del found[at : at + 1 + len(piece)]
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            found[at:at] = found[max(0, at - 40) : at]
        elif at < len(found):
            found[at] ^= 1 << (len(piece) % 8)
    return bytes(found)
