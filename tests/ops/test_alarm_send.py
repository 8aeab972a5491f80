"""An alert reaches a real HTTP server and a real command; what fails is said."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from ops.alarm import send as sending
from ops.alarm.due import Alert, Cause
from ops.alarm.send import send
from ops.alarm.settings import Alerts
from tests.support.inbox import Inbox

ALERT = Alert("tests", "firing", Cause("stall", "what", "why", "todo"))


async def nap(_: float) -> None:
    """A pause that takes no time."""


async def test_a_webhook_gets_the_alert_as_json_after_an_error_too() -> None:
    inbox, said = Inbox(503), []
    try:
        assert await send(ALERT, Alerts(webhook=inbox.url), said.append, nap)
    finally:
        inbox.close()
    assert inbox.posted == [
        {"alert": "stall", "status": "firing", "run": "tests", "what": "what", "why": "why",
         "todo": "todo"}
    ] and not said  # fmt: skip


async def test_a_command_gets_it_on_stdin_and_what_fails_is_said(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    told = Alerts(command=(sys.executable, "-c", code, str(tmp_path / "got")))
    said: list[str] = []
    assert await send(ALERT, told, said.append, nap)
    assert json.loads((tmp_path / "got").read_text())["alert"] == "stall"
    fails = Alerts(command=(sys.executable, "-c", "import sys; sys.exit('no pager')"))
    assert not await send(ALERT, fails, said.append, nap)
    missing = Alerts(command=("no-such-program",), webhook="http://127.0.0.1:9/")
    assert not await send(ALERT, missing, said.append, nap)
    assert [line.partition(": ")[2] for line in said] == [
        "it ended with 1: no pager", "No such file or directory", "[Errno 111] Connection refused",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "reached", "problem"),
    [
        (
            "sleep 60",
            False,
            "did not end within",
        ),  # a shell's child, which holds what the shell had
        ("sleep 60; true", False, "did not end within"),
        ("sleep 60 & exit 0", True, ""),  # what it leaves behind is waited for by nobody
        ("yes", False, "did not end within"),
        ("yes >&2", False, "did not end within"),  # and nobody keeps what it says
        ("(yes | head -c 1000000) >&2; exit 3", False, "it ended with 3: y"),
        ("exec <&-; exit 0", True, ""),
    ],
)
async def test_a_command_that_hangs_or_chatters_costs_its_time_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reached: bool, problem: str
) -> None:
    monkeypatch.setattr(sending, "LIMIT_S", 1.0)
    said: list[str] = []
    began = time.monotonic()
    marked = f"echo >> {tmp_path / 'began'}; {script}"
    told = Alerts(command=("sh", "-c", marked))
    assert await send(ALERT, told, said.append, nap) == reached
    assert time.monotonic() - began < 10 and problem in " ".join(said)
    assert max(map(len, said), default=0) < 2 * sending.MAX_SAID
    tries = 1 if reached else sending.TRIES
    assert (tmp_path / "began").read_text() == "\n" * tries, "told once where it was told"
