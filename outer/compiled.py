"""Loops over numbers, compiled for the processor they run on (ADR-0012).

Compiled code does each operation that is written, in fp32 or float64 as the types say, rounded on
its own and in the order that is written: nothing is fused or reordered (numba without `fastmath`).
So the bits are those of any other machine, and of numpy.

What was compiled is kept on disk for the next process, in a folder that names the source of all
these loops, the compiler and the processor: machine code of another source is never found, whatever
a process that was killed has left behind. The folder is below $NUMBA_CACHE_DIR, $XDG_CACHE_HOME or
~/.cache. Where it cannot be written, or holds what cannot be read, loops are compiled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba
from numba.core import config

F = TypeVar("F", bound=Callable[..., Any])
_njit: Any = numba.njit
_config: Any = config
_llvm: Any = llvmlite.binding


def compiled(function: F) -> F:
    """`function` of numpy arrays and numbers, compiled when it is first called, and run without
    holding other threads up. It looks at no length: a caller passes rows that fit together."""
    ready: F = _njit(nogil=True, error_model="numpy")(function)
    folder = _folder()
    if folder is not None:
        before, _config.CACHE_DIR = _config.CACHE_DIR, str(folder)
        try:
            kept: Any = _njit(nogil=True, error_model="numpy", cache=True)(function)
            kept._cache = _Kept(kept._cache)
            return kept  # type: ignore[no-any-return]
        except RuntimeError:  # nothing can be written there
            return ready
        finally:
            _config.CACHE_DIR = before
    return ready


class _Kept:
    """numba's cache of one function, for which a file that is torn is as good as none, and a disk
    that is full as good as a cache that keeps nothing."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return self._kept.load_overload(signature, context)
        except Exception:  # what unpickling raises of torn files is anything
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        try:
            self._kept.save_overload(signature, result)
        except Exception:  # a torn index is read again before it is written
            with contextlib.suppress(Exception):
                self._kept.flush()
                self._kept.save_overload(signature, result)


@cache
def _folder() -> Path | None:
    """Of these sources, this compiler and this processor; None where there is no place for it."""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(given) if given else Path.home() / ".cache"
        named = hashlib.sha256()
        for path in sorted(Path(__file__).parent.glob("*.py")):
            named.update(path.name.encode() + b"\0" + path.read_bytes())
        versions = (numba.__version__, platform.python_version(), platform.machine())
        processor = (_llvm.get_host_cpu_name(), _llvm.get_host_cpu_features().flatten())
        asked = (_config.CPU_NAME, _config.CPU_FEATURES)
        named.update(repr((versions, processor, asked)).encode())
        folder = root / "atoll" / named.hexdigest()[:32]
        folder.mkdir(parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):
        return None
