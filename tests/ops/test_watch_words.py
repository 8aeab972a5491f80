"""The live view's words: whole names, and advice that is of use where it is given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.watch.advice import Advisor
from tests.ops.test_watch import drawn
from tests.support.scenario import Scenario


def test_while_a_log_is_played_it_is_not_said_how_to_play_it() -> None:
    told = [
        Advisor(Path("a.atoll"), plays=plays).advise("tests", "running", ())
        for plays in (False, True)
    ]
    assert any("--replay" in line for line in told[0])
    assert told[1] == tuple(line for line in told[0] if "--replay" not in line) != ()


@pytest.mark.parametrize("width", [80, 96, 120, 200])
def test_names_of_blocks_are_whole_or_left_out(width: int) -> None:
    run = Scenario({"epochs": 1}, 640)
    run.arrive("alpha")
    run.open(alpha=40)
    run.grant("alpha", *range(90, 130))
    (held,) = re.findall(r"^alpha .* 40:((?: 0:\d+)+) …", drawn(run, width), re.MULTILINE)
    assert held.split() == [f"0:{number}" for number in range(90, 90 + len(held.split()))]
