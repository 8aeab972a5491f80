"""A log that breaks P1, P3, P4 or P5 is caught: by which rule, and at which sequence."""

from __future__ import annotations

from eventlog.events import (
    Cut,
    Heartbeat,
    RoundCommitted,
)
from eventlog.writer import Stamp
from tests.leases.stories import (
    audited,
    broken,
    closing_epoch,
    delivered,
    ending,
)
from tests.support.scenario import Scenario, name

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
    assert scenario.decide(closing_epoch()) != ""
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


def test_a_stray_commit_without_a_cut_merges_nothing() -> None:
    scenario = delivered()
    stray = RoundCommitted.model_validate(
        {**scenario.committing().model_dump(), "cut": (3, "no cut at all")}
    )
    assert scenario.decide(stray) != ""
    assert broken(audited(scenario)) == [("P4", "R13", scenario.last[0])]
