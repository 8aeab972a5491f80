"""Error feedback: what a site's encoding loses goes with its next delta (arXiv:1901.09847).

    encode     t = Δ + r, written as Q(t); t − dec(Q(t)) is pending
    merged     r ← what was pending
    refused    r stays, and what was pending is dropped: nothing refused is ever delivered

Where one delta is still undecided when the next is encoded (a predecessor's, or at a departure),
which r it will leave is not known: the next is encoded without r, and what it loses is *added* to r
when it is merged and all before it are decided. So every bit that was trained is delivered once.

The residuals are files of the site's own folder, of which one piece is read at a time: they take no
memory but the system's cache, a decision is a small file written, and a new incarnation finds them.
A lossless codec has none.

How it is used. The trainer has one `Feedback` for its folder and passes it what a delta is made of;
the hub gives each delta a label when it cuts it, by which it finds the delta in the log again (say
the incarnation and its first block with its lease), and calls `settle` when the log has decided. A
new incarnation asks `pending` first: what the log has merged, it settles so; what is not in the log
and can no longer come there, it settles as refused; what is undecided, it leaves.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from outer import codecs, tensorfile
from outer.norms import Norms, NormsMeter
from outer.packing import CODECS
from outer.pieces import over_tensors
from outer.tensorfile import Entry, Reader, TensorFileInvalid

Values = Callable[[str, slice], Tensor]  # a flat piece of the tensor of a name, fp32

_STATE = "feedback.json"
_SPARE = "spare"  # the residual that was in effect before: the next one is written over it
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True)
class _Pending:
    """One delta that may leave a residual. file: of it, None where it leaves none; adds: to the
    residual that is then in effect, instead of replacing it; merged: None while undecided."""

    label: str
    file: str | None
    adds: bool
    merged: bool | None = None


class Feedback:
    """The residual of one site, in a folder of its own, for tensors of these shapes (by name).

    notice: what was wrong with what the folder held, so that it starts without; else ''. Files are
    written whole or not at all, but not synced: what was written before the machine was last
    started is not used.
    """

    def __init__(self, folder: Path, shapes: Mapping[str, Sequence[int]]) -> None:
        self._folder = folder
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._residual: str | None = None
        self._pending: list[_Pending] = []
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.notice = self._load()
        self._sweep()

    @property
    def pending(self) -> tuple[str, ...]:
        """Labels of the deltas that are not decided, in the order in which they were encoded."""
        return tuple(one.label for one in self._pending if one.merged is None)

    @property
    def is_empty(self) -> bool:
        """Whether there is no residual, and none can come of a delta that is not decided."""
        return self._residual is None and not self._pending

    def copy(self, folder: Path) -> None:
        """Copy all of it to a new folder, where `adopt` finds it. Raises OSError."""
        folder.mkdir(parents=True)
        for file in (self._residual, *(one.file for one in self._pending)):
            if file is not None:
                shutil.copyfile(self._folder / file, folder / file)
        (folder / _STATE).write_text(json.dumps(self._state(self._residual, self._pending)))

    def adopt(self, folder: Path) -> None:
        """Go on with a copy, in place of what there is; `notice` says why where it is not used.
        Whoever calls knows that nothing of it was delivered meanwhile. Raises OSError."""
        self.clear()
        for path in folder.iterdir():
            shutil.copyfile(path, self._folder / path.name)
        self.notice = self._load(any_boot=True)
        if self.notice:
            self.clear()
        else:
            self._save(self._residual, self._pending)
        self._sweep()

    def clear(self) -> None:
        """Forget everything. Raises OSError."""
        self._save(None, [])
        self._sweep()

    def encode(
        self,
        label: str,
        values: Values,
        codec: str,
        path: Path,
        device: torch.device | None = None,
    ) -> Norms:
        """Write a delta to `path`, residual included, and remember under its label what it loses;
        the norms of what a reader will decode.

        `values` gives a piece of a tensor, to any thread, in memory that is then written over; on
        an accelerator if `device` is one, where pieces are large. A few pieces are in memory.
        Raises NonFinite, OSError; then nothing has changed.
        """
        if label in self.pending:
            raise ValueError(f"delta {label!r} is pending already")
        alone, lossless, meter = not self._pending, CODECS[codec].lossless, NormsMeter()
        left = None if lossless else self._next_name()
        with ExitStack() as stack:
            residual = stack.enter_context(self._reading(self._residual if alone else None))
            file = stack.enter_context(codecs.Writer(path, codec, self._shapes))
            rest = stack.enter_context(self._writing(left)) if left else None
            work = partial(_encode_piece, values, residual, file, meter, rest)
            sizes = ((name, math.prod(shape)) for name, shape in self._shapes.items())
            for _ in over_tensors(sizes, work, device):
                pass
        if left or (alone and self._residual):
            pending = [*self._pending, _Pending(label, left, adds=not alone)]
            self._save(self._residual, pending)
        return meter.norms()

    def settle(self, label: str, *, merged: bool) -> None:
        """A delta is decided: merged, or refused (or never announced). Takes effect once all that
        were encoded before it are decided. A label that is not pending is of a delta that left
        nothing. Raises OSError; then nothing has changed."""
        pending, residual = [replace(one) for one in self._pending], self._residual
        for one in pending:
            if one.label == label and one.merged is None:
                one.merged = merged
        while pending and pending[0].merged is not None:
            one = pending.pop(0)
            if one.merged:
                if one.adds and residual and one.file:
                    residual = self._sum(residual, one.file)
                else:
                    residual = one.file
        before = self._residual
        self._save(residual, pending)
        if before not in (None, residual):
            (self._folder / str(before)).replace(self._folder / _SPARE)
        self._sweep()

    def residual(self) -> dict[str, Tensor]:
        """What is in effect now, in memory of its own; empty where there is none."""
        with self._reading(self._residual) as reader:
            return {} if reader is None else {name: reader.tensor(name) for name in reader.names}

    def _sum(self, first: str, second: str) -> str:
        total = self._next_name()
        with ExitStack() as stack:
            one, other = (
                stack.enter_context(tensorfile.reading(self._folder / file))
                for file in (first, second)
            )
            file = stack.enter_context(self._writing(total))
            for name in self._shapes:
                file.put(name, one.tensor(name).add_(other.tensor(name)))
        return total

    def _next_name(self) -> str:
        self._number += 1
        return f"residual-{self._number}"

    @contextmanager
    def _reading(self, file: str | None) -> Iterator[Reader | None]:
        if file is None:
            yield None
        else:
            with tensorfile.reading(self._folder / file) as reader:
                yield reader

    def _writing(self, file: str) -> tensorfile.Writer:
        entries = {name: Entry(torch.float32, shape) for name, shape in self._shapes.items()}
        spare = self._folder / _SPARE
        over = spare if spare.exists() else None
        return tensorfile.Writer(self._folder / file, entries, None, over=over)

    def _load(self, *, any_boot: bool = False) -> str:
        """What the folder holds, or why it is not used."""
        try:
            state = json.loads((self._folder / _STATE).read_text())
            residual, pending = state["residual"], [_Pending(**one) for one in state["pending"]]
            number, boot = int(state["number"]), state["boot"]
        except FileNotFoundError:
            return ""
        except (ValueError, TypeError, KeyError):
            return f"{self._folder / _STATE} cannot be read; error feedback starts anew"
        if boot != _boot() and not any_boot:
            return "the machine was restarted; error feedback starts anew"
        for file in (residual, *(one.file for one in pending)):
            if file is not None and not self._fits(file):
                return (
                    f"{self._folder / file} is torn or of another model; error feedback starts anew"
                )
        self._residual, self._pending, self._number = residual, pending, number
        return ""

    def _fits(self, file: str) -> bool:
        try:
            with tensorfile.reading(self._folder / file) as reader:
                shapes = {name: reader.shape(name) for name in reader.names}
                return shapes == self._shapes and set(map(reader.dtype, shapes)) <= {"F32"}
        except (TensorFileInvalid, FileNotFoundError):
            return False

    def _save(self, residual: str | None, pending: list[_Pending]) -> None:
        part = self._folder / f".{_STATE}.part"
        part.write_text(json.dumps(self._state(residual, pending)))
        part.replace(self._folder / _STATE)
        self._residual, self._pending = residual, pending

    def _state(self, residual: str | None, pending: list[_Pending]) -> dict[str, object]:
        return {
            "boot": _boot(),
            "number": self._number,
            "pending": [asdict(one) for one in pending],
            "residual": residual,
        }

    def _sweep(self) -> None:
        """Remove the files that nothing names: a crash may leave one."""
        named = {_STATE, _SPARE, self._residual, *(one.file for one in self._pending)}
        for path in self._folder.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)


def _encode_piece(
    values: Values,
    residual: Reader | None,
    file: codecs.Writer,
    meter: NormsMeter,
    rest: tensorfile.Writer | None,
    name: str,
    piece: slice,
) -> None:
    row, start = values(name, piece), piece.start
    if residual is not None:
        rest_before = residual.row(name, start, len(row))
        if row.device.type == "cpu":
            np.add(row.numpy(), rest_before, out=row.numpy())
        else:
            row += torch.from_numpy(rest_before).to(row.device)
    decoded = np.empty(len(row), np.float32)
    file.add_piece(name, start, row, decoded)
    meter.add_row(decoded)
    if rest is not None:
        rest.put_row(name, np.subtract(row.cpu().numpy(), decoded, out=decoded), start)


def _boot() -> str:
    """Of which start of this machine we are; the same word always where it does not say."""
    return _BOOT.read_text().strip() if _BOOT.exists() else "unknown"
