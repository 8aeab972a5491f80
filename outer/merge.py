"""The merge of a round and the outer step, the same bits everywhere, piece by piece.

    D = Σ wᵢΔᵢ + e          in the order of the cut
    publish Q(D), d = dec(Q(D)), e ← D − d
    m ← μm + d,  θ ← θ − η(d + μm),  e ← e + what θ's rounding left undone of that

What encoding and rounding lose stays in the residual e and comes with the next update, so nobody's
progress is rounded away, and everyone who has Q(D) can take the same step.

All of this happens to one piece of a tensor after the other, by several threads, while the piece is
in the cache, and its digests are made there too. So a merge needs, beside θ, m and e, the memory of
a few pieces, however many deltas there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outer import digests
from outer.codecs import DeltaInvalid, Opened, Writer
from outer.compiled import compiled
from outer.digests import PieceDigest, TensorsDigest
from outer.nesterov import Rule, settle, step
from outer.pieces import Array, flat, over_tensors, split
from outer.versions import Digests, OuterState

_SPAN = 1 << 16  # elements that are still in the cache when they are hashed
Members = Sequence[tuple[Path, float]]  # files of deltas with their weights, in the cut's order


class _Parts(NamedTuple):
    """θ, m and e of one tensor, as rows."""

    theta: Array
    momentum: Array
    residual: Array


def take_step(
    state: OuterState,
    deltas: Members,
    *,
    rule: Rule,
    codec: str,
    update_path: Path,
    before: Callable[[str], None] = lambda _: None,
) -> tuple[OuterState, Digests]:
    """Merge the deltas of a cut, write the update Q(D) to `update_path`, and take the step: the
    next version, and its digests. `before(name)` is called before that tensor is changed.

    `state` is consumed: the next version has its memory. It is untouched where a delta's head does
    not fit the model (DeltaInvalid) or there is no delta (ValueError). Where anything is raised
    later (DeltaInvalid, NonFinite, OSError) it is of no version any more, to be recovered from log
    and blobs. Then no update is left behind.
    """
    if not deltas:
        raise ValueError("a round without a delta has no step to take")
    model = (state.parameters, state.momentum, state.residual)
    wholes = [TensorsDigest() for _ in model]
    with ExitStack() as stack:
        members = [
            (stack.enter_context(Opened(path, state.parameters)), np.float32(weight))
            for path, weight in deltas
        ]
        shapes = {name: tensor.shape for name, tensor in state.parameters.items()}
        update = stack.enter_context(Writer(update_path, codec, shapes))
        rows = {name: _Parts(*(flat(part[name]) for part in model)) for name in sorted(shapes)}

        def due() -> Iterator[tuple[str, int]]:
            for name, parts in rows.items():
                before(name)
                yield name, parts.theta.size

        def work(name: str, piece: slice) -> tuple[bytes, ...]:
            return _merge_piece(name, piece, rows[name], members, update, rule)

        for name, hashes in over_tensors(due(), work, size=digests.PIECE):
            for i, whole in enumerate(wholes):
                whole.add(name, model[i][name], [found[i] for found in hashes])
    return OuterState(state.version + 1, *model), Digests(*(one.hexdigest() for one in wholes))


def apply_update(
    parameters: Mapping[str, Tensor], momentum: Mapping[str, Tensor], update_path: Path, rule: Rule
) -> str:
    """What a site does with a published update: the same step in place, without the residual; the
    digest of the new parameters.

    Parameters and momentum are fp32 on the CPU. Raises DeltaInvalid, both untouched, where the
    file's head is torn, foreign or of other names or shapes; RuntimeError where the file turns out
    bad only later: then they are of no version any more.
    """
    with Opened(update_path, parameters) as update:
        try:
            return _apply(parameters, momentum, update, rule)
        except DeltaInvalid as error:
            raise RuntimeError(f"an update is applied by half: {error}") from error


def accumulate(total: Array | None, delta: Array, weight: np.float32) -> Array:
    """total + weight·delta, in place of `total`; the first term, in place of `delta`."""
    if total is None:
        term: Array = np.multiply(delta, weight, out=delta)
        return term
    _accumulate(total, delta, weight)
    return total


@compiled
def _accumulate(total: Array, delta: Array, weight: np.float32) -> None:
    for i in range(total.size):
        total[i] += delta[i] * weight


def _apply(
    parameters: Mapping[str, Tensor], momentum: Mapping[str, Tensor], update: Opened, rule: Rule
) -> str:
    digest = TensorsDigest()
    rows = {name: (flat(parameters[name]), flat(momentum[name])) for name in sorted(parameters)}

    def work(name: str, piece: slice) -> bytes:
        moves, one = _read(update, name, piece), PieceDigest()
        theta, m = (row[piece] for row in rows[name])
        for part in split(slice(0, len(moves)), _SPAN):
            step(theta[part], m[part], moves[part], rule)
            one.add(theta[part])
        return one.digest()

    sizes = ((name, theta.size) for name, (theta, _) in rows.items())
    for name, hashes in over_tensors(sizes, work, size=digests.PIECE):
        digest.add(name, parameters[name], hashes)
    return digest.hexdigest()


def _merge_piece(
    name: str,
    piece: slice,
    rows: _Parts,
    members: Sequence[tuple[Opened, np.float32]],
    update: Writer,
    rule: Rule,
) -> tuple[bytes, ...]:
    """One piece of one tensor: D, Q(D), the step; the digests of its θ, m and e."""
    theta, momentum, residual = (row[piece] for row in rows)
    total: Array | None = None
    for member, weight in members:
        total = accumulate(total, _read(member, name, piece), weight)
    assert total is not None
    np.add(total, residual, out=residual)
    update.add_piece(name, piece.start, torch.from_numpy(residual), total)
    hashes = PieceDigest(), PieceDigest(), PieceDigest()
    for part in split(slice(0, len(total)), _SPAN):
        settle(theta[part], momentum[part], residual[part], total[part], rule)
        for one, row in zip(hashes, (theta, momentum, residual), strict=True):
            one.add(row[part])
    return tuple(one.digest() for one in hashes)


def _read(file: Opened, name: str, piece: slice) -> Array:
    out: Array = np.empty(piece.stop - piece.start, np.float32)
    file.piece(name, piece.start, out)
    return out
