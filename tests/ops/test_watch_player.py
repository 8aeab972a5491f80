"""The replay with a scrubber: keys, seeking, what is drawn, on a real terminal too."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console

from ops.watch import play
from ops.watch.keys import named
from ops.watch.live import LiveView
from ops.watch.player import MAX_SPEED, Player
from tests.ops.recordings import demo_log
from tests.ops.watching import over, records

ROOT = Path(__file__).parent.parent.parent
STEP_S = 2.0
HISTORY = records(over(), step_s=STEP_S)
END_S = (len(HISTORY) - 1) * STEP_S


def test_records_come_by_the_logs_own_times_at_the_speed_that_is_asked_for() -> None:
    player = Player(HISTORY, speed=4.0)
    assert (player.due, player.end_s, player.now_s) == (1, END_S, HISTORY[0].time_ns / 1e9)
    player.pass_time(1.0)
    assert (player.at_s, player.due) == (4.0, 3)
    player.pass_time(1e9)
    assert player.due == len(HISTORY) and player.over


def test_keys_pause_seek_and_change_the_speed_and_the_end_is_stayed_at() -> None:
    player = Player(HISTORY, speed=1.0)
    player.press(" ")
    player.pass_time(5.0)
    assert player.at_s == 0.0 and player.paused
    player.press("right")
    assert player.at_s == pytest.approx(END_S / 20)
    player.press("left")
    player.press("left")
    assert player.at_s == 0.0
    player.press("end")
    assert player.due == len(HISTORY) and not player.over  # who seeks wants to look
    player.press("home")
    assert player.due == 1
    player.press(" ")
    player.press("+")
    player.pass_time(1.0)
    assert player.at_s == 2.0
    player.press("-")
    player.press("-")
    player.pass_time(1.0)
    assert player.at_s == 2.5
    for _ in range(100):
        player.press("+")
    assert player.speed == MAX_SPEED
    player.press("q")
    assert player.over


def test_an_empty_log_is_over_at_once() -> None:
    player = Player([], speed=1.0)
    assert player.over and player.due == 0 and player.now_s == 0.0


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_scrubber_fits_and_its_knob_moves_from_left_to_right(width: int, plain: bool) -> None:
    player, knob, at = Player(HISTORY, speed=60.0), "@" if plain else "●", []
    for share in (0.0, 0.5, 1.0):
        player.at_s = share * END_S
        line = player.scrubber(width, plain)
        assert line.cell_len <= width
        at.append(line.plain.find(knob))
        assert not plain or line.plain.isascii()
    if width > 20:
        assert 0 < at[0] < at[1] < at[2]
        assert f"60{'x' if plain else '×'}" in line.plain


def test_what_terminals_send_is_named() -> None:
    assert named(b"\x1b[D\x1bOC q+") == ["left", "right", " ", "q", "+"]
    assert named(b"\x1b[1~\x1b[F") == ["home", "end"]
    assert named(b"\x1b") == ["\x1b"]


async def test_seeking_back_shows_the_past_and_playing_on_the_present_again() -> None:
    screen = Console(width=100, height=40, file=io.StringIO())
    player, keys, seen = Player(HISTORY, speed=1e6), asyncio.Queue(), []
    player.touched = True

    class Watched(LiveView):
        def frame(self, now_s=None, foot=None):
            seen.append(self.scene(now_s).last_sequence)
            return super().frame(now_s, foot)

    task = asyncio.create_task(play.scrub(lambda: Watched(screen), screen, player, keys))

    async def until(sequence: int) -> None:
        for _ in range(1000):
            if seen and seen[-1] == sequence:
                return
            await asyncio.sleep(0.01)
        raise AssertionError((sequence, seen[-5:]))

    await until(len(HISTORY))
    for key in (" ", "home"):
        keys.put_nowait(key)
    await until(1)
    keys.put_nowait(" ")
    await until(len(HISTORY))
    keys.put_nowait("q")
    view = await asyncio.wait_for(task, 30)
    assert view.outcome == "target met"


def test_on_a_terminal_keys_work_and_the_terminal_is_given_back(tmp_path: Path) -> None:
    main, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "LINES": "30", "TERM": "xterm"}
    code = "from ops.cli import main; main()"
    command = ["watch", str(demo_log(tmp_path)), "--replay", "--speed", "60"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        cwd=ROOT, env=environment, stdin=other, stdout=other, stderr=subprocess.PIPE,
    )  # fmt: skip
    seen = ""

    def read_until(pattern: str) -> None:
        nonlocal seen
        until = time.monotonic() + 60
        while not re.search(pattern, seen):
            assert time.monotonic() < until, seen[-2000:]
            if select.select([main], [], [], 0.2)[0]:
                seen += os.read(main, 65536).decode(errors="replace")

    try:
        before = termios.tcgetattr(main)
        read_until(r"of 4 min 22 s .*●.*60×.*q quits")
        os.write(main, b" \x1b[F")
        read_until("finished the run at version 19")
        seen = ""
        os.write(main, b"\x1b[H")
        read_until(r"not created|round 0")
        os.write(main, b"q")
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(other)
    assert process.returncode == 0 and errors == b""
    assert termios.tcgetattr(main)[3] == before[3]
    os.close(main)
