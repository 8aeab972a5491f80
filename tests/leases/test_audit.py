"""A clean log passes; its figures are those of what happened."""

from __future__ import annotations

from pathlib import Path

from eventlog.events import (
    LeaseReclaimed,
)
from leases.audit import Audit
from leases.life import Life
from tests.leases.stories import (
    audited,
    broken,
    closing_epoch,
    delivered,
    ending,
    records,
    whole_run,
)
from tests.support.scenario import RUN, Scenario, name


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
        "blocks_reclaimed blocks_stolen reclaimed_share violations void log_digest model_digest "
        "evaluations lineage manifest_digest num_parameters signatures published"
    )
    said = audited(whole_run()).as_json()
    assert sorted(said) == sorted(keys.split())
    of_epoch = "epoch blocks merged open duplicated lost quarantined reclaimed closed"
    assert sorted(said["epochs"][0]) == sorted(of_epoch.split(" "))


def test_a_reclaim_of_some_blocks_takes_only_what_was_not_started() -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3, 4, 5) == ""
    scenario.train("alpha", 3)
    whole = LeaseReclaimed(
        incarnation=scenario.sites["alpha"], site="alpha", blocks=((0, 4), (0, 5)), reason="slow"
    )
    assert scenario.decide(whole) == ""
    scenario.commit()
    assert scenario.open(alpha=1, beta=2) == ""
    scenario.deliver("alpha", 3)
    scenario.work("beta", 4, 5)
    scenario.commit()
    assert scenario.decide(closing_epoch()) == ""
    found = audited(scenario)
    assert found.ok and found.epochs[0].closed
    assert (found.blocks_granted, found.blocks_reclaimed) == (8, 2)


def test_a_void_delta_gives_back_only_what_was_trained_when_it_came() -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3, 4) == ""
    scenario.train("alpha", 3)
    assert scenario.says("alpha", scenario.delivery(3, 4)) != ""
    void = scenario.last
    assert scenario.refuse(void, "alpha", "void") == ""
    scenario.train("alpha", 4)
    scenario.commit()
    assert scenario.open(alpha=2) == ""
    scenario.deliver("alpha", 4)
    scenario.commit()
    found = audited(scenario)
    assert found.ok and found.epochs[0].merged == 4
    assert found.shares[0].reclaimed == {"void delta": 1}


def test_the_end_of_a_run_returns_what_was_not_delivered() -> None:
    scenario = Scenario(target={"rounds": 1})
    scenario.arrive("alpha")
    assert scenario.open(alpha=2) == ""
    scenario.work("alpha", 0)
    assert scenario.grant("alpha", 1, 2) == ""
    scenario.train("alpha", 1)
    scenario.commit()
    assert scenario.decide(ending(scenario)) == ""
    assert scenario.says("alpha", scenario.delivery(1)) != ""
    found = audited(scenario)
    assert found.ok and found.shares[0].reclaimed == {"the run ended": 2}
    assert [one.type for one in found.void] == ["delta.published"]


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
