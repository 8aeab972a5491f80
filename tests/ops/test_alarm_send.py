"""An alert reaches a real HTTP server and a real command; what fails is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
