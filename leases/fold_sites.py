"""Rules of the sites' lives: joins and their answers, heartbeats, evaluations, departures."""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry, pack
from eventlog.events import (
    OPERATOR,
    DrainRequested,
    EvaluationCompleted,
    Heartbeat,
    SiteAdmitted,
    SiteDeparted,
    SiteDeparting,
    SiteJoined,
    SiteRefused,
)
from leases.books import Books, finite
from leases.pages import LifeRow

NOTHING = pack({})  # the hardware of a site whose join a hub did not see
_NEWEST_SNAPSHOT = (
    "SELECT version FROM versions WHERE snapshot_blob IS NOT NULL ORDER BY version DESC LIMIT 1"
)


def drain(books: Books, entry: Entry) -> str:
    event = cast(DrainRequested, entry.event)
    life = books.living_at(event.site)
    if life is None or life.state != "live":
        return "" if books.scope not in (None, event.site) else f"no live site {event.site}"
    life.drain = 1
    return ""


def joined(books: Books, entry: Entry) -> str:
    event = cast(SiteJoined, entry.event)
    assert entry.envelope is not None
    site = entry.record.subject.partition(".")[2]
    books.db.execute(
        "UPDATE joins SET state = 'superseded' WHERE site = ? AND state = 'waiting'", (site,)
    )
    predecessor = event.predecessor or (None, None)
    life = books.living_at(site)
    books.db.execute(
        "INSERT INTO joins (seq, id, site, state, predecessor_seq, predecessor_id, successor, "
        "manifest_digest, arithmetic, hardware, incarnation_seen) "
        "VALUES (?, ?, ?, 'waiting', ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.record.sequence,
            entry.envelope.id,
            site,
            *predecessor,
            int(event.successor),
            event.manifest_digest,
            pack(event.arithmetic),
            pack({**event.hardware, **event.software}),
            life.last_seq if life else None,
        ),
    )
    return ""


def admitted(books: Books, entry: Entry) -> str:
    event = cast(SiteAdmitted, entry.event)
    assert entry.envelope is not None
    void = _waiting(books, event.site, event.join)
    if void:
        return void
    taken = books.living_at(event.site)
    if taken is not None:
        return f"{event.site} lives as incarnation {taken.seq}"
    books.db.execute("UPDATE joins SET state = 'admitted' WHERE seq = ?", (event.join[0],))
    run, sequence = books.run, entry.record.sequence
    hardware = books.value("SELECT hardware FROM joins WHERE seq = ?", event.join[0])
    life = LifeRow(sequence, entry.envelope.id, event.site, event.join[0])
    life.hardware = cast(bytes, hardware) if hardware is not None else NOTHING
    life.last_seq, life.last_term, life.last_tick = sequence, run.term, run.term_ticks
    books.progressed(life)
    life.starts_from = cast(int, books.value(_NEWEST_SNAPSHOT) or 0)
    _inherit_rate(books, life)
    books.lives.add(life)
    run.live += 1
    return ""


def _inherit_rate(books: Books, life: LifeRow) -> None:
    """A restarted site is as fast as it was on the same hardware and software, until it is
    measured anew."""
    books.lives.flush()
    before = books.db.execute(
        "SELECT tokens_per_s FROM (SELECT tokens_per_s, hardware FROM incarnations "
        "WHERE site = ? ORDER BY seq DESC LIMIT 1) WHERE hardware = ?",
        (life.site, life.hardware),
    ).fetchone()
    if before is not None:
        life.tokens_per_s = before[0]


def refused(books: Books, entry: Entry) -> str:
    event = cast(SiteRefused, entry.event)
    void = _waiting(books, event.site, event.join)
    if void:
        return void
    books.db.execute(
        "UPDATE joins SET state = 'refused', reason = ?, code = ?, final = ? WHERE seq = ?",
        (event.reason, event.code, int(event.final), event.join[0]),
    )
    return ""


def departing(books: Books, entry: Entry) -> str:
    event = cast(SiteDeparting, entry.event)
    life = books.writer
    if life.state == "live":
        life.state, life.code, life.reason = "departing", event.code, event.reason
    return ""


def departed(books: Books, entry: Entry) -> str:
    """R4: the departure itself returns everything undelivered; deltas stay."""
    event = cast(SiteDeparted, entry.event)
    void = books.not_of(event.site, event.incarnation)
    if void:
        return void
    life = books.lives.known(event.incarnation[0])
    books.free(books.held(life.seq), "reclaim")
    life.state, life.code, life.reason = "departed", event.code, event.reason
    life.departed_seq = entry.record.sequence
    life.backoff_until = books.run.ticks + event.backoff_ticks if event.backoff_ticks else 0
    books.run.live -= 1
    return ""


def heartbeat(books: Books, entry: Entry) -> str:
    event = cast(Heartbeat, entry.event)
    life = books.writer
    if life.step != event.step and life.version is not None:
        books.progressed(life)  # without a version there is nothing to train
    life.phase, life.step, life.tokens = event.phase, event.step, event.tokens
    life.walltime_left_s, life.missing = event.walltime_left_s, event.missing
    if event.tokens_per_s:
        life.tokens_per_s = event.tokens_per_s
    if event.step_s is not None:
        life.step_s = event.step_s
    return ""


def evaluated(books: Books, entry: Entry) -> str:
    """R10: a site's trainer has done this; what it owes counts from here."""
    event = cast(EvaluationCompleted, entry.event)
    if event.version > books.run.version:
        return f"there is no version {event.version} yet, the newest is {books.run.version}"
    if entry.record.subject != OPERATOR:
        life = books.writer
        books.progressed(life)
        life.phase = "training" if life.phase == "evaluating" else life.phase
    books.db.execute(
        "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            entry.record.sequence,
            event.version,
            entry.record.subject,
            *map(finite, (event.loss, event.perplexity, event.bits_per_byte)),
            event.num_tokens,
        ),
    )
    return ""


def _waiting(books: Books, site: str, join: tuple[int, str]) -> str:
    """'' where this join of the site waits for an answer. A hub does not see others' joins."""
    if books.scope not in (None, site):
        return ""
    row = books.db.execute(
        "SELECT site, state FROM joins WHERE seq = ? AND id = ?", join
    ).fetchone()
    if row is None or row[0] != site:
        return f"there is no join {join} of {site}"
    return "" if row[1] == "waiting" else f"join {join} of {site} is {row[1]}"


RULES = {
    "run.drain_requested": drain,
    "site.joined": joined,
    "site.admitted": admitted,
    "site.refused": refused,
    "site.departing": departing,
    "site.departed": departed,
    "site.heartbeat": heartbeat,
    "evaluation.completed": evaluated,
}
