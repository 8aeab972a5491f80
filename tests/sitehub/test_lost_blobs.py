"""A hub whose blobs are lost: it says so, asks again ever later, and loses none of its work."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from eventlog.config import Outer
from eventlog.events import BlobsReleased, Heartbeat, SiteDeparting, SnapshotSaved, VersionApplied
from outer.versions import OuterState, save_snapshot
from sitehub.actions import Action, Fetch
from sitehub.rehearsal import NAME, Rehearsal, save_initial
from tests.support.desk import LEASE_S, Desk
from tests.support.scenario import Scenario, name

UPDATE, SNAPSHOT = name("update 1"), name("a snapshot")


class Shop(Desk):
    """A desk whose blob store has lost some blobs."""

    gone: frozenset[str] = frozenset({UPDATE})
    asked: list[tuple[float, str]]

    def _do(self, action: Action) -> None:
        if isinstance(action, Fetch):
            self.asked = [*getattr(self, "asked", []), (self.now, action.blob)]
            if action.blob in self.gone:
                return self.logic.on_missing(action.blob, self.now)
        super()._do(action)


def behind() -> Shop:
    """`a` has begun a block of its two when another site's delta alone makes version 1, whose
    update is lost."""
    desk = Shop(Scenario({"epochs": 9}))
    desk.run.arrive("b")
    desk.come_in()
    assert desk.run.open(a=2, b=1) == ""
    assert desk.run.grant("a", 0) == ""
    desk.turn()
    desk.run.work("b", 2)
    desk.run.commit()
    return desk


def saved(desk: Shop, version: int = 1) -> None:
    event = SnapshotSaved(version=version, blob=SNAPSHOT, num_bytes=40, reason="a blob is lost")
    assert desk.run.decide(event) == ""


def test_r13_a_lost_blob_is_asked_for_ever_later_and_never_by_leaving() -> None:
    desk = behind()
    desk.trained(1)
    desk.turn()
    desk.watch(8 * LEASE_S)
    times = [at for at, blob in desk.asked if blob == UPDATE]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, LEASE_S] and set(pauses[4:]) == {LEASE_S}
    assert not desk.says(SiteDeparting) and desk.run.view.live_at("a") is not None


def test_p6_heartbeats_name_what_is_lacking_until_it_is_there() -> None:
    desk = behind()
    assert desk.run.open(a=1, b=1) == ""
    desk.trained(1)
    desk.turn()
    assert desk.told[-1]["do"] == "publish"  # what is trained is delivered all the same
    desk.answer(path="delta-1", codec="fp32", norm=1.0, max_abs=1.0, seconds=0.1)
    desk.logic.on_stored("delta-1", name("delta of a"), 40, 0.1)
    desk.watch(3.0)
    assert desk.says(Heartbeat)[-1].missing == UPDATE
    assert desk.run.view.live_at("a").missing == UPDATE
    assert desk.says(Heartbeat)[-1].phase == "applying"
    saved(desk)
    desk.turn()
    assert desk.told[-1] == {
        "do": "load", "version": 1, "path": SNAPSHOT, "kind": "snapshot", "keep": True
    }  # fmt: skip
    desk.hold(1)
    desk.watch(3.0)
    assert desk.says(VersionApplied)[-1].source == "snapshot"
    assert desk.run.view.live_at("a").missing is None
    assert desk.says(Heartbeat)[-1].missing is None and desk.hub.lacking == {}


def test_a_blob_that_comes_back_is_taken_before_a_snapshot_that_cannot_be_had_either() -> None:
    desk = behind()
    desk.gone = frozenset({UPDATE, SNAPSHOT})
    saved(desk)
    desk.trained(1)
    desk.turn()
    desk.watch(3.0)
    assert {blob for _, blob in desk.asked} >= {UPDATE, SNAPSHOT}
    desk.gone = frozenset({SNAPSHOT})
    desk.hub.publication = None
    desk.watch(LEASE_S)
    assert [one["do"] for one in desk.told if one.get("path") == UPDATE] == ["apply"]


def test_a_joiner_ends_the_fetch_it_has_begun_though_newer_snapshots_come() -> None:
    run = Scenario({"epochs": 9})
    run.arrive("b")
    desk = Slow(run)
    for version in (1, 2, 3):
        run.open(b=1)
        run.work("b", version)
        run.commit()
        run.apply("b", version)
        blob = name(f"snapshot {version}")
        fields = {"version": version, "blob": blob, "num_bytes": 40, "reason": "it is due"}
        assert run.decide(SnapshotSaved.model_validate(fields)) == ""
        if version == 1:
            desk.turn()
            desk.ready()
            desk.turn()
            assert run.admit("a", run.view.waiting_joins()[0].token) == ""
        desk.turn()
    assert desk.wanted == [name("snapshot 1")]
    desk.logic.on_fetched(name("snapshot 1"), desk.now)
    desk.turn()
    assert (desk.told[-1]["do"], desk.told[-1]["version"]) == ("load", 1)
    desk.hold(1)
    desk.turn()
    assert desk.wanted == [name("snapshot 1"), name("update 2")]


def test_who_fell_behind_ends_the_fetch_it_has_begun_though_newer_snapshots_come() -> None:
    """Each newer one would begin the same anew, for ever on a slow link."""
    run = Scenario({"epochs": 9})
    run.arrive("b")
    desk = Slow(run)
    desk.turn()
    desk.ready()
    desk.turn()
    assert run.admit("a", run.view.waiting_joins()[0].token) == ""
    desk.turn()
    desk.logic.on_fetched(desk.wanted.pop(), desk.now)  # the initial parameters
    desk.turn()
    desk.hold(0)
    desk.turn()
    for version in (1, 2, 3):
        run.open(b=1)
        run.work("b", version)
        run.commit()
        run.apply("b", version)
        if version == 1:
            desk.turn()
            desk.logic.on_missing(UPDATE, desk.now)
        blob = name(f"snapshot {version}")
        fields = {"version": version, "blob": blob, "num_bytes": 40, "reason": "it is due"}
        assert run.decide(SnapshotSaved.model_validate(fields)) == ""
        desk.turn()
    assert desk.wanted == [UPDATE, name("snapshot 1")]
    desk.logic.on_fetched(name("snapshot 1"), desk.now)
    desk.turn()
    last = desk.told[-1]
    assert (last["do"], last["version"], last["keep"]) == ("load", 1, True)


def test_p6_what_was_released_is_not_reported_as_missing() -> None:
    """The run is to make up for what it lost, not for what it let go."""
    desk = behind()
    assert desk.run.open(a=1, b=1) == ""
    desk.trained(1)
    desk.turn()
    desk.answer(path="delta-1", codec="fp32", norm=1.0, max_abs=1.0, seconds=0.1)
    desk.logic.on_stored("delta-1", name("delta of a"), 40, 0.1)
    desk.watch(2.0)
    assert desk.says(Heartbeat)[-1].missing == UPDATE
    released = BlobsReleased(blobs=(UPDATE,), reason="two later snapshots stand")
    assert desk.run.decide(released) == ""
    desk.watch(2.0)
    assert desk.says(Heartbeat)[-1].missing is None


class Slow(Desk):
    """A desk whose blobs are on their way until the test says so."""

    def __init__(self, run: Scenario) -> None:
        super().__init__(run)
        self.wanted: list[str] = []

    def _do(self, action: Action) -> None:
        if isinstance(action, Fetch):
            self.wanted.append(action.blob)
        else:
            super()._do(action)


def test_undelivered_progress_stays_on_top_of_a_snapshot(tmp_path: Path) -> None:
    """The anchor rule: local ← θ_new + (local − P), by numbers that fp32 holds exactly."""
    save_initial(4, tmp_path / "initial")
    one = Rehearsal(4, Outer(lr=1.0, momentum=0.0))
    one.load(0, tmp_path / "initial", "initial")
    one.train(0)
    one.encode(one.cut(), tmp_path / "delta", "fp32")  # delivered: kept by nobody but the log
    one.train(2)
    theta = {NAME: torch.tensor([-0.5, -0.5, 0.0, 0.0])}
    zeros = {NAME: torch.zeros(4)}
    save_snapshot(OuterState(3, theta, zeros, {NAME: torch.zeros(4)}), tmp_path / "snapshot")
    one.load(3, tmp_path / "snapshot", "snapshot", keep=True)
    assert one.undelivered() == [2] and one.progress() == [2] and one.version == 3
    one.load(3, tmp_path / "snapshot", "snapshot")
    assert one.undelivered() == [] and one.progress() == []
