"""A parent of trainers like `sitehub.preload`, one kind of whose deltas can be spoilt by a test.

    python -m tests.support.broken_trainers SOCKET

A trainer that is forked from it reads the file `poison` in its work folder when it publishes. What
is there, once: `nan`, `inf`, or a factor, is what the delta's values become. Norms are claimed as
they are: nothing here lies, the trainer is just broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

from outer import codecs, tensorfile
from outer.norms import Norms, measure
from outer.pseudo_gradient import Progress
from sitehub import preload
from sitehub.replica import Replica

POISON = "poison"
_encode = Replica.encode


def encode(self: Replica, label: str, progress: Progress, path: Path, codec: str) -> Norms:
    """As a trainer encodes; then the file is spoilt."""
    norms = _encode(self, label, progress, path, codec)
    poison = path.parent / POISON
    if not poison.exists():
        return norms
    how = poison.read_text()
    poison.unlink()
    delta = codecs.decode(path)
    if how not in ("nan", "inf"):
        delta = {name: value * float(how) for name, value in delta.items()}
        codecs.encode(delta, codec, path)
        return measure(codecs.decode(path))
    first = min(delta)
    delta[first].view(-1)[0] = float(how)
    dtype = {"fp32": "float", "bf16": "bfloat16"}[codec]
    stored = {f"values/{name}": getattr(value, dtype)() for name, value in delta.items()}
    tensorfile.write(stored, path, {"codec": codec, "format": codecs.FORMAT})
    return Norms(float(how), float(how), False)


if __name__ == "__main__":
    Replica.encode = encode  # type: ignore[method-assign]
    sys.exit(preload.main(sys.argv[1:]))
