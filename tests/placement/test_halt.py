"""The kill switch: a file that anybody can make, and what it says."""

from __future__ import annotations

from pathlib import Path

from ops.placement import halt


def test_a_halt_is_told_with_its_reason_and_ends_with_its_file(tmp_path: Path) -> None:
    assert halt.halted(tmp_path) is None
    halt.halt(tmp_path, "the centre asks", cancel=False)
    assert halt.halted(tmp_path) == halt.Halt("the centre asks", False)
    halt.halt(tmp_path, "and jobs are to go", cancel=True)
    assert halt.halted(tmp_path) == halt.Halt("and jobs are to go", True)
    assert halt.go(tmp_path) and halt.halted(tmp_path) is None
    assert not halt.go(tmp_path)


def test_a_file_that_was_made_by_hand_halts_too_and_cancels_nothing(tmp_path: Path) -> None:
    for text in ("", "stop it!", "[]", '{"cancel": true}', '{"reason": "x", "cancel": "yes"}'):
        halt.path(tmp_path).parent.mkdir(exist_ok=True)
        halt.path(tmp_path).write_text(text)
        found = halt.halted(tmp_path)
        assert found is not None and not found.cancel


def test_a_centre_has_a_file_of_its_own(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    assert halt.halted(tmp_path, str(stop)) is None
    stop.touch()
    found = halt.halted(tmp_path, str(stop))
    assert found is not None and str(stop) in found.reason and not found.cancel
