"""Loops over numbers, compiled for the processor they run on (ADR-0012).

Compiled code does each operation that is written, in fp32 or float64 as the types say, rounded on
its own and in the order that is written: nothing is fused or reordered (numba without `fastmath`).
So the bits are those of any other machine, and of numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])
_njit: Any = numba.njit


def compiled(function: F) -> F:
    """`function` of numpy arrays and numbers, compiled when it is first called, and run without
    holding other threads up. What was compiled is kept in a cache on disk, beside the source or in
    the user's own, or $NUMBA_CACHE_DIR; where none can be written, each process compiles anew."""
    try:
        ready: F = _njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is nowhere to keep it
        ready = _njit(nogil=True, error_model="numpy")(function)
    return ready
