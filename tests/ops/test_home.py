"""ATOLL_HOME: where it is, and what asking for a folder does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.home import Home


def test_the_home_is_where_the_environment_says(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "kept"))
    assert Home.find().root == tmp_path / "kept"


@pytest.mark.parametrize("unset", [True, False])
def test_without_one_it_is_a_folder_of_the_working_directory(
    tmp_path: Path, monkeypatch, unset: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATOLL_HOME", "")
    if unset:
        monkeypatch.delenv("ATOLL_HOME")
    assert Home.find().root == tmp_path / ".atoll"


def test_asking_makes_the_folder_and_no_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    paths = [home.projection("r", "leases"), home.export("r"), home.process_log("coordinator")]
    assert all(path.parent.is_dir() and not path.exists() for path in paths)
    assert home.site("r", "a").is_dir()
    assert not home.broker.exists() and not home.imported("r").exists()
