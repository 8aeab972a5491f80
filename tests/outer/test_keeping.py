"""Decisions about what outlasts a round: the end, snapshots, releases; limits of all of them."""

from __future__ import annotations

import math
from pathlib import Path

from eventlog.dir_blobs import DirBlobs
from eventlog.events import (
    BlockQuarantined,
    Event,
    RoundClosed,
    RoundOpened,
    RunFinished,
    RunStopped,
    SnapshotSaved,
)
from eventlog.log import MAX_BATCH
from leases import policy
from outer.facts import Facts, Verdict
from outer.keeping import finishing, releasing, saving, sweeping
from outer.orphans import Orphans, longest_upload_ticks
from outer.rounds import closing, committing, decide, opening, refusals
from tests.support.scenario import Scenario, name

DIGESTS = (name("p"), name("m"), name("r"))


def good(run: Scenario) -> Facts:
    """Every delta's blob is found good."""
    deltas = run.view.deltas("undecided", "cut")
    return Facts({delta.token[0]: Verdict() for delta in deltas}, digests=DIGESTS)


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def test_r2_stopped_the_run_finishes_once_everyone_has_left() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=1)
    run.work("a", 0)
    run.operator(RunStopped(reason="enough"))
    assert finishing(run.view, good(run)) == []
    run.depart("a", "drained")
    assert kinds(decide(run.view, good(run))) == ["round.closed"]
    run.commit()
    saved = SnapshotSaved(version=1, blob=name("s"), num_bytes=1, reason="the end")
    assert finishing(run.view, good(run)) == []
    facts = Facts(saved=(saved,), digests=DIGESTS)
    assert decide(run.view, facts) == [saved]
    run.decide(saved)
    (end,) = decide(run.view, facts)
    assert isinstance(end, RunFinished)
    assert (end.outcome, end.version, end.num_returned) == ("stopped", 1, 0)
    assert run.decide(end) == ""
    assert decide(run.view, facts) == []


def test_r15_the_end_follows_the_commit_that_reaches_the_target_and_names_the_rest() -> None:
    run = Scenario({"rounds": 1})
    run.arrive("a", "b")
    run.open(a=1, b=1)
    run.work("a", 0)
    run.grant("b", 1, 2)
    run.train("b", 1)
    run.commit()
    late = run.deliver("b", 1, base_version=0)
    run.decide(SnapshotSaved(version=1, blob=name("s"), num_bytes=1, reason="the end"))
    assert opening(run.view) == []
    (end,) = finishing(run.view, good(run))
    assert (end.outcome, end.undecided, end.num_returned) == ("target", (late,), 1)
    assert run.decide(end) == ""


def test_r15_a_quarantine_of_the_last_block_ends_the_run_though_a_round_is_open() -> None:
    """No commit can follow: nobody has a block, and a round without a delta stays open."""
    run = Scenario({"epochs": 1}, num_sequences=8)
    run.arrive("a")
    run.open(a=1)
    run.work("a", 0)
    run.commit()
    run.decide(SnapshotSaved(version=1, blob=name("s"), num_bytes=1, reason="the end"))
    run.open(a=1)
    assert finishing(run.view, good(run)) == []
    assert run.decide(BlockQuarantined(epoch=0, block=1, reason="nobody can train it")) == ""
    (end,) = finishing(run.view, good(run))
    assert (end.outcome, end.version, end.num_returned) == ("target", 1, 0)
    assert run.decide(end) == ""


def test_a_merge_of_another_cut_is_not_committed() -> None:
    run = Scenario()
    run.arrive("a")
    run.open(a=1)
    first = run.work("a", 0)
    run.decide(run.closing())
    merged = run.committing()
    assert committing(run.view, Facts(merged=merged)) == [merged]
    run.refuse(first, "a")
    assert committing(run.view, Facts(merged=merged)) == []
    run.work("a", 1)
    run.decide(run.closing())
    assert committing(run.view, Facts(merged=merged)) == []


