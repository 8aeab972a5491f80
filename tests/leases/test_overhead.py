"""What the exchange costs, told from a log: each figure is a sum of figures that were written."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog.codec import Entry, decode
from eventlog.events import SnapshotSaved, VersionApplied
from leases.overhead import Overhead, Row, table
from tests.leases.stories import audited, records
from tests.support.scenario import Scenario, name

AT = {1: 50.0, 2: 90.0}
SAID = {"encode": 1.0, "upload": 2.0, "wait": 10.0, "download": 3.0, "apply": 4.0}
STOOD = {"blocked": 0.5, "idle": 0.125, "evaluate": 0.125}


def applied(version: int, **more: Any) -> VersionApplied:
    digest = name(f"version {version}")
    fields = {"version": version, "parameters_digest": digest, "source": "update", **more}
    return VersionApplied.model_validate(fields)


def two_rounds() -> Scenario:
    """alpha alone, by whose clock it holds versions 0, 1 and 2 at 0 s, 50 s and 90 s."""
    run = Scenario({"epochs": 9}, snapshots={"every_versions": 1})
    run.arrive("alpha")
    for version in (1, 2):
        assert run.open(alpha=1) == ""
        run.work("alpha", version - 1)
        assert run.decide(run.closing()) == ""
        seconds = {"fetch": 0.5, "merge": 1.0, "upload": 1.5}
        assert run.decide(run.committing(seconds=seconds)) == ""
        event = applied(version, seconds=SAID | STOOD, stall_s=0.75)
        assert run.forged("site.alpha", event, at=AT[version]) == ""
        saved = {"version": version, "blob": name(f"snapshot {version}"), "num_bytes": 9}
        fields = {**saved, "seconds": 7.0, "reason": "a test"}
        assert run.decide(SnapshotSaved.model_validate(fields)) == ""
    return run


def entries(run: Scenario) -> list[tuple[Entry, str]]:
    return [(decode(one), run.why.get(one.sequence, "")) for one in records(run)]


def test_a_sites_round_is_what_it_said_with_the_coordinators_work_taken_from_its_wait() -> None:
    first, second = table(entries(two_rounds()))
    assert (first.version, second.version) == (1, 2)
    assert second == Row(
        site="alpha", version=2, encode=1.0, upload=2.0, wait=7.0, merge=3.0, download=3.0,
        apply=4.0, snapshot=7.0, blocked=0.5, idle=0.125, evaluate=0.125, stall=0.75,
        wall=40.0,
    )  # fmt: skip
    assert (first.snapshot, first.wall, first.share) == (0.0, 50.0, 0.015)


def test_the_share_is_of_the_time_between_two_versions_by_the_sites_own_clock() -> None:
    overhead = Overhead()
    rows: list[Row] = []
    overhead.on_row = rows.append
    for entry, void in entries(two_rounds()):
        overhead.see(entry, void)
    total = overhead.sites["alpha"]
    assert total.num_rounds == 2 and total.seconds["stall"] == 1.5 and total.newest == rows[1]
    assert total.share == overhead.share == pytest.approx(1.5 / 90.0)
    assert total.as_json()["encode"] == 2.0


def test_what_is_void_and_what_another_incarnation_said_counts_for_nothing() -> None:
    run = two_rounds()
    wrong = applied(2, parameters_digest=name("another"), stall_s=99.0)
    assert "digest" in run.says("alpha", wrong)
    assert run.depart("alpha") == ""
    run.arrive("alpha")
    rows = table(entries(run))
    assert [row.version for row in rows] == [1, 2]


def test_the_audit_explains_it() -> None:
    found = audited(two_rounds())
    assert found.violations == []
    (site,) = found.explained()["overheads"]
    assert (site["site"], site["rounds"], site["stall"], site["encode"]) == ("alpha", 2, 1.5, 2.0)
    assert "overheads" not in found.as_json()
