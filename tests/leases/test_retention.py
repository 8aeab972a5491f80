"""R20: what a joiner starts from stays while it lives without a version, and no longer."""

from __future__ import annotations

import pytest

from eventlog.config import Timing
from eventlog.events import BlobsReleased, Heartbeat, SiteDeparting, SnapshotSaved
from leases import policy, retention
from outer.keeping import releasing
from tests.leases.stories import alone, assert_clean
from tests.support.scenario import Scenario, name


def version(run: Scenario) -> int:
    """One version more, with a snapshot; what `decide` makes releasable is released."""
    number = run.view.run().version + 1
    run.open(a=1)
    run.work("a", (number - 1) % 6, epoch=(number - 1) // 6)
    run.commit()
    blob = name(f"snapshot {number}")
    run.decide(SnapshotSaved(version=number, blob=blob, num_bytes=1, reason="due"))
    run.apply("a", number)
    for event in releasing(run.view):
        assert run.decide(event) == ""
    return number


def story(num: int = 3) -> Scenario:
    run = Scenario({"epochs": 9}, snapshots={"every_versions": 1})
    run.arrive("a")
    for _ in range(num):
        version(run)
    return run


def kept(run: Scenario) -> list[int]:
    """Versions whose snapshot can be had."""
    released = set(retention.released(run.view.db))
    return [one.version for one in run.view.versions() if one.snapshot_blob not in released]


def admitted(run: Scenario, site: str = "b") -> None:
    assert run.admit(site, run.join(site)) == ""


def test_a_joiner_without_a_version_finds_its_snapshot_however_long_it_takes() -> None:
    run = story()
    admitted(run)
    for _ in range(20):
        version(run)
    assert kept(run) == list(range(3, 24))
    updates = {one.update_blob for one in run.view.versions(after=3)}
    assert not updates & set(retention.released(run.view.db))
    assert releasing(run.view) == []
    assert run.apply("b", 23) == ""
    (event,) = releasing(run.view)
    assert "snapshots of 22 and 23" in event.reason
    assert run.decide(event) == ""
    assert kept(run) == [22, 23]
    assert_clean(run)


def test_of_two_joiners_the_one_that_came_first_is_waited_for() -> None:
    run = story()
    admitted(run, "late")
    version(run)
    admitted(run, "b")
    version(run)
    version(run)
    assert retention.horizon(run.view.db)[0] == 3
    assert run.apply("late", 6) == ""
    version_, why = retention.horizon(run.view.db)
    assert version_ == 4 and why.startswith("b holds no version yet")
    (event,) = releasing(run.view)
    assert event.reason == why
    assert run.decide(event) == ""
    assert kept(run) == [4, 5, 6]


def test_who_came_before_the_first_snapshot_has_the_initial_parameters_and_every_update() -> None:
    run = story(0)
    admitted(run)
    for _ in range(4):
        version(run)
    assert retention.horizon(run.view.db)[0] == 0
    assert retention.released(run.view.db) == []
    run.apply("b", 4)
    assert retention.horizon(run.view.db)[0] == 3


def test_a_joiner_that_is_gone_or_goes_holds_nothing_back() -> None:
    for end in ("departed", "departing"):
        run = story()
        admitted(run)
        for _ in range(4):
            version(run)
        assert kept(run) == [3, 4, 5, 6, 7]
        if end == "departed":
            run.depart("b")
        else:
            run.says("b", SiteDeparting(code="walltime", reason="its job ends"))
        (event,) = releasing(run.view)
        run.decide(event)
        assert kept(run) == [6, 7]


def test_a_joiner_that_is_silent_is_departed_and_one_that_speaks_is_waited_for() -> None:
    run = story()
    admitted(run)
    admitted(run, "c")
    k = run.view.timing().lost_ticks(3)
    for _ in range(k):
        run.tick()
        version(run)
        beat(run, "b")
    (event,) = policy.departures(run.view)
    assert (event.site, event.code) == ("c", "lost")
    assert 3 in kept(run)


def beat(run: Scenario, site: str, step: int = 0) -> None:
    fields = {"phase": "starting", "step": step, "tokens": step, "tokens_per_s": 1.0}
    assert run.says(site, Heartbeat.model_validate(fields)) == ""


@pytest.mark.parametrize("steps", [False, True])
def test_r10_who_only_speaks_is_not_waited_for_longer_than_a_transfer_may_take(
    steps: bool,
) -> None:
    """So what is kept is bounded; also where a site that holds no version says that it trains."""
    run = Scenario({"epochs": 9}, limits={"transfer_s": 60.0}, snapshots={"every_versions": 1})
    run.arrive("a")
    admitted(run)
    tick_s = run.view.timing().tick_s
    bound = round(60.0 / tick_s) + Timing.BASE_K
    for tick in range(bound):
        run.tick()
        beat(run, "a")
        beat(run, "b", step=tick if steps else 0)
    assert policy.departures(run.view) == []
    run.tick()
    (event,) = policy.departures(run.view)
    assert event.site == "b" and "without a version since it was admitted" in event.reason


@pytest.mark.parametrize("what", ["snapshot 3", "snapshot 4", "update 4", "update 5"])
def test_the_audit_finds_a_release_of_what_a_joiner_starts_from(what: str) -> None:
    run = story()
    admitted(run)
    for _ in range(3):
        version(run)
    release = BlobsReleased(blobs=(name(what),), reason="two later snapshots stand")
    assert run.decide(release) == ""
    assert alone(run) == ("P3", "R20", "", "")


def test_the_audit_has_nothing_against_the_same_release_once_it_holds_a_version() -> None:
    run = story()
    admitted(run)
    for _ in range(3):
        version(run)
    run.apply("b", 6)
    blobs = tuple(sorted(name(f"snapshot {one}") for one in (3, 4)))
    assert run.decide(BlobsReleased(blobs=blobs, reason="two later snapshots stand")) == ""
    assert_clean(run)
