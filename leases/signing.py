"""Who may sign for a subject, as the operator names it, and whether an event is signed so.

Where no key is named for a subject nothing is asked of it. Once one is, a delta, commit or end that
stands there without a signature of a named key is void for everybody who folds the log: whoever
holds the broker, or a site's connection, can then still not speak for others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from eventlog.codec import Entry
from eventlog.events import KeysNamed, NamedKey
from eventlog.signatures import SIGNED, fault
from leases.books import Books


def unsigned(books: Books, entry: Entry) -> str:
    """'' or why the event's signature does not hold."""
    keys = named(books.db, entry.record.subject)
    return fault(entry.record.payload, keys) if keys else ""


def name(db: sqlite3.Connection, keys: Iterable[NamedKey]) -> None:
    """From here on these may sign."""
    rows = [(one.subject, one.key) for one in keys]
    db.executemany(
        "INSERT INTO named_keys VALUES (?, ?, 0) "
        "ON CONFLICT (subject, key) DO UPDATE SET dropped = 0",
        rows,
    )


def change(db: sqlite3.Connection, event: KeysNamed) -> None:
    """Name keys and drop others. A subject that loses its last key is not free again: nobody
    speaks for it until another is named."""
    name(db, event.keys)
    db.executemany(
        "UPDATE named_keys SET dropped = 1 WHERE subject = ? AND key = ?",
        [(one.subject, one.key) for one in event.dropped],
    )


def named(db: sqlite3.Connection, subject: str) -> list[str]:
    """The keys that may sign for a subject; where all were dropped one that nobody has; where none
    was ever named, none."""
    rows = db.execute("SELECT key, dropped FROM named_keys WHERE subject = ?", (subject,))
    found = rows.fetchall()
    return [key for key, dropped in found if not dropped] or ([""] if found else [])


def count(db: sqlite3.Connection, entry: Entry) -> None:
    """For an audit: one more signature that was asked for and holds, if this event had to be signed
    and is not void."""
    if type(entry.event) in SIGNED and named(db, entry.record.subject):
        db.execute("UPDATE audit_signed SET num = num + 1")
