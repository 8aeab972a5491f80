"""Telling an alert: to a command, on its stdin, and to a webhook; tried again a few times."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from ops.alarm.due import Alert
from ops.alarm.settings import Alerts

TRIES = 3
PAUSE_S = 2.0  # before the second try; twice that before the third
LIMIT_S = 30.0  # of one try
MAX_SAID = 200  # characters of what a command says, where it fails


async def send(
    alert: Alert,
    settings: Alerts,
    say: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Tell all who are to be told; whether they were reached. What fails is said, not raised."""
    body = json.dumps(alert.as_json(), ensure_ascii=False).encode()
    ways: list[tuple[str, Callable[[], Awaitable[str]]]] = []
    if settings.command:
        ways.append((settings.command[0], lambda: _command(settings.command, body)))
    if settings.webhook:
        ways.append(("the webhook", lambda: asyncio.to_thread(_post, settings.webhook, body)))
    reached = True
    for name, tell in ways:
        problem = await _tried(tell, sleep)
        if problem:
            reached = False
            say(f"alert {alert.cause.name} ({alert.status}) was not told by {name}: {problem}")
    return reached


async def _tried(
    tell: Callable[[], Awaitable[str]], sleep: Callable[[float], Awaitable[None]]
) -> str:
    """'' once it succeeds, else the last problem."""
    problem = ""
    for number in range(TRIES):
        if number:
            await sleep(PAUSE_S * number)
        problem = await tell()
        if not problem:
            return ""
    return problem


async def _command(command: tuple[str, ...], body: bytes) -> str:
    """What it says goes past asyncio, where a process has ended only once everybody has closed its
    output: also whom it left running behind itself."""
    with _listening() as (stderr, said):
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # so that all of it can be ended
            )
        except OSError as error:
            return str(error.strerror or error)
        assert process.stdin is not None
        process.stdin.write(body)
        process.stdin.close()
        try:
            async with asyncio.timeout(LIMIT_S):
                await process.wait()
        except TimeoutError:
            return f"it did not end within {LIMIT_S:.0f} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    if process.returncode:
        text = said.decode(errors="replace").strip()[:MAX_SAID]
        return f"it ended with {process.returncode}" + (f": {text}" if text else "")
    return ""


@contextmanager
def _listening() -> Iterator[tuple[int, bytearray]]:
    """A descriptor to write to, and the beginning of what is written there; the rest is taken and
    dropped."""
    loop, said = asyncio.get_running_loop(), bytearray()
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)

    def take() -> bool:
        try:
            new = os.read(ours, 1 << 16)
        except BlockingIOError:
            return False
        if not new:
            loop.remove_reader(ours)
        said.extend(new[: max(0, 4 * MAX_SAID - len(said))])
        return bool(new) and len(said) < 4 * MAX_SAID

    loop.add_reader(ours, take)
    try:
        yield theirs, said
        while take():
            pass
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        os.close(theirs)


def _post(url: str, body: bytes) -> str:
    kind = {"Content-Type": "application/json", "User-Agent": "atoll"}
    request = urllib.request.Request(url, body, kind, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"it answered {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error))
