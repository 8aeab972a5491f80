"""A site's checkpoints, the trainer's part: files that appear whole, written beside training."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from outer.feedback import Feedback
from sitehub import saved
from sitehub.optimizer import InnerOptimizer, StateUnfit


def write(
    folder: Path, inner: dict[str, Tensor], feedback: Feedback, state: dict[str, Any]
) -> Path:
    """Store the inner state and the residual as it stands, as the newest checkpoint of a folder; on
    the thread of the residual's other changes. On disk when this returns. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    target = saved.next_path(folder)
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    save_file(inner, part / saved.INNER)
    feedback.copy(part / saved.RESIDUAL)
    content = state | {"pending": list(feedback.pending)}
    (part / saved.STATE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    for path in [*part.rglob("*"), part]:
        _sync(path)
    part.replace(target)
    _sync(folder)
    saved.prune(folder)
    return target


def restore(path: Path, optimizer: InnerOptimizer) -> None:
    """Take up the inner state, on however many ranks. Raises StateUnfit; then nothing changed."""
    try:
        values = load_file(path / saved.INNER)
    except (OSError, SafetensorError) as error:
        raise StateUnfit(f"{path / saved.INNER}: cannot be read: {error}") from error
    forms = {key: (tuple(value.shape), value.dtype) for key, value in values.items()}
    optimizer.restore(forms, values)


def take_up(path: Path | None, own: bool, feedback: Feedback) -> None:
    """Error feedback goes on: from the site's own folder where that counts, else from a checkpoint
    where there is one that does; `feedback.notice` says why not. Raises OSError."""
    if not own:
        feedback.clear()
    if path is not None and feedback.is_empty:
        feedback.adopt(path / saved.RESIDUAL)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
