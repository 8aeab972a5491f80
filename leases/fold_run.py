"""Rules of the run's life: its founding, the operator's requests, terms, ticks, its end."""

from __future__ import annotations

from typing import cast

from eventlog.codec import Entry, content_digest, pack
from eventlog.config import RunConfig
from eventlog.events import (
    OPERATOR,
    CoordinatorElected,
    CoordinatorTick,
    KeysNamed,
    RunCreated,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStopped,
)
from eventlog.signatures import fault
from leases import signing
from leases.books import Books
from leases.progress import target_reached
from leases.requests import REQUESTS, refusal

MAX_EPOCH_TOKENS = 2**53  # up to here float64 weights are exact in the tokens


def created(books: Books, entry: Entry) -> str:
    event = cast(RunCreated, entry.event)
    assert entry.envelope is not None
    void = _unusable(event)
    own = [one.key for one in event.keys if one.subject == OPERATOR]
    if not void and own:
        void = fault(entry.record.payload, own)
    if void:
        return void
    signing.name(books.db, event.keys)
    books.db.execute(
        "UPDATE run SET created_seq = ?, config = ?, data = ?, arithmetic = ?, "
        "arithmetic_digest = ?, parameters_blob = ?, initial_digest = ?, num_parameters = ?, "
        "lineage = ?",
        (
            entry.record.sequence,
            pack(event.config),
            pack(event.data.model_dump()),
            pack(event.arithmetic),
            event.arithmetic_digest,
            event.parameters_blob,
            event.parameters_digest,
            event.num_parameters,
            pack(event.lineage.model_dump()) if event.lineage else None,
        ),
    )
    books.run.name, books.run.state = entry.envelope.run, "running"
    books.ensure_epoch(0)
    return ""


def asked(books: Books, entry: Entry) -> str:
    event = cast(RunPaused | RunResumed | RunStopped, entry.event)
    void = refusal(event.type, books.run.state)
    if void:
        return void
    books.run.state, books.run.reason = REQUESTS[event.type][1], event.reason
    if isinstance(event, RunResumed):
        books.run.resumed_version = books.run.version
    return ""


def keys_named(books: Books, entry: Entry) -> str:
    if void := signing.unsigned(books, entry):
        return void
    signing.change(books.db, cast(KeysNamed, entry.event))
    return ""


def finished(books: Books, entry: Entry) -> str:
    """R15: whatever is neither merged nor delivered goes back; nothing counts afterwards."""
    event = cast(RunFinished, entry.event)
    if void := signing.unsigned(books, entry):
        return void
    version, tokens = books.run.version, books.run.merged_tokens
    if (event.version, event.tokens) != (version, tokens):
        return f"names version {event.version}, {event.tokens} tokens; it is {version}, {tokens}"
    if event.outcome == "stopped" and books.run.state != "stopping":
        return f"nobody asked the run to stop; it is {books.run.state}"
    if event.outcome == "target" and books.scope is None and not _reached(books):
        return "the target is not reached"
    held = books.blocks.find("state IN ('leased', 'training', 'trained')")
    if books.scope is None and len(held) != event.num_returned:
        return f"returns {event.num_returned} blocks, {len(held)} are held"
    void = "" if books.scope else _unsettled(books, event)
    if void:
        return void
    books.free(held, "reclaim")
    books.run.state, books.run.reason = "finished", event.reason
    books.run.finished_seq = entry.record.sequence
    return ""


def _reached(books: Books) -> bool:
    books.finish()  # the question is asked of the tables
    return target_reached(books.db)


def _unsettled(books: Books, event: RunFinished) -> str:
    """What the end would leave open: a logged cut is committed first, deltas left are named."""
    if books.value("SELECT round FROM rounds WHERE state = 'closed'") is not None:
        return "a logged cut is not committed yet"
    undecided = books.db.execute(
        "SELECT seq, id FROM deltas WHERE state = 'undecided' ORDER BY seq"
    ).fetchall()
    if sorted(event.undecided) != undecided:
        return f"names {len(event.undecided)} undecided deltas, there are {len(undecided)}"
    return ""


def elected(books: Books, entry: Entry) -> str:
    """R5: a claim is its own term; the expected-sequence append let only one stand here."""
    event = cast(CoordinatorElected, entry.event)
    books.run.term, books.run.holder = entry.record.sequence, event.holder
    books.run.term_ticks = 0
    return ""


def tick(books: Books, entry: Entry) -> str:
    event = cast(CoordinatorTick, entry.event)
    expected = books.run.term_ticks + 1
    if event.tick != expected:
        return f"tick {event.tick} of this term, expected {expected}"
    books.run.term_ticks = expected
    books.run.ticks += 1
    return ""


def _unusable(event: RunCreated) -> str:
    """Why no run can be made of this: rules and schedules read the configuration as it stands."""
    try:
        RunConfig.recorded(event.config)
        digest = content_digest(event.config)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        return f"its configuration is invalid: {str(error)[:500]}"
    if event.config_digest != digest:
        return f"its configuration has digest {digest[:12]}, not {event.config_digest[:12]}"
    if event.lineage and event.lineage.parameters_digest != event.parameters_digest:
        return "it starts from other parameters than those of the version that it was forked from"
    if event.data.num_sequences * event.data.sequence_tokens > MAX_EPOCH_TOKENS:
        return f"an epoch has more than {MAX_EPOCH_TOKENS} tokens"
    return ""


RULES = {
    "run.created": created,
    "run.keys_named": keys_named,
    "run.paused": asked,
    "run.resumed": asked,
    "run.stopped": asked,
    "run.finished": finished,
    "coordinator.elected": elected,
    "coordinator.tick": tick,
}
