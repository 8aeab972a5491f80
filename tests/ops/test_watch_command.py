"""`atoll watch` on files: one picture, one object, plain lines, a replay by the log's own times."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ops.cli import run
from ops.watch import play
from ops.watch.live import LiveView
from tests.ops.watching import at_work, exported, over, records

ROOT = Path(__file__).parent.parent.parent


def test_once_prints_one_picture_and_ends(tmp_path: Path, capsys) -> None:
    assert run(["watch", str(exported(tmp_path, at_work())), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.count("atoll tests  running") == 1
    assert "round 2 waits for beta" in out and "\x1b" not in out


def test_json_is_one_documented_object(tmp_path: Path, capsys) -> None:
    assert run(["watch", str(exported(tmp_path, at_work())), "--once", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    expected = {"run": "tests", "state": "running", "round": 2, "version": 1, "tokens": 64}
    assert {key: found[key] for key in expected} == expected
    assert (found["target"], found["target_rounds"], found["share"]) == (320, None, 0.2)
    assert (found["loss"], found["coordinator"], found["term"]) == (2.0, "one", 2)
    assert found["eta_s"] > 0
    alpha, beta, gamma = found["sites"]
    assert (alpha["phase"], beta["phase"], gamma["state"]) == ("delivered", "training", "departed")
    assert (beta["held"], beta["num_held"], beta["blocks_merged"]) == (["0:5", "0:6", "0:7"], 3, 1)
    (epoch,) = found["epochs"]
    assert epoch == {
        "epoch": 0,
        "blocks": 10,
        "closed": False,
        "merged": 2,
        "delivered": 2,
        "trained": 1,
        "training": 1,
        "leased": 1,
        "available": 3,
        "quarantined": 0,
    }
    assert found["waiting"][0] == {
        "who": "round 2",
        "what": "waits for beta (1 of 3 blocks)",
        "until": "until all are in, or for 40 s more (deadline)",
    }
    assert run(["watch", str(tmp_path / "run.atoll"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_without_a_terminal_it_is_a_line_an_event_worth_telling(tmp_path: Path, capsys) -> None:
    assert run(["watch", str(exported(tmp_path, over()))]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("2025-11-29 16:00:00Z  #1 ")
    assert "finished the run at version 1, 32 tokens — target met" in lines[-1]
    assert [line.split()[3] for line in lines] == [
        "operator",  # created
        "coordinator",  # elected
        "alpha",  # asks
        "coordinator",  # admitted
        "coordinator",  # round opened
        "coordinator",  # granted
        "alpha",  # published
        "coordinator",  # cut
        "coordinator",  # committed
        "coordinator",  # finished
    ]
    assert printed.err.splitlines() == [
        "run tests has finished: target met",
        f"next: atoll audit {tmp_path}/run.atoll (whether the log keeps what a run promises)",
        f"next: atoll watch {tmp_path}/run.atoll --replay (how it came about)",
    ]


def test_an_output_that_is_not_unicode_breaks_nothing(tmp_path: Path) -> None:
    file = exported(tmp_path, at_work())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for arguments in ([], ["--once"]):
        command = [sys.executable, "-c", "from ops.cli import main; main()", "watch", str(file)]
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        assert "granted beta 3 blocks" in done.stdout.decode("ascii")


def test_of_a_damaged_file_everything_before_the_damage_is_shown(tmp_path: Path, capsys) -> None:
    file = exported(tmp_path, over())
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 3 // 4])
    for arguments in ([], ["--once"], ["--replay", "--speed", "1e6"]):
        assert run(["watch", str(file), *arguments]) == 3
        printed = capsys.readouterr()
        assert "alpha" in printed.out
        assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--replay", "--once"],
        ["--replay", "--json"],
        ["--speed", "2"],
        ["--replay", "--speed", "0"],
        ["--replay", "--speed", "-1"],
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, capsys, arguments: list[str]) -> None:
    assert run(["watch", str(exported(tmp_path, over())), *arguments]) == 2
    assert run(["watch", "No Such Run", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_watching_loads_no_torch(tmp_path: Path) -> None:
    file = exported(tmp_path, at_work())
    code = (
        "import sys\nfrom ops.cli import run\n"
        f"assert run(['watch', {str(file)!r}, '--once']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.mark.parametrize("speed", [0.5, 1.0, 10.0])
async def test_a_replay_gives_each_record_when_it_is_due(speed: float) -> None:
    history, clock = records(over(), step_s=3.0), Clock()
    came: list[float] = []
    times: list[float] = []
    async for beat in play.replay(play.batches(history), speed, clock, clock.sleep):
        came += [clock.now_s] * len(beat.records)
        times.append(beat.now_s)
    assert came == pytest.approx([100.0 + 3.0 * n / speed for n in range(len(history))])
    assert times == sorted(times)  # the time shown runs on between records, never back
    assert max(clock.slept) <= play.FRAME_S
    assert len(times) > len(history)


async def test_telling_ends_with_the_run_though_the_log_could_go_on() -> None:
    history = records(over())

    async def beats():
        yield play.Beat(history, 0.0)
        raise AssertionError("nobody reads on")
        yield

    out = io.StringIO()
    view = LiveView(Console(file=io.StringIO()))
    await asyncio.wait_for(play.tell(view, out, beats()), 5)
    assert out.getvalue().splitlines()[-1].endswith("target met")


async def test_a_run_is_followed_from_its_first_event_to_its_end() -> None:
    scenario = at_work()
    out = io.StringIO()
    view = LiveView(Console(file=io.StringIO()))
    telling = asyncio.create_task(play.tell(view, out, play.follow(scenario.log)))
    for _ in range(200):
        await asyncio.sleep(0.01)
        if "beta 3 blocks" in out.getvalue():
            break
    assert not telling.done()
    before = out.getvalue()
    scenario.depart("beta")
    for _ in range(200):
        await asyncio.sleep(0.01)
        if out.getvalue() != before:
            break
    assert "departed beta (lost)" in out.getvalue()[len(before) :]
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling


def test_on_a_terminal_a_replay_is_drawn_and_leaves_the_last_picture(tmp_path: Path) -> None:
    file = exported(tmp_path, over())
    main, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    command = "from ops.cli import main; main()"
    done = subprocess.Popen(
        [sys.executable, "-c", command, "watch", str(file), "--replay", "--speed", "100"],
        cwd=ROOT,
        env=environment,
        stdout=other,
        stderr=subprocess.PIPE,
    )
    os.close(other)
    shown = b""
    try:
        while piece := os.read(main, 65536):
            shown += piece
    except OSError:  # how a pseudo-terminal reports that nobody writes any more
        pass
    _, errors = done.communicate(timeout=30)
    os.close(main)
    assert done.returncode == 0
    assert errors.decode().splitlines() == ["run tests has finished: target met"]
    assert b"\x1b[" in shown
    assert "committed version 1" in shown.decode().rpartition("atoll ")[2]
