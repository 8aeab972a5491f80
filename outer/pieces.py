"""Work on flat arrays in pieces that stay in a processor's cache, by as many threads as torch may
use. A piece's result depends on the piece alone, so none depends on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outer.values import DEVICE_PIECE, PIECE

_RUNS = 4  # a thread takes so many runs of pieces in turn: who is done first takes more
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
    """What `work` returns for each piece of `num_elements`, in order: of `size`, and the rest.
    Raises what it raises. `device`: where the values are; on an accelerator pieces are larger, for
    one thread."""
    on_cpu = device is None or device.type == "cpu"
    size = size if on_cpu else DEVICE_PIECE
    pieces = split(slice(0, num_elements), size)
    num_threads = torch.get_num_threads()
    if num_threads < 2 or len(pieces) < 2 or not on_cpu:
        return [work(piece) for piece in pieces]
    size = -(-len(pieces) // (_RUNS * num_threads))
    runs = [pieces[i : i + size] for i in range(0, len(pieces), size)]
    pool = _pool(os.getpid(), num_threads, _priority())
    done = pool.map(lambda run: [work(one) for one in run], runs)
    return [result for run in done for result in run]


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

    list(pool.map(tell, range(num_threads)))
    torch.set_num_threads(num_threads)
    return pool


def _priority() -> int:
    """Of the calling thread: work beside training must not borrow threads from training."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
