"""Work on flat arrays in pieces that stay in a processor's cache, by as many threads as torch may
use. A piece's result depends on the piece alone, so none depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIECE = 1 << 16  # elements: seven arrays of fp32 pieces fit into 2 MiB of cache
_RUNS = 4  # a thread takes so many runs of pieces in turn: who is done first takes more
Array = NDArray[np.float32]
T = TypeVar("T")


def flat(tensor: Tensor) -> Array:
    """A contiguous fp32 tensor on the CPU as one row: the same memory."""
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
        raise TypeError(f"a contiguous tensor of fp32 is needed, not {tensor.dtype}")
    row: Array = tensor.detach().view(-1).numpy()
    return row


def over_pieces(num_elements: int, work: Callable[[slice], T]) -> list[T]:
    """What `work` returns for each piece of `num_elements`, in order. Raises what it raises."""
    pieces = [slice(i, min(i + PIECE, num_elements)) for i in range(0, num_elements, PIECE)]
    num_threads = min(torch.get_num_threads(), len(pieces))
    if num_threads < 2:
        return [work(piece) for piece in pieces]
    size = -(-len(pieces) // (_RUNS * num_threads))
    runs = [pieces[i : i + size] for i in range(0, len(pieces), size)]
    try:
        with ThreadPoolExecutor(
            num_threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            done = pool.map(lambda run: [work(piece) for piece in run], runs)
            return [result for run in done for result in run]
    finally:
        torch.set_num_threads(num_threads)  # what one thread sets, the next to be started has too
