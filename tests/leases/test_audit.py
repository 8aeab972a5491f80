"""The audit finds what is wrong with a log, says by which rule and where, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.chain import Record
from eventlog.codec import encode
from eventlog.events import (
    COORDINATOR,
    CoordinatorTick,
    Cut,
    EpochClosed,
    Heartbeat,
    LeaseStolen,
    RoundCommitted,
    RunFinished,
    RunPaused,
    SiteDeparting,
)
from eventlog.writer import Stamp
from leases.audit import Audit
from leases.findings import Findings
from leases.life import Life
from tests.support.scenario import RUN, Scenario, finish, name


def records(scenario: Scenario) -> list[Record]:
    """The whole log of a scenario."""
    return finish(scenario.log.read(0, limit=100_000))


def audited(scenario: Scenario, life: Life | None = None) -> Findings:
    """What an audit says of it."""
    audit = Audit(RUN, life=life)
    audit.feed(records(scenario))
    found = audit.result()
    audit.close()
    return found


def broken(found: Findings) -> list[tuple[str, str, int]]:
    """Promise, rule and sequence of every violation."""
    return [(one.promise, one.rule, one.sequence) for one in found.violations]


def closing_epoch(scenario: Scenario, tokens: int = 6 * 32 - 16) -> EpochClosed:
    """Epoch 0, said to be merged as a whole: five blocks of 32 tokens, a short one of 16."""
    return EpochClosed(epoch=0, blocks=6, tokens=tokens, num_quarantined=0, reason="all merged")


def ending(scenario: Scenario, **changes: object) -> RunFinished:
    """The end of the run as it stands, right in everything but `changes`."""
    version = scenario.view.run().version
    fields = {
        "outcome": "target",
        "version": version,
        "tokens": scenario.view.run().merged_tokens,
        "num_returned": scenario.view.num_held(),
        "parameters_digest": name(f"version {version}"),
        "momentum_digest": name(f"momentum {version}"),
        "residual_digest": name(f"residual {version}"),
        "reason": "the target is reached",
    }
    return RunFinished.model_validate({**fields, **changes})


def delivered() -> Scenario:
    """Two sites; each has delivered blocks of round 1, alpha 0 and 1, beta 2."""
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=2, beta=1) == ""
    scenario.work("alpha", 0, 1)
    scenario.work("beta", 2)
    return scenario


def whole_run() -> Scenario:
    """One epoch of six blocks: a crash of beta that costs it two blocks, a steal from alpha, a
    refused delta, three rounds, the end."""
    scenario = delivered()
    scenario.commit()
    assert scenario.open(alpha=2, beta=2) == ""
    assert scenario.grant("beta", 3, 4) == ""
    scenario.train("beta", 3)
    assert scenario.depart("beta") == ""
    assert scenario.grant("alpha", 3, 4, 5) == ""
    stolen = LeaseStolen(
        incarnation=scenario.sites["alpha"], site="alpha", epoch=0, blocks=(5,), reason="idle"
    )
    assert scenario.decide(stolen) == ""
    scenario.train("alpha", 3, 4)
    bad = scenario.deliver("alpha", 3)
    assert scenario.refuse(bad, "alpha") == ""
    scenario.deliver("alpha", 4)
    scenario.commit()
    assert scenario.open(alpha=2) == ""
    scenario.work("alpha", 3, 5)
    scenario.commit()
    assert scenario.decide(closing_epoch(scenario)) == ""
    assert scenario.decide(ending(scenario)) == ""
    return scenario


def test_a_clean_run_holds_and_its_figures_are_those_of_the_story() -> None:
    scenario = whole_run()
    found = audited(scenario)
    assert found.violations == [] and found.void == [] and found.ok
    (epoch,) = found.epochs
    assert (epoch.blocks, epoch.merged, epoch.closed) == (6, 6, True)
    assert (epoch.open, epoch.duplicated, epoch.lost, epoch.quarantined) == (0, 0, 0, 0)
    # granted: 0 1 | 2 | 3 4 | 3 4 5 | 3 5; reclaimed from beta: 3 4; stolen: 5
    assert (found.blocks_granted, found.blocks_reclaimed, found.blocks_stolen) == (10, 2, 1)
    assert found.reclaimed_share == 0.2
    assert found.versions == 3 and found.model_digest == name("version 3")
    assert found.last_sequence == found.events == len(records(scenario))
    assert found.log_digest == scenario.projection.position.log_digest
    shares = {one.site: (one.granted, one.merged, one.reclaimed) for one in found.shares}
    assert shares == {"alpha": (7, 5, {}), "beta": (3, 1, {"departed (lost)": 2})}


def test_findings_do_not_depend_on_how_the_log_is_cut_into_batches(tmp_path: Path) -> None:
    scenario = whole_run()
    audit = Audit(RUN, tmp_path / "audit.sqlite")
    for record in records(scenario):
        audit.feed([record])
    assert audit.result() == audited(scenario)
    audit.close()


def test_a_log_that_ends_anywhere_breaks_no_promise() -> None:
    history = records(whole_run())
    audit = Audit(RUN)
    for record in history:
        audit.feed([record])
        assert audit.result().violations == []
    audit.close()


def test_json_has_the_documented_keys() -> None:
    keys = (
        "run ok events last_sequence anchored_through versions epochs blocks_granted "
        "blocks_reclaimed blocks_stolen reclaimed_share violations void log_digest model_digest"
    )
    said = audited(whole_run()).as_json()
    assert sorted(said) == sorted(keys.split())
    assert sorted(said["epochs"][0]) == sorted(
        "epoch blocks merged open duplicated lost quarantined reclaimed closed".split()
    )


# -- P1: once ---------------------------------------------------------------------------------


def test_a_cut_that_is_committed_twice_merges_its_blocks_twice() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    first = scenario.committing()
    assert scenario.decide(first) == ""
    assert scenario.decide(first) != ""
    found = audited(scenario)
    assert broken(found) == [("P1", "R4", scenario.last[0])]
    assert "blocks 0:0, 0:1, 0:2 again" in found.violations[0].what
    assert found.epochs[0].duplicated == 3 and found.epochs[0].merged == 3


def test_a_delta_that_is_cut_again_in_a_later_round_is_a_double_merge() -> None:
    scenario = delivered()
    cut = scenario.closing()
    scenario.commit()
    assert scenario.open(alpha=1) == ""
    again = scenario.closing(deltas=cut.deltas, tokens=cut.tokens)
    assert scenario.decide(again) != ""
    at_cut = scenario.last
    assert scenario.decide(scenario.committing(cut=at_cut, tokens=cut.tokens)) != ""
    found = audited(scenario)
    assert ("P1", "R4", scenario.last[0]) in broken(found)
    assert found.epochs[0].duplicated == 3


def test_an_epoch_that_is_closed_without_a_block_has_lost_it() -> None:
    scenario = delivered()
    scenario.commit()
    assert scenario.open(alpha=3) == ""
    scenario.work("alpha", 3, 5)
    scenario.commit()
    assert scenario.decide(closing_epoch(scenario)) != ""
    found = audited(scenario)
    assert broken(found) == [("P1", "R15", scenario.last[0])]
    assert "without block 0:4" in found.violations[0].what
    assert (found.epochs[0].lost, found.epochs[0].open, found.epochs[0].merged) == (1, 0, 5)


# -- P4: by whom the lease allowed ------------------------------------------------------------


def test_a_delta_under_a_lease_that_was_lost_must_not_be_merged() -> None:
    scenario = delivered()
    assert scenario.grant("beta", 3) == ""
    scenario.train("beta", 3)
    late = scenario.delivery(3)
    zombie = scenario.sites["beta"]
    assert scenario.depart("beta") == ""
    scenario.arrive("beta")
    assert scenario.says("beta", late, zombie) != ""
    delta = scenario.last
    forged = Cut(delta=delta, site="beta", tokens=32, weight=1.0)
    assert scenario.decide(scenario.closing(deltas=[forged], tokens=32)) != ""
    found = audited(scenario)
    assert broken(found) == [("P4", "R3", scenario.last[0])]
    assert f"incarnation {zombie[0]} of beta had departed" in found.violations[0].what
    assert [one.sequence for one in found.void] == [delta[0], scenario.last[0]]


def test_a_delta_that_names_an_older_lease_of_its_block_must_not_be_merged() -> None:
    scenario = delivered()
    assert scenario.grant("beta", 3) == ""
    scenario.train("beta", 3)
    stale = scenario.delivery(3)
    assert scenario.depart("beta") == ""
    scenario.arrive("beta")
    assert scenario.grant("beta", 3) == ""
    scenario.train("beta", 3)
    assert scenario.says("beta", stale) != ""
    forged = Cut(delta=scenario.last, site="beta", tokens=32, weight=1.0)
    assert scenario.decide(scenario.closing(deltas=[forged], tokens=32)) != ""
    found = audited(scenario)
    assert broken(found) == [("P4", "R3", scenario.last[0])]
    assert "the delta names" in found.violations[0].what


def test_a_cut_of_a_delta_that_nobody_published_is_found() -> None:
    scenario = delivered()
    forged = Cut(delta=(5, "no such event"), site="alpha", tokens=32, weight=1.0)
    assert scenario.decide(scenario.closing(deltas=[forged], tokens=32)) != ""
    assert broken(audited(scenario)) == [("P4", "R3", scenario.last[0])]


def test_a_refused_delta_must_not_be_cut() -> None:
    scenario = delivered()
    cut = scenario.closing()
    assert scenario.refuse(cut.deltas[1].delta, "beta") == ""
    assert scenario.decide(cut) != ""
    found = audited(scenario)
    assert broken(found) == [("P4", "R3", scenario.last[0])]
    assert "refused" in found.violations[0].what


# -- P5: weights from the ledger --------------------------------------------------------------


def test_weights_other_than_the_blocks_tokens_are_found() -> None:
    scenario = delivered()
    right = scenario.closing()
    assert [cut.weight for cut in right.deltas] == [64 / 96, 32 / 96]
    even = [cut.model_copy(update={"weight": 0.5}) for cut in right.deltas]
    assert scenario.decide(scenario.closing(deltas=even)) != ""
    found = audited(scenario)
    assert broken(found) == [("P5", "R15", scenario.last[0])] * 2


def test_a_short_block_weighs_its_real_tokens() -> None:
    scenario = Scenario(target={"epochs": 1})
    scenario.arrive("alpha", "beta")
    assert scenario.open(alpha=1, beta=1) == ""
    scenario.work("alpha", 0)
    scenario.work("beta", 5)
    scenario.commit()
    assert audited(scenario).ok
    assert scenario.view.run().merged_tokens == 32 + 16


# -- P3: digests and versions -----------------------------------------------------------------


def test_a_commit_with_another_log_digest_is_found() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    assert scenario.decide(scenario.committing(log_digest=name("another log"))) == ""
    found = audited(scenario)
    assert broken(found) == [("P3", "R18", scenario.last[0])]
    assert found.anchored_through == 0


def test_a_commit_cannot_attest_what_comes_after_it() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    assert scenario.decide(scenario.committing(through=10_000)) == ""
    assert broken(audited(scenario)) == [("P3", "R18", scenario.last[0])]


def test_versions_step_by_one() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    assert scenario.decide(scenario.committing(version=2)) != ""
    assert broken(audited(scenario)) == [("P1", "R4", scenario.last[0])]


def test_the_end_names_the_last_committed_version() -> None:
    scenario = Scenario(target={"rounds": 1})
    scenario.arrive("alpha")
    assert scenario.open(alpha=1) == ""
    scenario.work("alpha", 0)
    scenario.commit()
    assert scenario.decide(ending(scenario, momentum_digest=name("another"))) == ""
    found = audited(scenario)
    assert broken(found) == [("P3", "R15", scenario.last[0])]
    assert "momentum" in found.violations[0].what


def test_the_log_is_anchored_through_what_later_events_attest() -> None:
    scenario = delivered()
    assert audited(scenario).anchored_through == 0
    scenario.commit()
    commit = scenario.last
    assert audited(scenario).anchored_through == commit[0] - 1
    beat = Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0.0)
    stamp = Stamp(incarnation=scenario.sites["alpha"], seen=commit)
    assert scenario.append("site.alpha", [beat], stamp) == [""]
    assert audited(scenario).anchored_through == commit[0]


def test_a_site_that_saw_another_decision_shows_that_the_log_was_rewritten() -> None:
    scenario = delivered()
    beat = Heartbeat(phase="waiting", step=0, tokens=0, tokens_per_s=0.0)
    stamp = Stamp(incarnation=scenario.sites["alpha"], seen=(2, "a decision that is gone"))
    assert scenario.append("site.alpha", [beat], stamp) == [""]
    assert broken(audited(scenario)) == [("P3", "R18", scenario.last[0])]


# -- decisions that are void ------------------------------------------------------------------


def test_a_decision_of_an_ended_term_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    old = scenario.view.run().term
    scenario.elect("another")
    assert scenario.decide(CoordinatorTick(tick=1), term=old) != ""
    found = audited(scenario)
    assert found.ok
    assert [one.sequence for one in found.void] == [scenario.last[0]]


def test_a_commit_of_an_ended_term_merges_nothing() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    commit, old = scenario.committing(), scenario.view.run().term
    scenario.elect("another")
    assert scenario.decide(commit, term=old) != ""
    assert scenario.decide(scenario.committing()) == ""
    found = audited(scenario)
    assert found.ok and found.epochs[0].merged == 3 and found.versions == 1


def test_a_decision_of_a_term_that_nobody_claimed_is_found() -> None:
    scenario = delivered()
    assert scenario.decide(CoordinatorTick(tick=1), term=10_000) != ""
    assert broken(audited(scenario)) == [("P1", "R5", scenario.last[0])]


def test_a_decision_that_skips_the_one_before_it_is_found() -> None:
    scenario = delivered()
    void = scenario.forged(COORDINATOR, CoordinatorTick(tick=1), previous="another one")
    assert void != ""
    assert broken(audited(scenario)) == [("P1", "R5", scenario.last[0])]


def test_a_grant_of_what_somebody_holds_is_found() -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3) == ""
    assert scenario.grant("beta", 3, 4).startswith("in part")
    assert broken(audited(scenario)) == [("P1", "R2", scenario.last[0])]


def test_a_second_departure_of_one_incarnation_is_found() -> None:
    scenario = delivered()
    assert scenario.depart("beta") == ""
    assert scenario.depart("beta") != ""
    assert broken(audited(scenario)) == [("P4", "R4", scenario.last[0])]


def test_a_grant_that_a_pause_overtook_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    assert scenario.operator(RunPaused(reason="maintenance")) == ""
    assert scenario.grant("alpha", 3) != ""
    found = audited(scenario)
    assert found.ok and [one.type for one in found.void] == ["lease.granted"]


def test_a_grant_decided_in_full_knowledge_of_a_pause_is_found() -> None:
    scenario = delivered()
    assert scenario.operator(RunPaused(reason="maintenance")) == ""
    scenario.tick()
    assert scenario.grant("alpha", 3) != ""
    assert broken(audited(scenario)) == [("P1", "R2", scenario.last[0])]


def test_a_steal_that_a_start_overtook_leaves_the_block_where_it_is() -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3, 4) == ""
    assert scenario.says("alpha", scenario.starting(3)) == ""
    stolen = LeaseStolen(
        incarnation=scenario.sites["alpha"], site="alpha", epoch=0, blocks=(3, 4), reason="idle"
    )
    assert scenario.decide(stolen).startswith("in part")
    assert scenario.says("alpha", scenario.completing(3)) == ""
    scenario.commit()
    assert scenario.open(alpha=1) == ""
    scenario.deliver("alpha", 3)
    scenario.commit()
    found = audited(scenario)
    assert found.ok and (found.blocks_stolen, found.epochs[0].merged) == (1, 4)


def test_a_grant_to_a_departing_site_is_excused_only_where_it_spoke_meanwhile() -> None:
    scenario = delivered()
    assert scenario.says("alpha", SiteDeparting(code="drained", reason="asked to")) == ""
    assert scenario.grant("alpha", 3) != ""
    assert audited(scenario).ok
    assert scenario.grant("beta", 4) == ""
    assert scenario.says("beta", scenario.starting(4)) == ""
    assert scenario.grant("alpha", 5) != ""
    assert broken(audited(scenario)) == [("P1", "R2", scenario.last[0])]


@pytest.mark.parametrize("payload", [b"no event at all", b"\x80"])
def test_bytes_that_are_no_event_on_the_coordinators_subject_are_found(payload: bytes) -> None:
    scenario = delivered()
    assert scenario.raw(COORDINATOR, payload) != ""
    assert broken(audited(scenario)) == [("P4", "R6", scenario.last[0])]


def test_a_forged_source_on_a_sites_subject_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    commit = scenario.committing()
    envelope = scenario.envelope(COORDINATOR, commit)
    assert scenario.raw("site.beta", encode(commit, envelope)) != ""
    found = audited(scenario)
    assert found.ok and found.versions == 0 and found.epochs[0].merged == 0
    assert [one.type for one in found.void] == ["round.committed"]


def test_what_sites_say_in_vain_is_void_and_breaks_nothing() -> None:
    scenario = delivered()
    assert scenario.apply("alpha", 0, name("wrong parameters")) != ""
    assert scenario.says("alpha", scenario.starting(4)) != ""
    assert scenario.says("alpha", scenario.delivery(2)) != ""
    refused = scenario.last
    assert scenario.refuse(refused, "alpha", "void") == ""
    scenario.commit()
    found = audited(scenario)
    assert found.ok
    kinds = ["version.applied", "block.started", "delta.published"]
    assert [one.type for one in found.void] == kinds


# -- damage and lives -------------------------------------------------------------------------


def test_a_gap_ends_the_audit_before_it() -> None:
    history = records(delivered())
    audit = Audit(RUN)
    audit.feed(history[:9])
    audit.feed(history[10:])
    found = audit.result()
    assert broken(found) == [("P3", "R19", 10)]
    assert found.last_sequence == 9
    audit.close()


def test_the_life_of_a_block_is_every_event_that_touched_it() -> None:
    life = Life(0, 3)
    assert audited(whole_run(), life).ok
    assert [(one.type, one.after) for one in life.moments] == [
        ("lease.granted", "leased"),
        ("block.started", "training"),
        ("block.completed", "trained"),
        ("site.departed", "available"),
        ("lease.granted", "leased"),
        ("block.started", "training"),
        ("block.completed", "trained"),
        ("delta.published", "delivered"),
        ("delta.refused", "available"),
        ("lease.granted", "leased"),
        ("block.started", "training"),
        ("block.completed", "trained"),
        ("delta.published", "delivered"),
        ("round.closed", "delivered"),
        ("round.committed", "merged"),
    ]


def test_a_stray_commit_without_a_cut_merges_nothing() -> None:
    scenario = delivered()
    stray = RoundCommitted.model_validate(
        {**scenario.committing().model_dump(), "cut": (3, "no cut at all")}
    )
    assert scenario.decide(stray) != ""
    assert broken(audited(scenario)) == [("P4", "R13", scenario.last[0])]
