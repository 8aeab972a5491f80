"""ATOLL_HOME: where it is, and what asking for a folder does."""

from __future__ import annotations

import subprocess
import sys
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


HOLDS = """
import sys, time
from pathlib import Path
from ops.home import Home
with Home(Path(sys.argv[1])).scratch("r") as folder:
    (folder / "blob").write_bytes(b"held")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_two_who_look_at_a_run_share_no_folder_and_leave_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.scratch("r") as one:
        (one / "blob").write_bytes(b"one")
        with home.scratch("r") as two:
            assert one != two and list(two.iterdir()) == []
            (two / "blob").write_bytes(b"two")
            assert (one / "blob").read_bytes() == b"one"
        assert one.is_dir() and not two.exists()
    with pytest.raises(ZeroDivisionError), home.scratch("r"):
        raise ZeroDivisionError
    assert list((tmp_path / "scratch" / "r").iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_a_living_one_holds_stays(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        theirs = Path(process.stdout.readline().strip())
        with Home(tmp_path).scratch("r"):
            assert (theirs / "blob").read_bytes() == b"held"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert theirs.is_dir()
    with Home(tmp_path).scratch("r") as own:
        assert own.is_dir() and not theirs.exists()
    assert list((tmp_path / "scratch" / "r").iterdir()) == []


def test_a_fork_has_its_parents_data(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.note_fork("elsewhere", "fork-of-elsewhere")
    assert home.data_of("fork-of-elsewhere") is None
    home.note_data("parent", tmp_path / "tokens")
    home.note_fork("parent", "child")
    assert home.data_of("child") == tmp_path / "tokens"
