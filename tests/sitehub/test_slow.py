"""A cap that leaves a site no time to come in is told at once, with the rate that would."""

from __future__ import annotations

from pathlib import Path

from eventlog.events import SnapshotSaved
from sitehub.slow import too_slow
from tests.support.scenario import Scenario, name

LIMIT_S = 60.0


def story(num_versions: int = 0) -> Scenario:
    """A run of so many versions: the first has a snapshot of 9 MB, and updates have 40 bytes."""
    run = Scenario({"epochs": 9}, limits={"transfer_s": LIMIT_S})
    run.arrive("b")
    for version in range(1, num_versions + 1):
        run.open(b=1)
        run.work("b", version)
        run.commit()
        run.apply("b", version)
        if version == 1:
            blob = name("snapshot 1")
            saved = SnapshotSaved(version=1, blob=blob, num_bytes=9_000_000, reason="it is due")
            assert run.decide(saved) == ""
    return run


def test_the_bytes_that_it_fetches_are_held_against_the_time_that_it_has(tmp_path: Path) -> None:
    run = story(3)  # 9 MB and two updates: 150,001.33 bytes/s bring them in 60 s
    assert too_slow(run.view, tmp_path, 150_002.0) == ""
    said = too_slow(run.view, tmp_path, 100_000.0)
    for part in ("--max-rate 100kB", "9.0 MB", "90 s", "after 60 s", "limits.transfer_s", "151kB"):
        assert part in said
    assert "\n" not in said


def test_what_is_there_already_is_not_fetched(tmp_path: Path) -> None:
    run = story(3)
    (tmp_path / name("snapshot 1")).write_bytes(b"")
    assert too_slow(run.view, tmp_path, 100_000.0) == ""


def test_before_the_first_snapshot_it_is_the_model_in_fp32_that_comes(tmp_path: Path) -> None:
    run = story()
    run.projection.db.execute("UPDATE run SET num_parameters = 1500000")  # 6 MB
    assert too_slow(run.view, tmp_path, 100_000.0) == ""
    assert "6.0 MB, so 61 s" in too_slow(run.view, tmp_path, 99_000.0)
