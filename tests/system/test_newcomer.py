"""What docs/start.md and docs/deploy.md tell a newcomer to type, typed: blocks as they stand there.

Broker and sites are in networks of their own here, so the broker's name stands in place of
`localhost`, as the page says. Only the installation is left out: `atoll` is this checkout's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.forkserver import CHECKOUT
from tests.support.world import BROKER, HOST, World, worldwide

SITES = ("alpha", "beta")
PATIENCE_S = 900.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A checkout's folder for each network, as far as the page names what lies there."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    atoll = tmp_path / ".venv" / "bin" / "atoll"
    atoll.write_text(f'#!/bin/sh\nexec {sys.executable} -m ops "$@"\n')
    atoll.chmod(0o755)
    (tmp_path / "ops").symlink_to(CHECKOUT / "ops")
    async with worldwide(tmp_path, SITES, 0.01, 100_000) as made:
        yield made


def page(name: str) -> dict[str, str]:
    """A page's blocks by the heading above them, further ones with their number: `Two sites`,
    `Two sites 2`."""
    found: dict[str, str] = {}
    text = (CHECKOUT / "docs" / name).read_text()
    for heading, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE):
        blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", body, re.DOTALL | re.MULTILINE)
        for number, block in enumerate(blocks, 1):
            found[heading if number == 1 else f"{heading} {number}"] = block
    return found


@dataclass(slots=True)
class Terminal:
    """A shell in a place, whose variables last. `said`: all that was printed so far."""

    world: World
    name: str
    shell: subprocess.Popen[bytes]
    log: Path
    num: int = 0
    blocks: list[Path] = field(default_factory=list)

    @classmethod
    def at(cls, world: World, place: str, name: str) -> Terminal:
        log = world.folder / f"{name}.log"
        return cls(world, name, world.start(place, ["bash", "-e"], log, typed=True), log)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def type(self, block: str) -> None:
        """Type a block and do not wait for its end."""
        self.num += 1
        file = self.world.folder / f".{self.name}-{self.num}.sh"
        file.write_text(block)
        assert self.shell.stdin is not None
        self.shell.stdin.write(
            f". ./{file.name} </dev/null; echo 'block {self.num} ended'\n".encode()
        )
        self.shell.stdin.flush()

    async def until(self, words: str) -> None:
        """Wait until it has printed something; every command of a block must end well."""
        until = time.monotonic() + PATIENCE_S
        while words not in self.said:
            assert self.shell.poll() is None, f"{self.name}: {self.shell.poll()}\n{self.said}"
            assert time.monotonic() < until, f"{self.name} never said {words!r}:\n{self.said}"
            await asyncio.sleep(0.2)

    async def run(self, block: str) -> str:
        """Type a block and wait for its end; what it printed."""
        before = len(self.said)
        self.type(block)
        await self.until(f"block {self.num} ended")
        return self.said[before:]

    def crash(self) -> None:
        """SIGKILL to everything in it, as when a node fails."""
        os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_the_way_from_nothing_to_a_verified_model_as_the_page_has_it(world: World) -> None:
    typed = page("start.md")
    broker = Terminal.at(world, BROKER, "broker")
    await broker.run(typed["Install"].splitlines()[-1])  # behind what installs
    broker.type(typed["The broker"].replace("localhost", HOST))
    await broker.until(f"tls://{HOST}:4222")

    operator = Terminal.at(world, BROKER, "operator")
    found = await operator.run(typed["The run"])
    assert re.search(r"^ok +reach ", found, re.MULTILINE), found
    coordinator = Terminal.at(world, BROKER, "coordinator")
    coordinator.type(typed["The run 2"])
    sites = {name: Terminal.at(world, name, name) for name in SITES}
    for name, block in zip(SITES, (typed["Two sites"], typed["Two sites 2"]), strict=True):
        sites[name].type(block)

    operator.type(typed["Watch it"])
    await operator.until("committed version 2")
    sites["alpha"].crash()
    sites["alpha"] = Terminal.at(world, "alpha", "alpha-again")
    sites["alpha"].type(typed["Two sites"])
    await operator.until(f"block {operator.num} ended")
    for one in (coordinator, *sites.values()):
        await one.until(f"block {one.num} ended")

    said = await operator.run(typed["Verify it, keep it"])
    anchor = next(json.loads(line) for line in said.splitlines() if line.startswith("{"))
    assert anchor["run"] == "mine" and anchor["through"] > 0
    audit = json.loads(await world.atoll("beta", "audit", "mine.atoll", "--deep", "--json"))
    assert audit["ok"] and audit["deep"]["ok"] and audit["signatures"] > 0
    watched = operator.said
    for name in SITES:
        assert f"admitted {name}" in watched
    assert "departed alpha (replaced)" in watched or "departed alpha (lost)" in watched
    for file in ("mine.atoll", "mine.html", "model/model.safetensors", "model/tokenizer.json"):
        assert (world.folder / file).stat().st_size > 1000, file


@pytest.mark.timeout(900)
async def test_a_broker_for_the_internet_as_its_page_sets_it_up(
    world: World, data: Path, config: Path
) -> None:
    folder = world.folder
    typed = {
        heading: block.replace("/var/lib/atoll", str(folder / "var"))
        for heading, block in page("deploy.md").items()
    }
    (folder / "tokens").symlink_to(data)
    (folder / "config.toml").write_text(config.read_text())
    setting, _, serving = typed["Set it up"].partition("\n")
    for name in ("broker", "operator"):
        made = Terminal.at(world, BROKER, name)
        await made.run(f"export PATH=$PWD/.venv/bin:$PATH\n{setting}\n")
        if name == "broker":
            made.type(serving)
            await made.until(f"tls://{HOST}:4222")
    alpha = (await made.run(typed["Let a site in"])).splitlines()[0]
    mine = folder / "alpha.creds"  # what scp brings to the site
    mine.write_bytes(Path(alpha).read_bytes())
    mine.chmod(0o600)
    await made.run(typed["A signed run"])
    look = ("watch", "set-by-the-test", "--once", "--creds", str(mine))
    assert "set-by-the-test" in await world.atoll("alpha", *look)
    await made.run(typed["Let a site in 2"])
    assert "refuses these credentials" in await world.atoll("alpha", *look, code=6)
