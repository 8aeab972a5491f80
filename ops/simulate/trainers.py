"""The hub's end of a virtual trainer: the interface of `sitehub.handover.Handover`, no process.

It does with tensors what a trainer does (`sitehub.rehearsal`) and takes virtual time for it. At
every block it holds the trainer's parameters against what the hub's fold says: they may stand on
blocks that the incarnation has trained or that a delta of it still awaits its merge, and on no
other. Progress that was refused or reclaimed and is still in there is a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventlog.config import RunConfig
from eventlog.events import DataShape
from ops.simulate.loop import VirtualLoop
from sitehub.rehearsal import Harm, Rehearsal, arithmetic

Message = dict[str, Any]
STEP_REPORTS = 4  # reports of progress within a block


@dataclass(slots=True)
class Bench:
    """What the world knows of a site's trainer, and does to it."""

    loop: VirtualLoop
    size: int
    num_blocks: int  # of an epoch
    steps_per_s: float
    steps_per_block: int
    start_s: float
    allowed: Callable[[], set[int] | None]  # numbers that the trainer's parameters may stand on
    begins: Callable[[int, int], None]  # it is about to train this block of this epoch
    poisoned: set[int]  # numbers of blocks that make NaN of a delta
    violated: Callable[[str], None]
    injected: Callable[[str], None]
    slow: float = 1.0  # a block takes so many times as long
    hung_until: float = 0.0
    harm: Harm | None = None  # of the next delta
    rotten: Harm | None = None  # of every delta, until a trainer starts anew
    handover: SimHandover | None = None


