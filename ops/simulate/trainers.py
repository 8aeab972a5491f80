"""The hub's end of a virtual trainer: the interface of `sitehub.handover.Handover`, no process.

It does with tensors what a trainer does (`sitehub.rehearsal`) and takes virtual time for it. At
every block it holds the trainer's parameters against what the hub's fold says: they may stand on
blocks that the incarnation has trained or that a delta of it holds which is not in the trainer's
version yet, and on no other; and what lies between them and the anchor is exactly what is trained
and not published. Progress that was refused or reclaimed and is still in there is a violation, and
so is progress that was lost. What a trainer does beside training takes time of its own here, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from eventlog.blobs import digest_file
from eventlog.config import RunConfig
from eventlog.events import DataShape
from eventlog.phases import EVALUATE, IDLE
from ops.simulate.workbench import Bench
from outer.pseudo_gradient import Progress
from sitehub.rehearsal import Harm, Rehearsal, arithmetic
from sitehub.stall import Stall

Message = dict[str, Any]
Job = Callable[[], Coroutine[Any, Any, Callable[[], None] | None]]
STEP_REPORTS = 4  # reports of progress within a block


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
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()  # beside training, in their order
        self._left: list[Callable[[], None]] = []  # to be done between two steps
        self._trains = False
        self._stall = Stall(bench.loop.time)
        self._task: asyncio.Task[None] | None = None
        self._beside: asyncio.Task[None] | None = None
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
        self._commands, self._jobs, self._left = asyncio.Queue(), asyncio.Queue(), []
        self._trains, self._stall = False, Stall(self._bench.loop.time)
        self._task = asyncio.create_task(self._serve(self._replica))
        self._beside = asyncio.create_task(self._work())

    async def tell(self, command: Message) -> None:
        """Queue one command."""
        if command["do"] == "apply" and self._replica is not None:
            self._jobs.put_nowait(partial(self._apply, self._replica, command))
        else:
            self._commands.put_nowait(command)

    async def stop(self) -> None:
        """End the trainer."""
        await asyncio.gather(*self._cancelled(), return_exceptions=True)

    async def close(self) -> None:
        """End the trainer for good."""
        await self.stop()

    def kill(self) -> None:
        """End a trainer that hangs, at once; `on_gone` follows."""
        asyncio.get_running_loop().call_soon(self.die)

    def die(self) -> bool:
        """The trainer's process is killed; whether there was one."""
        if was_there := bool(self._cancelled()):
            self._on_gone("the trainer ended with exit code -9")
        return was_there

    def _cancelled(self) -> list[asyncio.Task[None]]:
        """What it does ends; the tasks that did it."""
        tasks = [task for task in (self._task, self._beside) if task is not None]
        self._task = self._beside = self._replica = None
        for task in tasks:
            task.cancel()
        return tasks

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
            with self._stall.of(IDLE):
                command = await self._commands.get()
            answer = await getattr(self, f"_do_{command['do']}")(replica, command)
            if answer is not None:
                self._on_message({"did": command["do"], **answer})

    async def _work(self) -> None:
        while True:
            job = await self._jobs.get()
            rest = await job()
            if rest is not None:
                self._left.append(rest)
            self._jobs.task_done()
            if not self._trains:
                self._finish()

    def _finish(self) -> None:
        """Between two steps of training: what was done beside it takes effect."""
        left, self._left = self._left, []
        for rest in left:
            rest()

    async def _takes(self, seconds: float) -> None:
        """Let time pass; a trainer that hangs lets more pass."""
        await asyncio.sleep(seconds)
        while self._bench.hung_until > self._bench.loop.time():
            await asyncio.sleep(self._bench.hung_until - self._bench.loop.time())

    async def _do_load(self, replica: Rehearsal, command: Message) -> Message:
        await self._takes(0.05)
        path = self.folder / command["path"]
        keep = command.get("keep", False)
        digest = replica.load(command["version"], path, command["kind"], keep)
        self._stall.take()
        return {"version": command["version"], "digest": digest, "seconds": 0.05}

    async def _do_resume(self, replica: Rehearsal, command: Message) -> Message:
        return {"path": None, "pending": [], "notice": ""}  # it has no moments and no residual

    async def _apply(self, replica: Rehearsal, command: Message) -> Callable[[], None]:
        version, took = command["version"], self._bench.exchange_s
        await self._takes(took)
        digest = replica.step(version, self.folder / command["path"], command["progress"])

        def fold() -> None:
            replica.fold(version)
            answer = {"version": version, "digest": digest, "seconds": took}
            self._on_message({"did": "apply", **answer, "stall": self._stall.take()})

        return fold

    async def _do_train(self, replica: Rehearsal, command: Message) -> Message:
        bench = self._bench
        self._check(replica)
        bench.begins(command["epoch"], command["block"])
        begun = bench.loop.time()
        step_s = bench.slow / bench.steps_per_s
        part_s = bench.steps_per_block * step_s / STEP_REPORTS
        tokens = self._block_tokens(command["block"])
        number = command["epoch"] * bench.num_blocks + command["block"]
        self._trains = True
        for part in range(1, STEP_REPORTS + 1):
            await self._takes(part_s)
            replica.train(number, 1.0 / STEP_REPORTS)
            self._finish()
            done = part * bench.steps_per_block // STEP_REPORTS
            self._on_message(self._progress(done, part * tokens // STEP_REPORTS, step_s))
        self._trains = False
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

    async def _do_publish(self, replica: Rehearsal, command: Message) -> None:
        harm, self._bench.harm = self._bench.harm or self._bench.rotten, None
        if self._bench.poisoned and self._bench.poisoned.intersection(replica.undelivered()):
            harm = "nan"
        if harm:
            self._bench.injected(f"bad delta: {harm}")
        progress = replica.cut()
        self._on_message({"say": "cut", "path": command["path"]})
        self._jobs.put_nowait(partial(self._encode, replica, command, progress, harm))

    async def _encode(
        self, replica: Rehearsal, command: Message, progress: Progress, harm: Harm | None
    ) -> None:
        await self._takes(self._bench.exchange_s)
        path = self.folder / command["path"]
        norms = replica.encode(progress, path, command["codec"], harm)
        if harm:
            self._bench.spoiled[digest_file(path).digest] = harm
        self._on_message(
            {
                "did": "publish",
                "path": command["path"],
                "codec": command["codec"],
                "norm": norms.norm,
                "max_abs": norms.max_abs,
                "num_bytes": path.stat().st_size,
                "seconds": self._bench.exchange_s,
            }
        )

    async def _do_rebase(self, replica: Rehearsal, command: Message) -> Message:
        replica.rebase(reset=command["reset"])
        return {}

    async def _do_discard(self, replica: Rehearsal, command: Message) -> Message:
        replica.discard()
        return {}

    async def _do_evaluate(self, replica: Rehearsal, command: Message) -> Message:
        """The loss is 1 nat at every version, as it is in training."""
        with self._stall.of(EVALUATE):
            await self._jobs.join()
            self._finish()
            await self._takes(self._bench.exchange_s)
        return {
            "version": replica.version,
            "num_tokens": command["max_tokens"],
            "loss": 1.0,
            "perplexity": math.e,
            "bits_per_byte": 1.0,
            "seconds": self._bench.exchange_s,
        }

    def _block_tokens(self, block: int) -> int:
        first = block * self._block_sequences
        last = min(first + self._block_sequences, self._num_sequences)
        return (last - first) * self._sequence_tokens

    def _check(self, replica: Rehearsal) -> None:
        """What the parameters stand on, at the moment a block begins."""
        allowed, exact = self._bench.allowed(), self._bench.unpublished()
        if allowed is not None and (strange := set(replica.progress()) - allowed):
            self._bench.violated(
                f"a trainer stands on blocks {self._named(strange)}, which are neither trained by "
                "its incarnation and undelivered nor in a delta of it that its version lacks"
            )
        if exact is not None and exact != (found := set(replica.undelivered())):
            self._bench.violated(
                f"the next delta would hold blocks {self._named(found)}; trained and not published "
                f"are {self._named(exact)}"
            )

    def _named(self, numbers: set[int]) -> str:
        num_blocks = self._bench.num_blocks
        return ", ".join(f"{n // num_blocks}:{n % num_blocks}" for n in sorted(numbers)[:5])
