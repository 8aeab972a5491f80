"""How commands run: bounded, ended whole, and not at all where there are none."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from pathlib import Path

import pytest

from ops.placement.slurm import commands
from ops.placement.slurm.client import Slurm
from ops.placement.slurm.commands import LOGIN_SHELL, Shell
from ops.placement.slurm.troubles import Kind, Trouble

HANG = "sleep {0} & wait"


def sleeping(num: str) -> bool:
    """Whether a process sleeps for just so many seconds."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if place.read_bytes() == b"sleep\0" + num.encode() + b"\0":
                return True
    return False


async def gone(num: str) -> bool:
    """Whether the grandchild that sleeps for so many seconds ends soon."""
    for _ in range(200):
        if not sleeping(num):
            return True
        await asyncio.sleep(0.05)
    return False


@pytest.fixture
def num() -> str:
    """Seconds to sleep for that nobody else sleeps for."""
    return f"600.{uuid.uuid4().int}"


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(
    num: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MIN_TIMEOUT_S", 0.1)
    running = asyncio.create_task(Shell(timeout_s=1.0).run(["bash", "-c", HANG.format(num)]))
    async with asyncio.timeout(1.0):
        while not sleeping(num):
            await asyncio.sleep(0.01)
    said = await running
    assert said.code is None and "no answer" in said.err
    assert await gone(num)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.5])
async def test_a_caller_that_goes_takes_its_command_along_whenever_it_goes(
    num: str, after_s: float
) -> None:
    task = asyncio.create_task(Shell().run(["bash", "-c", HANG.format(num)]))
    await asyncio.sleep(after_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert await gone(num)


async def test_a_time_out_is_never_shorter_than_a_controllers_own() -> None:
    said = await Shell(timeout_s=0.01).run(["sleep", "0.3"])
    assert said.code == 0


async def test_what_is_not_there_is_our_trouble_with_and_without_a_login_shell() -> None:
    nowhere = {"PATH": "/nonexistent", "HOME": "/nonexistent"}
    for prefix in ((), tuple(LOGIN_SHELL)):
        shell = Shell(tuple(prefix), environment=nowhere if not prefix else {"PATH": "/usr/bin"})
        slurm = Slurm(shell)
        command = ["no-such-command"]
        found = await slurm._run(command)
        assert isinstance(found, Trouble) and found.kind is Kind.OURS, found


async def test_a_command_ended_by_a_signal_was_not_answered(tmp_path: Path) -> None:
    script = tmp_path / "squeue"
    script.write_text(f"#!/bin/bash\nkill -{signal.SIGKILL.value} $$\n")
    script.chmod(0o755)
    slurm = Slurm(Shell(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}))
    found = await slurm.queue()
    assert isinstance(found, Trouble) and found.silent and found.kind is Kind.TRANSIENT


async def test_an_exit_code_of_0_without_a_header_is_no_empty_queue(tmp_path: Path) -> None:
    script = tmp_path / "squeue"
    script.write_text("#!/bin/bash\necho 'Welcome to the login node'\n")
    script.chmod(0o755)
    slurm = Slurm(Shell(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}))
    found = await slurm.queue()
    assert isinstance(found, Trouble) and found.silent
