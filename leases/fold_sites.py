"""Rules of the sites' lives: joins and their answers, heartbeats, evaluations, departures."""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry, pack
from eventlog.events import (
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


def drain(books: Books, entry: Entry) -> str:
    event = cast(DrainRequested, entry.event)
    num = books.db.execute(
        "UPDATE incarnations SET drain = 1 WHERE site = ? AND state = 'live'", (event.site,)
    ).rowcount
    return "" if num or books.scope not in (None, event.site) else f"no live site {event.site}"


def joined(books: Books, entry: Entry) -> str:
    event = cast(SiteJoined, entry.event)
    assert entry.envelope is not None
    site = entry.record.subject.partition(".")[2]
    books.db.execute(
        "UPDATE joins SET state = 'superseded' WHERE site = ? AND state = 'waiting'", (site,)
    )
    predecessor = event.predecessor or (None, None)
    books.db.execute(
        "INSERT INTO joins (seq, id, site, state, predecessor_seq, predecessor_id, successor, "
        "manifest_digest, arithmetic, hardware, incarnation_seen) "
        "VALUES (?, ?, ?, 'waiting', ?, ?, ?, ?, ?, ?, "
        "(SELECT last_seq FROM incarnations WHERE site = ? AND state != 'departed'))",
        (
            entry.record.sequence,
            entry.envelope.id,
            site,
            *predecessor,
            int(event.successor),
            event.manifest_digest,
            pack(event.arithmetic),
            pack({**event.hardware, **event.software}),
            site,
        ),
    )
    return ""


def admitted(books: Books, entry: Entry) -> str:
    event = cast(SiteAdmitted, entry.event)
    assert entry.envelope is not None
    void = _waiting(books, event.site, event.join)
    if void:
        return void
    taken = books.value(
        "SELECT seq FROM incarnations WHERE site = ? AND state != 'departed'", event.site
    )
    if taken is not None:
        return f"{event.site} lives as incarnation {taken}"
    books.db.execute("UPDATE joins SET state = 'admitted' WHERE seq = ?", (event.join[0],))
    books.db.execute(
        "INSERT INTO incarnations (seq, id, site, join_seq, state, hardware, last_seq, last_term, "
        "last_tick, progress_term, progress_tick) SELECT ?, ?, ?, ?, 'live', "
        "coalesce((SELECT hardware FROM joins WHERE seq = ?), x'80'), ?, term, term_ticks, term, "
        "term_ticks FROM run",
        (
            entry.record.sequence,
            entry.envelope.id,
            event.site,
            event.join[0],
            event.join[0],
            entry.record.sequence,
        ),
    )
    _inherit_rate(books, event.site, entry.record.sequence)
    books.db.execute("UPDATE run SET live = live + 1")
    return ""


def _inherit_rate(books: Books, site: str, seq: int) -> None:
    """A restarted site is as fast as it was on the same hardware and software, until it is
    measured anew."""
    books.db.execute(
        "UPDATE incarnations SET tokens_per_s = old.tokens_per_s FROM (SELECT tokens_per_s, "
        "hardware FROM incarnations WHERE site = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT 1) old "
        "WHERE seq = ?2 AND incarnations.hardware = old.hardware",
        (site, seq),
    )


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
    assert entry.envelope is not None and entry.envelope.incarnation is not None
    books.db.execute(
        "UPDATE incarnations SET state = 'departing', code = ?, reason = ? "
        "WHERE seq = ? AND state = 'live'",
        (event.code, event.reason, entry.envelope.incarnation[0]),
    )
    return ""


def departed(books: Books, entry: Entry) -> str:
    """R4: the departure itself returns everything undelivered; deltas stay."""
    event = cast(SiteDeparted, entry.event)
    void = books.not_of(event.site, event.incarnation)
    if void:
        return void
    seq = event.incarnation[0]
    books.free([(e, b) for e, b, _ in books.held(seq)], "reclaim", "reclaimed")
    books.db.execute(
        "UPDATE incarnations SET state = 'departed', code = ?, reason = ?, departed_seq = ?, "
        "backoff_until = CASE WHEN ?4 > 0 THEN run.ticks + ?4 ELSE 0 END FROM run WHERE seq = ?",
        (event.code, event.reason, entry.record.sequence, event.backoff_ticks, seq),
    )
    books.db.execute("UPDATE run SET live = live - 1")
    return ""


def heartbeat(books: Books, entry: Entry) -> str:
    event = cast(Heartbeat, entry.event)
    assert entry.envelope is not None and entry.envelope.incarnation is not None
    seq = entry.envelope.incarnation[0]
    if books.value("SELECT step FROM incarnations WHERE seq = ?", seq) != event.step:
        books.progressed(seq)
    books.db.execute(
        "UPDATE incarnations SET phase = ?, step = ?, tokens = ?, walltime_left_s = ?, "
        "tokens_per_s = coalesce(nullif(?, 0.0), tokens_per_s), step_s = coalesce(?, step_s) "
        "WHERE seq = ?",
        (
            event.phase,
            event.step,
            event.tokens,
            event.walltime_left_s,
            event.tokens_per_s,
            event.step_s,
            seq,
        ),
    )
    return ""


def evaluated(books: Books, entry: Entry) -> str:
    event = cast(EvaluationCompleted, entry.event)
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
