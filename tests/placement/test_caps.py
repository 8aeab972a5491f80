"""What an agent may cost: no window of the stated length holds more, whatever happens to it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.placement.caps import Backoff, Cap, Ledger
from ops.placement.sites import Etiquette


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 200), max_size=60), st.integers(1, 6), st.floats(5, 100))
def test_no_window_holds_more_than_the_cap(
    tmp_path_factory: pytest.TempPathFactory, pauses: list[float], limit: int, span_s: float
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("l") / "spent.json", {"probes": Cap(limit, span_s)})
    now, taken = 1_000_000.0, []
    for pause in pauses:
        now += pause
        if ledger.take("probes", now) == 0:
            taken.append(now)
    for at in taken:
        assert sum(at <= one < at + span_s for one in taken) <= limit


def test_who_is_refused_is_told_how_long_to_wait(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent.json", {"polls": Cap(1, 120.0)})
    assert ledger.take("polls", 1000.0) == 0
    assert ledger.take("polls", 1030.0) == 90.0
    assert ledger.wait_s("polls", 1100.0) == 20.0
    assert ledger.take("polls", 1120.0) == 0


def test_a_restart_and_a_second_agent_reset_nothing(tmp_path: Path) -> None:
    caps = {"probes": Cap(2, 600.0)}
    first, second = (Ledger(tmp_path / "spent.json", caps) for _ in range(2))
    assert [first.take("probes", 1000.0), second.take("probes", 1001.0)] == [0, 0]
    assert Ledger(tmp_path / "spent.json", caps).take("probes", 1002.0) > 590


def test_a_clock_that_is_set_back_buys_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent.json", {"polls": Cap(1, 120.0)})
    assert ledger.take("polls", 5000.0) == 0
    assert ledger.take("polls", 1000.0) == 120.0


def test_a_cap_of_none_lets_nothing_through(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent.json", {"probes": Cap(0, 600.0)})
    assert ledger.take("probes", 1.0) > 0


def test_agents_that_ask_at_once_share_one_cap(tmp_path: Path) -> None:
    path = tmp_path / "spent.json"
    program = (
        "import sys; from pathlib import Path; from ops.placement.caps import Cap, Ledger\n"
        f"one = Ledger(Path({str(path)!r}), {{'probes': Cap(5, 600.0)}})\n"
        "print(sum(one.take('probes', 1000.0) == 0 for _ in range(5)))"
    )
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root)
        for _ in range(3)
    ]
    assert sum(int(one.communicate()[0]) for one in running) == 5
    assert len(json.loads(path.read_text())["probes"]) == 5


def test_a_torn_file_is_mended(tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_text('{"polls": [12')
    ledger = Ledger(tmp_path / "spent.json", {"polls": Cap(1, 120.0)})
    assert ledger.take("polls", 1000.0) == 0
    assert json.loads((tmp_path / "spent.json").read_text()) == {"polls": [1000.0]}


def test_the_defaults_are_the_etiquette_that_is_promised() -> None:
    caps = Etiquette().caps()
    assert caps["polls"] == Cap(1, 120) and caps["probes"] == Cap(12, 600)
    assert caps["submissions"].span_s == 86_400


def test_pauses_double_up_to_a_longest_and_vary() -> None:
    backoff = Backoff(10.0, 100.0, random.Random(1))
    waits = []
    for _ in range(6):
        backoff.failed(0.0)
        waits.append(backoff.wait_s(0.0))
    for wait, base in zip(waits, (10, 20, 40, 80, 100, 100), strict=True):
        assert base <= wait <= base * 1.2
    assert len(set(waits)) == 6
    backoff.worked()
    assert backoff.wait_s(0.0) == 0
    backoff.failed(0.0)
    assert backoff.wait_s(0.0) <= 12
