"""What one frame of the live view shows, as plain values: read from the lease table, drawn
elsewhere. Also the object that `atoll watch --once --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from leases.progress import goal, share_of_target
from leases.rows import Incarnation
from leases.states import AVAILABLE, DELIVERED, LEASED, MERGED, QUARANTINED, TRAINED, TRAINING
from leases.view import View
from ops.watch.moving import Moving, moving
from ops.watch.pace import Pace
from ops.watch.trails import Refused, Trails
from ops.watch.words import Told
from outer.waiting import Wait, span, waiting

STATES = (MERGED, DELIVERED, TRAINED, TRAINING, LEASED, AVAILABLE, QUARANTINED)
MAX_CELLS = 240  # blocks of an epoch that are shown one by one
MAX_HELD = 100  # blocks of one site that are named
MAX_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class Site:
    """The newest incarnation of a site. `life`: the how-manieth; `blocks_merged`: of all lives;
    `heard_s`: since its last event, None where it never spoke."""

    site: str
    state: str
    phase: str
    reason: str
    incarnation: int
    life: int
    version: int | None
    held: tuple[tuple[int, int, str], ...]  # (epoch, block, state), MAX_HELD of them
    num_held: int
    blocks_merged: int
    tokens_per_s: float
    loss: float | None
    heard_s: float | None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Blocks of one epoch by state. `cells`: the state of each in the order of granting, where
    there are few enough; else empty."""

    epoch: int
    blocks: int
    closed: bool
    counts: dict[str, int]
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A site's way through the run: (from, until, code) of its lives, `until` None while it lives;
    (from, until) of its training. Unix seconds."""

    site: str
    stays: tuple[tuple[float, float | None, str], ...]
    training: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything a frame shows. `target`: tokens, None for a target in rounds; `share`: of the
    target, in [0, 1]; `eta_s`: None where there is no pace to tell from, or nothing advances;
    `perplexity`: (version, held-out perplexity) of the newest evaluation; `overhead`: the share of
    wall time that trainers stood still for the exchange, None before the first round; `next`: what
    a person can do now, in words; `broker_away_s`: for how long the broker has not answered whoever
    watches, None while it does; `began_s`: of the log; `losses`, `rates` (tokens a second) by
    round."""

    run: str
    state: str
    reason: str
    round: int
    version: int
    tokens: int
    target: int | None
    target_rounds: int | None
    share: float
    loss: float | None
    perplexity: tuple[int, float] | None
    tokens_per_s: float
    eta_s: float | None
    coordinator: str
    term: int
    last_sequence: int
    now_s: float
    sites: tuple[Site, ...]
    epochs: tuple[Epoch, ...]
    waiting: tuple[Wait, ...]
    told: tuple[Told, ...]
    overhead: float | None = None
    next: tuple[str, ...] = ()
    broker_away_s: float | None = None
    transfers: tuple[Moving, ...] = ()
    refusals: tuple[Refused, ...] = ()
    began_s: float | None = None
    losses: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    lines: tuple[Line, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The documented object of `atoll watch --once --json`."""
        found = asdict(self)
        for key in ("told", "now_s", "perplexity", "began_s", "losses", "rates", "lines"):
            del found[key]
        for wait in found["waiting"]:
            del wait["remedy"], wait["how"]
        version, perplexity = self.perplexity or (None, None)
        found["evaluation"] = self.perplexity and {"version": version, "perplexity": perplexity}
        for epoch in found["epochs"]:
            del epoch["cells"]
            epoch |= epoch.pop("counts")
        for site in found["sites"]:
            site["held"] = [f"{epoch}:{block}" for epoch, block, _ in site["held"]]
        return found


def scene(
    view: View,
    run: str,
    pace: Pace,
    trails: Trails,
    told: Sequence[Told],
    now_s: float,
    away_s: float | None = None,
) -> Scene:
    """The scene as of now_s (Unix seconds, by the broker's clock as far as known). `away_s`: since
    when the broker has not answered; then nobody knows how far the run is, or who is silent."""
    row, exists = view.run(), view.exists()
    aim = goal(view.config(), view.index()) if exists else None
    sites = tuple(_site(view, one, pace, now_s) for one in view.latest())
    under_way = row.state != "finished" and away_s is None
    return Scene(
        run=row.name or run,
        state=row.state,
        reason=row.reason,
        round=row.round,
        version=row.version,
        tokens=row.merged_tokens,
        target=aim.tokens if aim else None,
        target_rounds=aim.rounds if aim else None,
        share=_share(view) if exists else 0.0,
        loss=_loss(view, row.version, sites),
        perplexity=_evaluation(view),
        tokens_per_s=sum(site.tokens_per_s for site in sites),
        eta_s=_eta_s(view, pace, now_s) if exists and away_s is None else None,
        coordinator=row.holder,
        term=row.term,
        last_sequence=pace.last_sequence,
        now_s=now_s,
        sites=sites,
        epochs=tuple(_epochs(view)) if exists else (),
        waiting=tuple(_waits(view, pace, now_s, away_s)),
        told=tuple(told),
        broker_away_s=away_s,
        transfers=tuple(moving(view.live(), row.version, trails, now_s)) if under_way else (),
        refusals=tuple(trails.refusals)[-MAX_REFUSALS:],
        began_s=trails.began_s,
        losses=tuple(trails.losses),
        rates=tuple(trails.rates),
        lines=tuple(_line(site.site, trails) for site in sites),
    )


def _waits(view: View, pace: Pace, now_s: float, away_s: float | None) -> list[Wait]:
    if away_s is None:
        return waiting(view, pace.silence_s(now_s, view.run().live))
    what = f"does not answer, for {span(away_s)}; below is how it stood at event #"
    until = "until it answers: then all goes on by itself"
    gone = Wait("the broker", f"{what}{pace.last_sequence}", until, "broker")
    return [gone, *waiting(view)] if view.run().state != "finished" else []


def _line(site: str, trails: Trails) -> Line:
    trail = trails.site(site)
    stays = tuple((stay.since_s, stay.until_s, stay.code) for stay in trail.stays)
    return Line(site, stays, tuple(trail.training.spells))


def _share(view: View) -> float:
    run = view.run()
    return share_of_target(view.config(), view.index(), run.version, run.merged_tokens)


def _loss(view: View, version: int, sites: Sequence[Site]) -> float | None:
    """Of the newest version's training; before the first, the mean of what the sites report."""
    newest = view.version(version)
    if newest is not None and newest.loss is not None:
        return newest.loss
    known = [site.loss for site in sites if site.loss is not None]
    return sum(known) / len(known) if known else None


def _evaluation(view: View) -> tuple[int, float] | None:
    row: tuple[int, float] | None = view.db.execute(
        "SELECT version, perplexity FROM evaluations ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    return row


def _eta_s(view: View, pace: Pace, now_s: float) -> float | None:
    """What is left of the target at the pace of the last commits; counted down between commits."""
    run, share = view.run(), _share(view)
    if run.state != "running" or not run.live:
        return None
    per_s = pace.share_per_s()
    if not per_s:
        return None
    return max(0.0, (1.0 - share) / per_s - max(0.0, now_s - pace.commits[-1].time_s))


def _site(view: View, one: Incarnation, pace: Pace, now_s: float) -> Site:
    held = view.held(one.token[0])
    lives, merged = view.db.execute(
        "SELECT count(*), sum(merged_blocks) FROM incarnations WHERE site = ?", (one.site,)
    ).fetchone()
    heard = pace.heard_s.get(one.site)
    live = one.state != "departed"
    phase = _phase(view, one, {block.state for block in held})
    return Site(
        site=one.site,
        state=one.state,
        phase=phase,
        reason=one.reason,
        incarnation=one.token[0],
        life=lives,
        version=one.version,
        held=tuple((block.epoch, block.block, block.state) for block in held[:MAX_HELD]),
        num_held=len(held),
        blocks_merged=merged,
        tokens_per_s=one.tokens_per_s if live and phase == "training" else 0.0,
        loss=one.loss,
        heard_s=None if heard is None else max(0.0, now_s - heard),
    )


def _phase(view: View, one: Incarnation, states: set[str]) -> str:
    """What it does, from the ledger where that knows better than its last heartbeat."""
    if one.state == "departed":
        return one.code
    if view.run().state == "finished":
        return "finished"
    if one.state == "departing":
        return "leaving"
    if one.phase == "evaluating":
        return "evaluating"
    if TRAINING in states:
        return "training"
    if view.has_undecided(one.token[0]):
        return "delivered"
    return "waiting" if one.phase == "training" else one.phase


def _epochs(view: View) -> list[Epoch]:
    """Every epoch that was begun; the cells of those that are not closed."""
    found = []
    for row in view.epochs():
        counts = dict.fromkeys(STATES, 0)
        held = view.db.execute(
            "SELECT state, count(*) FROM blocks WHERE incarnation IS NOT NULL AND epoch = ? "
            "GROUP BY state",
            (row["epoch"],),
        ).fetchall()
        counts |= dict(held) | {MERGED: row["merged"], QUARANTINED: row["quarantined"]}
        counts[DELIVERED] = row["outstanding"] - sum(number for _, number in held)
        counts[AVAILABLE] = row["blocks"] - sum(counts.values())
        closed = row["closed_seq"] is not None
        shown = not closed and row["blocks"] <= MAX_CELLS
        cells = _cells(view, row["epoch"]) if shown else ()
        found.append(Epoch(row["epoch"], row["blocks"], closed, counts, cells))
    return found


def _cells(view: View, epoch: int) -> tuple[str, ...]:
    states = dict(
        view.db.execute("SELECT block, state FROM blocks WHERE epoch = ?", (epoch,)).fetchall()
    )
    index = view.index()
    order = (index.at(epoch, position) for position in range(index.num_blocks))
    return tuple(states.get(block, AVAILABLE) for block in order)