class SimHandover:
    """A trainer that hears and answers in virtual time. `bench` is the world's side of it."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        num_threads: int,
        on_message: Callable[[Message], None],
        on_gone: Callable[[str], None],
        *,
        bench: Bench,
    ) -> None:
        self.folder, self.pid = folder, None
        self._on_message, self._on_gone, self._bench = on_message, on_gone, bench
        self._replica: Rehearsal | None = None
        self._commands: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._manifest = ""
        self._steps = self._tokens = 0
        self._sequence_tokens = self._block_sequences = self._num_sequences = 0
        bench.handover = self

    async def start(self, config: RunConfig, shape: DataShape) -> None:
        """Start a trainer; it reports `ready` when its model stands."""
        await self.stop()
        self._bench.hung_until, self._bench.rotten = 0.0, None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._manifest, self._sequence_tokens = shape.manifest_digest, shape.sequence_tokens
        self._block_sequences, self._num_sequences = shape.block_sequences, shape.num_sequences
        self._replica = Rehearsal(self._bench.size, config.outer)
        self._commands = asyncio.Queue()
        self._task = asyncio.create_task(self._serve(self._replica))

    async def tell(self, command: Message) -> None:
        """Queue one command."""
        self._commands.put_nowait(command)

    async def stop(self) -> None:
        """End the trainer."""
        task, self._task, self._replica = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """End the trainer for good."""
        await self.stop()

    def kill(self) -> None:
        """End a trainer that hangs, at once; `on_gone` follows."""
        asyncio.get_running_loop().call_soon(self.die)

    def die(self) -> bool:
        """The trainer's process is killed; whether there was one."""
        task, self._task, self._replica = self._task, None, None
        if task is None:
            return False
        task.cancel()
        self._on_gone("the trainer ended with exit code -9")
        return True

    async def _serve(self, replica: Rehearsal) -> None:
        await asyncio.sleep(self._bench.start_s)
        operations, _ = arithmetic()
        self._on_message(
            {
                "say": "ready",
                "hardware": {"device": "simulated"},
                "software": {},
                "arithmetic": {name: operations[name] for name in ("decode", "step")},
                "manifest_digest": self._manifest,
            }
        )
        while True:
            command = await self._commands.get()
            answer = await getattr(self, f"_do_{command['do']}")(replica, command)
            self._on_message({"did": command["do"], **answer})

    async def _takes(self, seconds: float) -> None:
        """Let time pass; a trainer that hangs lets more pass."""
        await asyncio.sleep(seconds)
        while self._bench.hung_until > self._bench.loop.time():
            await asyncio.sleep(self._bench.hung_until - self._bench.loop.time())

    async def _do_load(self, replica: Rehearsal, command: Message) -> Message:
        await self._takes(0.05)
        path = self.folder / command["path"]
        digest = replica.load(command["version"], path, command["kind"])
        return {"version": command["version"], "digest": digest, "seconds": 0.05}

    async def _do_apply(self, replica: Rehearsal, command: Message) -> Message:
        await self._takes(0.05)
        digest = replica.apply(
            command["version"], self.folder / command["path"], command["progress"]
        )
        return {"version": command["version"], "digest": digest, "seconds": 0.05}

    async def _do_train(self, replica: Rehearsal, command: Message) -> Message:
        bench = self._bench
        self._check(replica)
        bench.begins(command["epoch"], command["block"])
        begun = bench.loop.time()
        step_s = bench.slow / bench.steps_per_s
        part_s = bench.steps_per_block * step_s / STEP_REPORTS
        tokens = self._block_tokens(command["block"])
        for part in range(1, STEP_REPORTS + 1):
            await self._takes(part_s)
            done = part * bench.steps_per_block // STEP_REPORTS
            self._on_message(self._progress(done, part * tokens // STEP_REPORTS, step_s))
        replica.train(command["epoch"] * bench.num_blocks + command["block"])
        self._steps += bench.steps_per_block
        self._tokens += tokens
        seconds = bench.loop.time() - begun
        return {
            "epoch": command["epoch"],
            "block": command["block"],
            "tag": command["tag"],
            "loss": 1.0,
            "seconds": seconds,
            "steps": bench.steps_per_block,
            "tokens": tokens,
            "step": self._steps,
            "tokens_total": self._tokens,
            "tokens_per_s": tokens / seconds,
            "step_s": step_s,
        }

    def _progress(self, steps: int, tokens: int, step_s: float) -> Message:
        rate = self._sequence_tokens * self._block_sequences / self._bench.steps_per_block / step_s
        return {
            "say": "progress",
            "step": self._steps + steps,
            "tokens": self._tokens + tokens,
            "tokens_per_s": rate,
            "step_s": step_s,
            "slowest_step_s": step_s,
        }

    async def _do_publish(self, replica: Rehearsal, command: Message) -> Message:
        await self._takes(0.05)
        harm, self._bench.harm = self._bench.harm or self._bench.rotten, None
        if self._bench.poisoned and self._bench.poisoned.intersection(replica.undelivered()):
            harm = "nan"
        if harm:
            self._bench.injected(f"bad delta: {harm}")
        path = self.folder / command["path"]
        norms = replica.publish(path, command["codec"], harm)
        return {
            "path": command["path"],
            "codec": command["codec"],
            "norm": norms.norm,
            "max_abs": norms.max_abs,
            "num_bytes": path.stat().st_size,
            "seconds": 0.05,
        }

    async def _do_rebase(self, replica: Rehearsal, command: Message) -> Message:
        replica.rebase(reset=command["reset"])
        return {}

    async def _do_discard(self, replica: Rehearsal, command: Message) -> Message:
        replica.discard()
        return {}

    def _block_tokens(self, block: int) -> int:
        first = block * self._block_sequences
        last = min(first + self._block_sequences, self._num_sequences)
        return (last - first) * self._sequence_tokens

    def _check(self, replica: Rehearsal) -> None:
        """What the parameters stand on, at the moment a block begins."""
        allowed = self._bench.allowed()
        strange = [] if allowed is None else sorted(set(replica.progress()) - allowed)
        if strange:
            num_blocks = self._bench.num_blocks
            names = ", ".join(f"{n // num_blocks}:{n % num_blocks}" for n in strange[:5])
            self._bench.violated(
                f"a trainer stands on blocks {names}, which are neither trained by its incarnation "
                "and undelivered nor in an undecided delta of it"
            )
