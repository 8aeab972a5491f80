"""Whether a delta's file can be merged, by what is in it (P8): a function of log and blob (P3).

The coordinator asks before a cut, and the deep audit once more. How large a delta may be beside
others is asked where the cut is decided (`leases.outliers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from eventlog.errors import BlobTooLarge
from leases.outliers import claim_holds
from leases.rows import Delta
from outer.codecs import CODECS, DeltaInvalid, validate_delta
from outer.deltahead import max_file_bytes
from outer.facts import Verdict
from outer.shelf import Shelf

# Larger values in a delta are refused: no two sets of weights differ by so much, and sums, momentum
# and every codec stay far from overflow, which would stop the run and not the site.
MAX_ABS = 2.0**20


async def examine(shelf: Shelf, reference: Mapping[str, Tensor], delta: Delta) -> Verdict:
    """The verdict on a delta; nothing is fetched that is longer than a delta of the model's form
    (`reference`), or than this one is said to be. Raises BlobMissing, BlobDamaged,
    BlobUnavailable."""
    found = announced(reference, delta)
    if found.code:
        return found
    try:
        path = await shelf.fetch(delta.blob, delta.num_bytes)
    except BlobTooLarge as error:
        return Verdict("form", str(error))
    return await asyncio.to_thread(judge, path, reference, delta)


def announced(reference: Mapping[str, Tensor], delta: Delta) -> Verdict:
    """Whether what a delta says of its file can be true of a delta of the model's form."""
    if delta.codec not in CODECS:
        known = ", ".join(CODECS)
        return Verdict("form", f"it is said to be in codec {delta.codec!r}, known are {known}")
    most = max_file_bytes(delta.codec, reference)
    if delta.num_bytes > most:
        what = f"it is said to have {delta.num_bytes:,} bytes; in {delta.codec} this model's deltas"
        return Verdict("form", f"{what} have at most {most:,}; it is not fetched")
    return Verdict()


def judge(path: Path, reference: Mapping[str, Tensor], delta: Delta) -> Verdict:
    """Whole, of the model's form (`reference`), finite, within MAX_ABS, and of the norm it is said
    to have; or the code and reason of its refusal."""
    try:
        norms = validate_delta(path, reference, delta.codec)
    except DeltaInvalid as error:
        return Verdict(error.code, str(error))
    if norms.max_abs > MAX_ABS:
        what = f"a value of {norms.max_abs:g} is no difference of weights"
        return Verdict("outlier", what, norms.norm)
    if not claim_holds(delta.norm, norms.norm):
        what = f"its norm is said to be {delta.norm:.6g}, that of its blob is {norms.norm:.6g}"
        return Verdict("form", what, norms.norm)
    return Verdict(norm=norms.norm)
