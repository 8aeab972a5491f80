"""Error feedback that moves: a copy goes on elsewhere, and what is forgotten stays so."""

from pathlib import Path

import pytest
import torch

from outer import feedback
from outer.feedback import Feedback
from tests.outer.test_feedback import delta, encode, same, start


def test_a_copy_goes_on_elsewhere_as_the_original_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(tmp_path / "here")
    encode(here, "1", delta(1), "int8", tmp_path / "file")
    here.settle("1", merged=True)
    encode(here, "2", delta(2), "int8", tmp_path / "file")
    here.copy(tmp_path / "copy")
    monkeypatch.setattr(feedback, "_boot", lambda: "another machine")
    there = start(tmp_path / "there")
    encode(there, "x", delta(9), "int8", tmp_path / "file")  # of its own, given up
    assert not there.is_empty
    there.adopt(tmp_path / "copy")
    assert there.notice == "" and there.pending == ("2",)
    for site in (here, there):
        site.settle("2", merged=True)
    assert same(here.residual(), there.residual()) and here.residual()
    once = encode(here, "3", delta(3), "int8", tmp_path / "file")
    assert same(once, encode(there, "3", delta(3), "int8", tmp_path / "file"))
    assert same(start(tmp_path / "there").residual(), there.residual())  # it is the folder's now


def test_a_copy_of_another_model_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    other = Feedback(tmp_path / "other", {"a": (3,)})
    other.encode("1", lambda name, piece: torch.full((3,), 0.1)[piece], "int8", tmp_path / "file")
    other.copy(tmp_path / "copy")
    site = start(tmp_path / "site")
    site.adopt(tmp_path / "copy")
    assert "of another model" in site.notice and site.is_empty


def test_what_is_forgotten_is_never_delivered(tmp_path: Path) -> None:
    site = start(tmp_path / "site")
    encode(site, "1", delta(1), "4-bit", tmp_path / "file")
    site.settle("1", merged=True)
    site.clear()
    assert site.is_empty and site.residual() == {}
    plain = encode(start(tmp_path / "new"), "2", delta(2), "4-bit", tmp_path / "file")
    assert same(plain, encode(site, "2", delta(2), "4-bit", tmp_path / "file"))