def versions_with_snapshots(run: Scenario, num: int, snapshots: set[int]) -> None:
    run.arrive("a")
    for version in range(1, num + 1):
        run.open(a=1)
        run.work("a", (version - 1) % 6, epoch=(version - 1) // 6)
        run.commit()
        run.apply("a", version)
        if version in snapshots:
            blob = name(f"snapshot {version}")
            run.decide(SnapshotSaved(version=version, blob=blob, num_bytes=1, reason="due"))


def test_what_the_second_newest_snapshot_makes_needless_is_released() -> None:
    run = Scenario({"epochs": 9})
    versions_with_snapshots(run, 3, {1})
    assert releasing(run.view) == []
    (delta,) = run.view.merged_in(1)
    run.decide(SnapshotSaved(version=3, blob=name("snapshot 3"), num_bytes=1, reason="due"))
    (event,) = releasing(run.view)
    assert set(event.blobs) == {name("update 1"), delta.blob}
    run.decide(event)
    assert releasing(run.view) == []
    assert saving(run.view, Facts()) == []
    versions = {version.version: version.snapshot_blob for version in run.view.versions()}
    assert run.view.snapshot_at_most(2).version == 1 and versions[3]


def test_all_is_kept_where_the_configuration_says_so() -> None:
    run = Scenario({"epochs": 9}, snapshots={"every_versions": 1, "retention": "all"})
    versions_with_snapshots(run, 3, {1, 2, 3})
    assert releasing(run.view) == []


def test_reasons_fit_however_many_sites_and_words_there_are() -> None:
    run = Scenario()
    sites = [f"{'s' * 55}{number}" for number in range(60)]
    run.arrive(*sites)
    (event,) = opening(run.view)
    assert isinstance(event, RoundOpened) and len(event.reason) <= 2000
    run.decide(event)
    run.decide(*policy.grants(run.view))
    held = next(site for site in sites if run.view.held(run.sites[site][0]))
    block = run.view.held(run.sites[held][0])[0].block
    run.train(held, block)
    run.deliver(held, block)
    void = run.delivery(block)
    part = void.blocks[0].model_copy(update={"lease": (1, "x" * 5000)})
    other = next(site for site in sites if site != held)
    run.says(other, void.model_copy(update={"blocks": (part,)}))
    (refusal,) = refusals(run.view, Facts({}))
    assert len(refusal.reason) <= 2000
    run.operator(RunStopped(reason="y" * 2000))
    run.join("late")
    (answer,) = policy.joins(run.view)
    assert len(answer.reason) <= 2000
    run.decide(answer)
    for site in sites:
        run.depart(site, "drained")
    run.decide(refusal)
    (cut,) = closing(run.view, good(run))
    assert isinstance(cut, RoundClosed)
    run.commit()
    run.decide(SnapshotSaved(version=1, blob=name("s"), num_bytes=1, reason="the end"))
    (end,) = finishing(run.view, good(run))
    assert len(end.reason) <= 2000


def test_an_append_holds_no_more_than_a_log_takes() -> None:
    run = Scenario()
    for number in range(MAX_BATCH + 20):
        run.admit(f"s{number}", run.join(f"s{number}"))
    run.tick(run.view.timing().lost_ticks(MAX_BATCH + 20))
    assert len(policy.departures(run.view)) == MAX_BATCH + 20
    events = decide(run.view, Facts())
    assert len(events) == MAX_BATCH
    assert run.decide(*events) == ""
    assert len(decide(run.view, Facts())) == 20


def test_r20_what_no_event_names_is_released_once_it_is_older_than_an_upload_may_be() -> None:
    run = Scenario({"epochs": 9})
    versions_with_snapshots(run, 2, {1})
    (delta,), update = run.view.merged_in(1), name("update 1")
    named = {delta.blob, update, name("snapshot 1"), run.view.run().parameters_blob}
    bound, tick = longest_upload_ticks(run.view), run.view.run().term_ticks
    assert bound == math.ceil(1800 / (run.view.config().lease_s / 8)), "of limits.transfer_s"
    facts = Facts(unnamed={name("half"): tick, name("later"): tick + 1} | dict.fromkeys(named, 0))
    run.tick(bound)
    assert sweeping(run.view, facts) == []
    run.tick()
    (event,) = sweeping(run.view, facts)
    assert event.blobs == (name("half"),)
    assert str(bound) in event.reason
    assert run.decide(event) == ""
    assert run.view.db.execute("SELECT blob FROM released").fetchall() == [(name("half"),)]


async def test_an_upload_that_grows_is_new_at_every_look(tmp_path: Path) -> None:
    run = Scenario()
    run.arrive("a")
    store, orphans = DirBlobs(tmp_path), Orphans()
    growing, given_up, whole = name("growing"), name("given up"), tmp_path / "source"
    whole.write_bytes(b"nobody names it")
    store.part(growing).write_bytes(b"1")
    store.part(given_up).write_bytes(b"1")
    start = run.view.run().term_ticks
    await orphans.look(store, run.view)
    run.tick(3)
    store.part(growing).write_bytes(b"12")
    blob = await store.put(whole)
    await orphans.look(store, run.view)
    assert orphans.ticks() == {growing: start + 3, given_up: start, blob.digest: start + 3}
    orphans.forget([given_up])
    assert set(orphans.ticks()) == {growing, blob.digest}
    assert not orphans.due(run.view)
    run.tick(longest_upload_ticks(run.view) // 2)
    assert orphans.due(run.view)
