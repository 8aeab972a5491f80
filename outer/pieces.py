"""Work on flat arrays in pieces that stay in a processor's cache, by as many threads as torch may
use. A piece's result depends on the piece alone, so none depends on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outer.values import DEVICE_PIECE, PIECE

_RUN = 2  # pieces that a thread takes at a time
_AHEAD = 4  # times as many are handed out as there are threads, before a tensor is waited for
Array = NDArray[np.float32]
T = TypeVar("T")


def flat(tensor: Tensor) -> Array:
    """A contiguous fp32 tensor on the CPU as one row: the same memory."""
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
        raise TypeError(f"a contiguous tensor of fp32 is needed, not {tensor.dtype}")
    row: Array = tensor.detach().view(-1).numpy()
    return row


def split(whole: slice, size: int = PIECE) -> list[slice]:
    """A slice in slices of `size`, and the rest."""
    begins = range(whole.start, whole.stop, size)
    return [slice(begin, min(begin + size, whole.stop)) for begin in begins]


def over_pieces(
    num_elements: int,
    work: Callable[[slice], T],
    device: torch.device | None = None,
    size: int = PIECE,
) -> list[T]:
    """What `work` returns for each piece of `num_elements`, in order (see `over_tensors`)."""
    if num_elements <= size:
        return [work(piece) for piece in split(slice(0, num_elements))]
    found = over_tensors([("", num_elements)], lambda _, piece: work(piece), device, size)
    return next(iter(found))[1]


def over_tensors(
    tensors: Iterable[tuple[str, int]],
    work: Callable[[str, slice], T],
    device: torch.device | None = None,
    size: int = PIECE,
) -> Iterator[tuple[str, list[T]]]:
    """Of each tensor (name, number of elements) in turn what `work` returns for its pieces, in
    order: pieces of `size`, and the rest. Raises what it raises; then, and where the caller stops
    early, no work is under way any more.

    Threads go on with the next tensor while the last pieces of one are worked on. `device`: where
    the values are; on an accelerator pieces are larger, for one thread.
    """
    on_cpu = device is None or device.type == "cpu"
    size, num_threads = (size, torch.get_num_threads()) if on_cpu else (DEVICE_PIECE, 1)
    if num_threads < 2:
        for name, num_elements in tensors:
            yield name, [work(name, piece) for piece in split(slice(0, num_elements), size)]
        return
    pool = _pool(os.getpid(), num_threads, _priority())

    def run(name: str, some: list[slice]) -> list[T]:
        return [work(name, piece) for piece in some]

    begun: deque[tuple[str, list[Future[list[T]]]]] = deque()
    try:
        for name, num_elements in tensors:
            pieces = split(slice(0, num_elements), size)
            runs = [pieces[i : i + _RUN] for i in range(0, len(pieces), _RUN)]
            begun.append((name, [pool.submit(run, name, some) for some in runs]))
            while sum(len(one) for _, one in begun) - len(begun[0][1]) >= _AHEAD * num_threads:
                yield _finished(begun)
        while begun:
            yield _finished(begun)
    finally:
        left = [one for _, some in begun for one in some]
        for one in left:
            one.cancel()
        wait(left)


def _finished(begun: deque[tuple[str, list[Future[list[T]]]]]) -> tuple[str, list[T]]:
    """The first of them, which is done then."""
    name, some = begun[0]
    found = name, [result for one in some for result in one.result()]
    begun.popleft()
    return found


@lru_cache(maxsize=4)
def _pool(process: int, num_threads: int, priority: int) -> ThreadPoolExecutor:
    """The threads of this process for callers of one priority, which they have from the first who
    asks. They are kept: a new one begins with memory that is cold. What torch does in them it does
    alone; all are told so at once and here, since what one thread sets, whichever thread torch sees
    next begins with."""
    pool, all_told = ThreadPoolExecutor(num_threads), threading.Barrier(num_threads)

    def tell(_: int) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread's first look is what it keeps
        all_told.wait()

    try:
        list(pool.map(tell, range(num_threads)))
    except RuntimeError:  # a thread could not be started: those that were wait for it
        all_told.abort()
        raise
    torch.set_num_threads(num_threads)
    return pool


def _priority() -> int:
    """Of the calling thread: work beside training must not borrow threads from training."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
