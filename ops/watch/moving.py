"""Blobs on their way, as rows of the live view: what a site's heartbeat told, or, where it has not
spoken since, what it must be fetching, at the rate of its last transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leases.rows import Incarnation
from ops.watch.trails import Trail, Trails

PATIENCE_S = 1.0  # a fetch that is over sooner is not worth a line


@dataclass(frozen=True, slots=True)
class Moving:
    """`way`: up (to the store) or down; `what` in words; `done_bytes`: None where the site has not
    said; `bytes_per_s`: measured, of this transfer (`measured`) or of its last one; `eta_s`: None
    where no rate is known."""

    site: str
    way: str
    what: str
    done_bytes: int | None
    of_bytes: int
    bytes_per_s: float | None
    measured: bool
    eta_s: float | None


def moving(live: Sequence[Incarnation], version: int, trails: Trails, now_s: float) -> list[Moving]:
    """What moves at now_s (Unix seconds), by site. `version`: the newest committed."""
    found = (_of(one, version, trails, now_s) for one in live)
    return [one for one in found if one is not None]


def _of(one: Incarnation, version: int, trails: Trails, now_s: float) -> Moving | None:
    trail = trails.site(one.site)
    if trail.moving is not None:
        return _told(one.site, trail, now_s)
    since_s = 0.0 if trails.committed_s is None else now_s - trails.committed_s
    held = one.version
    size = trails.to_fetch(held, version)
    if held is None or size is None or since_s < PATIENCE_S:
        return None
    what = f"version {version}" if version == held + 1 else f"versions {held + 1} to {version}"
    left_s = size / trail.down - since_s if trail.down else None
    if left_s is not None and left_s <= 0:
        left_s = None  # it takes longer than the last one
    return Moving(one.site, "down", what, None, size, trail.down, False, left_s)


def _told(site: str, trail: Trail, now_s: float) -> Moving:
    """What it said, carried on at its rate: heartbeats are seconds apart."""
    assert trail.moving is not None
    told, at_s = trail.moving
    since = told.bytes_per_s * max(0.0, now_s - at_s)
    done = min(told.of_bytes, int(told.done_bytes + since))
    left_s = (told.of_bytes - done) / told.bytes_per_s if told.bytes_per_s > 0 else None
    what = "its delta" if told.way == "up" else "a version"
    rate = told.bytes_per_s or None
    return Moving(site, told.way, what, done, told.of_bytes, rate, True, left_s)
