"""Whether a cap on a site's rate leaves it time to take part."""

from __future__ import annotations

import math
from pathlib import Path

from leases import retention
from leases.sizes import to_load
from leases.view import View


def too_slow(view: View, folder: Path, bytes_per_s: float) -> str:
    """One line for whoever gave a site this cap, where what it must fetch before it holds the
    newest version, less what its work folder holds, takes longer than the run waits for that (R10);
    else ''. Whoever has come in can deliver: no delta is longer than the model in fp32."""
    if not view.exists():
        return ""
    wanted = retention.loaded(view.db)
    left = sum(to_load(view.db, blob) for blob in wanted if not (folder / blob).exists())
    limit_s = max(view.timing().lease_s, view.config().limits.transfer_s)
    takes_s = left / bytes_per_s
    if takes_s <= limit_s:
        return ""
    least = math.ceil(left / limit_s / 1000)
    return (
        f"--max-rate {bytes_per_s / 1000:,.0f}kB is too little for this run: to come in takes "
        f"{left / 1e6:,.1f} MB, so {takes_s:,.0f} s, and a site without a version is given up "
        f"after {limit_s:,.0f} s (limits.transfer_s); give {least:,}kB or more"
    )
