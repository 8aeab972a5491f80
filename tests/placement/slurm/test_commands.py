"""How commands run: bounded, ended whole, and not at all where there are none."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ops.placement.slurm import commands
from ops.placement.slurm.client import Slurm
from ops.placement.slurm.commands import LOGIN_SHELL, Shell
from ops.placement.slurm.troubles import Kind, Trouble

HANG = "sleep 600 & echo $! > {0}; wait"


async def gone(file: Path) -> bool:
    """Whether the grandchild that wrote its number ends soon."""
    for _ in range(200):
        if file.exists() and file.read_text().strip():
            try:
                os.kill(int(file.read_text()), 0)
            except ProcessLookupError:
                return True
        await asyncio.sleep(0.05)
    return False


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MIN_TIMEOUT_S", 0.1)
    file = tmp_path / "pid"
    said = await Shell(timeout_s=1.0).run(["bash", "-c", HANG.format(file)])
    assert said.code is None and "no answer" in said.err
    assert await gone(file)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.5])
async def test_a_caller_that_goes_takes_its_command_along_whenever_it_goes(
    tmp_path: Path, after_s: float
) -> None:
    file = tmp_path / "pid"
    task = asyncio.create_task(Shell().run(["bash", "-c", HANG.format(file)]))
    await asyncio.sleep(after_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert not file.exists() or await gone(file)


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
