"""What is measured of a run now: one frozen reading, made from the lease table, the disk and the
link. Metrics and alerts are made of readings alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from leases.progress import goal, share_done
from leases.states import AVAILABLE, DELIVERED, LEASED, MERGED, QUARANTINED, TRAINED, TRAINING
from leases.view import View
from outer.waiting import waiting

BAD_ENDS = ("lost", "unfit", "trainer")


@dataclass(frozen=True, slots=True)
class SiteReading:
    """A site over all its lives. `silent_s` counts ticks, so it stands still while none come;
    `code`: of its departure, '' while it lives; `stall_s`, `merged_tokens` and `delta_bytes` are
    totals."""

    site: str
    code: str
    reason: str
    tokens_per_s: float
    version: int | None
    silent_s: float
    stall_s: float
    merged_tokens: int
    delta_bytes: int
    mismatches: int
    walltime_left_s: float | None


@dataclass(frozen=True, slots=True)
class Disk:
    """The filesystem where this process works."""

    path: str
    free_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What no log holds: `version_age_s` since this process saw a new version, or the run begin to
    run; `broker_away_s` None while it answers; `leads`: whether this process is the coordinator."""

    version_age_s: float
    broker_away_s: float | None
    broker_breaks: int
    leads: bool
    disk: Disk | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A run as it stands. Totals are functions of the log: they go on where another coordinator
    left them."""

    run: str
    state: str
    sequence: int
    term: int
    round: int
    version: int
    merged_tokens: int
    target_tokens: int | None
    share: float
    loss: float | None
    lowest_loss: float | None
    perplexity: float | None
    blocks: dict[str, int]  # of open epochs, by state
    granted: int
    reclaimed: int
    stolen: int
    quarantined: int
    deltas: dict[str, int]  # by state
    update_bytes: int
    snapshot_bytes: int
    departures: dict[str, int]  # by code
    sites: tuple[SiteReading, ...]
    waits: tuple[str, ...]
    around: Surroundings

    @property
    def live(self) -> list[SiteReading]:
        """Sites that have not departed."""
        return [site for site in self.sites if not site.code]


def read(view: View, sequence: int, around: Surroundings) -> Reading | None:
    """The reading of a folded log through `sequence`; None before the run is created."""
    if not view.exists():
        return None
    run, config, index = view.run(), view.config(), view.index()
    epochs, totals = view.epochs(), _totals(view)
    losses = _losses(view)
    return Reading(
        run=run.name,
        state=run.state,
        sequence=sequence,
        term=run.term,
        round=run.round,
        version=run.version,
        merged_tokens=run.merged_tokens,
        target_tokens=goal(config, index).tokens,
        share=share_done(config, index, run.version, run.merged_tokens, 0),
        blocks=_blocks(view, epochs),
        granted=sum(row["granted"] for row in epochs),
        reclaimed=sum(row["reclaimed"] for row in epochs),
        stolen=sum(row["stolen"] for row in epochs),
        quarantined=sum(row["quarantined"] for row in epochs),
        sites=_sites(view),
        waits=tuple(map(str, waiting(view))),
        around=around,
        **losses,
        **totals,
    )


def _losses(view: View) -> dict[str, Any]:
    newest = view.version(view.run().version)
    lowest = view.db.execute(
        "SELECT min(loss) FROM versions WHERE loss IS NOT NULL AND abs(loss) < 1e308"
    ).fetchone()[0]
    row = view.db.execute(
        "SELECT perplexity FROM evaluations ORDER BY version DESC, seq DESC LIMIT 1"
    ).fetchone()
    return {
        "loss": None if newest is None else newest.loss,
        "lowest_loss": lowest,
        "perplexity": row[0] if row else None,
    }


def _totals(view: View) -> dict[str, Any]:
    db = view.db
    update_bytes, snapshot_bytes = db.execute(
        "SELECT coalesce(sum(update_bytes), 0), coalesce(sum(snapshot_bytes), 0) FROM versions"
    ).fetchone()
    deltas = dict(db.execute("SELECT state, count(*) FROM deltas GROUP BY state").fetchall())
    gone = db.execute(
        "SELECT code, count(*) FROM incarnations WHERE state = 'departed' GROUP BY code"
    ).fetchall()
    return {
        "update_bytes": update_bytes,
        "snapshot_bytes": snapshot_bytes,
        "deltas": deltas,
        "departures": dict(gone),
    }


def _blocks(view: View, epochs: list[dict[str, Any]]) -> dict[str, int]:
    states = (AVAILABLE, LEASED, TRAINING, TRAINED, DELIVERED, MERGED, QUARANTINED)
    counts = dict.fromkeys(states, 0)
    for row in epochs:
        if row["closed_seq"] is not None:
            continue
        held = dict(
            view.db.execute(
                "SELECT state, count(*) FROM blocks WHERE incarnation IS NOT NULL AND epoch = ? "
                "GROUP BY state",
                (row["epoch"],),
            ).fetchall()
        )
        for state, num in held.items():
            counts[state] += num
        counts[MERGED] += row["merged"]
        counts[QUARANTINED] += row["quarantined"]
        delivered = row["outstanding"] - sum(held.values())
        counts[DELIVERED] += delivered
        known = row["merged"] + row["quarantined"] + row["outstanding"]
        counts[AVAILABLE] += row["blocks"] - known
    return counts


def _sites(view: View) -> tuple[SiteReading, ...]:
    tick_s = view.timing().tick_s
    sums = {
        site: (tokens, stall_s)
        for site, tokens, stall_s in view.db.execute(
            "SELECT site, sum(merged_tokens), sum(stall_s) FROM incarnations GROUP BY site"
        )
    }
    sent = dict(view.db.execute("SELECT site, sum(num_bytes) FROM deltas GROUP BY site").fetchall())
    return tuple(
        SiteReading(
            site=one.site,
            code=one.code if one.state == "departed" else "",
            reason=one.reason,
            tokens_per_s=one.tokens_per_s if one.state != "departed" else 0.0,
            version=one.version,
            silent_s=one.silent_ticks * tick_s,
            stall_s=sums[one.site][1],
            merged_tokens=sums[one.site][0],
            delta_bytes=sent.get(one.site, 0),
            mismatches=one.mismatches,
            walltime_left_s=one.walltime_left_s,
        )
        for one in view.latest()
    )


def diverged(loss: float | None, lowest: float | None, nats: float) -> bool:
    """Whether a loss is no number, or so much above the lowest there was."""
    if loss is None:
        return False
    return not math.isfinite(loss) or (lowest is not None and loss > lowest + nats)
