"""Rules of what is unknown, damaged or gone (R17-R20)."""

from __future__ import annotations

import hashlib
import struct

import pytest

from eventlog.chain import FORMAT
from eventlog.errors import LogDamaged
from eventlog.events import (
    COORDINATOR,
    BlobsReleased,
    CoordinatorTick,
    Heartbeat,
)
from eventlog.memory_log import MemoryLog
from eventlog.projector import Projection
from eventlog.writer import Stamp
from leases import retention
from leases.table import LeaseTable
from outer.rounds import Facts, decide
from tests.support.scenario import RUN, Scenario, finish, name

BEAT = Heartbeat(phase="training", step=1, tokens=32, tokens_per_s=8.0)


@pytest.mark.parametrize("what", ["type", "version"])
def test_r17_what_a_newer_coordinator_decides_makes_read_only(what: str) -> None:
    run = Scenario()
    change = {"type": "lease.extended"} if what == "type" else {"version": 9}
    assert run.forged(COORDINATOR, CoordinatorTick(tick=1), **change) != ""
    assert "upgrade atoll" in run.view.run().read_only
    assert decide(run.view, Facts()) == []


def test_r17_what_a_newer_site_says_is_recorded_only() -> None:
    run = Scenario()
    run.arrive("a")
    assert "unknown type" in run.forged("site.a", BEAT, type="site.dreamt")
    assert run.view.run().read_only == ""
    assert run.says("a", BEAT) == ""


def test_r17_in_a_term_that_is_over_a_newer_coordinator_decides_nothing() -> None:
    run = Scenario()
    assert run.forged(COORDINATOR, CoordinatorTick(tick=1), type="new.kind", term=1) != ""
    assert run.view.run().read_only == ""


def test_r18_the_log_digest_is_the_chain_over_every_byte() -> None:
    run = Scenario()
    run.arrive("a")
    digest = hashlib.sha256(FORMAT + RUN.encode()).digest()
    for record in finish(run.log.read(0)):
        subject = record.subject.encode()
        head = struct.pack(">QqHI", record.sequence, 0, len(subject), len(record.payload))
        digest = hashlib.sha256(digest + head + subject + record.payload).digest()
    assert run.projection.position.log_digest == digest.hex()
    run.open(a=1)
    run.work("a", 0)
    run.decide(run.closing())
    commit = run.committing()
    assert commit.log_digest == run.projection.position.log_digest


def test_r19_a_log_that_is_not_what_was_folded_is_damaged() -> None:
    run = Scenario()
    run.arrive("a")
    shorter = MemoryLog(RUN, lambda: 0)
    records = finish(run.log.read(0))
    for record in records[:-1]:
        last = finish(shorter.last(record.subject))
        expected = last.sequence if last else 0
        finish(shorter.append(record.subject, [record.payload], expected))
    with pytest.raises(LogDamaged):
        finish(run.projection.check(shorter))
    finish(shorter.append("planner", [b"another event"], 0))
    with pytest.raises(LogDamaged, match="another event stands there"):
        finish(run.projection.check(shorter))
    with pytest.raises(LogDamaged):
        Projection(":memory:", [LeaseTable()], RUN).apply(records[1:])


def test_r20_a_blob_is_released_once_it_is_named_and_needed_again_where_it_is_stored_anew() -> None:
    run = Scenario()
    run.arrive("a")
    blob = name("a delta")
    assert run.decide(BlobsReleased(blobs=(blob,), reason="a test")) == ""
    assert retention.released(run.view.db) == [blob]
    run.grant("a", 0)
    run.train("a", 0)
    run.deliver("a", 0, blob=blob)
    assert retention.released(run.view.db) == []


def test_r20_a_void_release_releases_nothing() -> None:
    run = Scenario()
    old = run.view.run().term
    run.elect("two")
    said = run.append(
        COORDINATOR, [BlobsReleased(blobs=(name("x"),), reason="late")], Stamp(term=old)
    )
    assert said != [""] and retention.released(run.view.db) == []
