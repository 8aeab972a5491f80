"""What a trainer can be told: its commands, on the threads that they are for.

Training never waits for a file to be encoded or decoded: `publish` and `apply` take from it what
`Replica.cut` and `Replica.fold` take, and do the rest beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from eventlog.errors import AtollError
from eventlog.phases import BLOCKED, EVALUATE
from sitehub import checkpoint
from sitehub.beside import Beside, Rest
from sitehub.layout import Between
from sitehub.optimizer import StateUnfit
from sitehub.replica import FileTrouble, Replica
from sitehub.stall import Stall
from sitehub.training import Meter
from sitehub.wire import Message

_PROGRESS_S = 0.2  # between two reports of progress


class Trainer:
    """The commands. Each method does one and returns its answer, or None where that comes later.

    `wake`, `broken`: see `Beside`. `stall`: what training stood still for since the trainer last
    said that it holds a version.
    """

    def __init__(
        self,
        replica: Replica,
        say: Callable[[Message], None],
        directory: Path,
        wake: Callable[[], None] = lambda: None,
        broken: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._replica, self._say, self._directory = replica, say, directory
        self._beside = Beside(wake, broken, yields=replica.trains_meanwhile)
        self._reported = 0.0
        self.stall = Stall()

    def do(self, command: Message) -> Message | None:
        """Raises AtollError where nothing was changed; anything else means a broken state."""
        if command["do"] == "train":
            return self._do_train(command)
        with self.stall.of(EVALUATE if command["do"] == "evaluate" else BLOCKED):
            if command["do"] != "wake":
                self._beside.wait()  # whoever reads P or θ finds them whole
            method = getattr(self, f"_do_{command['do']}")
            answer: Message | None = method(command)
            return answer

    def end(self) -> None:
        """Told to exit: the other ranks too."""
        self._replica.loop.layout.order("exit")

    def settle(self, command: Message) -> None:
        """A delta is decided; after whatever is encoded now. May be called on any thread."""

        def settle() -> None:
            self._replica.settle(command["label"], merged=command["merged"])
            self._say({"did": "settle", "label": command["label"]})

        self._beside.start(self._said(command, settle))

    def apply(self, command: Message) -> None:
        """The next version is computed beside training, and folded in between two steps. May be
        called on any thread; the answer comes later."""

        def step() -> Rest:
            begun, version = time.perf_counter(), command["version"]
            digest = self._replica.step(version, self._path(command), command["progress"])
            took = _since(begun)

            def fold() -> None:
                self._replica.fold(version)
                answer = {"version": version, "digest": digest, "seconds": took}
                self._say({"did": "apply", **answer, "stall": self.stall.take()})

            return fold

        self._beside.start(self._said(command, step))

    def _do_wake(self, _: Message) -> None:
        self._beside.finish()

    def _do_load(self, command: Message) -> Message:
        begun = time.perf_counter()
        kind, keep = command["kind"], command.get("keep", False)
        digest = self._replica.load(command["version"], self._path(command), kind, keep)
        self.stall.take()  # it is only now that there is anything to train
        return {"version": command["version"], "digest": digest, "seconds": _since(begun)}

    def _do_train(self, command: Message) -> Message:
        self._finish()
        loop = self._replica.loop
        progress = (command["progress_from"], command["progress_to"])
        between = Between(self._beside.has_left, self._finish)
        result = self._replica.train(command["block"], progress, self._report, between)
        return {
            "epoch": command["epoch"],
            "block": command["block"],
            "tag": command.get("tag"),
            "loss": result.loss,
            "seconds": result.seconds,
            "steps": result.steps,
            "tokens": result.tokens,
            "step": loop.meter.steps,
            "tokens_total": loop.meter.tokens,
            "tokens_per_s": loop.meter.tokens_per_s,
            "lr": result.rate,
            "num_skipped": result.num_skipped,
        }

    def _do_publish(self, command: Message) -> None:
        """Training goes on as soon as P is moved; the delta is written beside it."""
        progress, label = self._replica.cut(), command["label"]
        self._say({"say": "cut", "path": command["path"]})

        def encode() -> None:
            begun = time.perf_counter()
            path, codec = self._path(command), command["codec"]
            norms = self._replica.encode(label, progress, path, codec)
            self._say(
                {
                    "did": "publish",
                    "path": command["path"],
                    "tag": command.get("tag"),
                    "codec": codec,
                    "norm": norms.norm,
                    "max_abs": norms.max_abs,
                    "label": label,
                    "pending": label in self._replica.feedback.pending,
                    "num_bytes": path.stat().st_size,
                    "seconds": _since(begun),
                }
            )

        self._beside.start(self._said(command, encode))

    def _said(self, command: Message, job: Callable[[], Rest | None]) -> Callable[[], Rest | None]:
        """A job whose failure is the answer to its command."""

        def run() -> Rest | None:
            try:
                return job()
            except AtollError as error:
                self._say(failure(command, error))
                return None

        return run

    def _do_rebase(self, command: Message) -> Message:
        self._replica.rebase(reset=command["reset"])
        return {}

    def _do_discard(self, command: Message) -> Message:
        self._replica.discard()
        return {}

    def _do_save(self, command: Message) -> None:
        """Training goes on as soon as the inner state is copied; it is written beside it."""
        loop, feedback = self._replica.loop, self._replica.feedback
        begun, inner = time.perf_counter(), loop.optimizer.whole_state()
        done = {"steps": loop.meter.steps, "tokens": loop.meter.tokens, "ranks": loop.layout.size}
        copied = _since(begun)
        self._say({"say": "saving"})

        def write() -> None:
            folder = Path(command["folder"])
            try:
                path = checkpoint.write(folder, inner, feedback, command["state"] | done)
            except OSError as error:
                raise FileTrouble(f"{folder}: cannot be written: {error.strerror}") from error
            took = {"copied_s": copied, "seconds": _since(begun)}
            self._say({"did": "save", "path": str(path), "steps": done["steps"], **took})

        self._beside.start(self._said(command, write))

    def _do_resume(self, command: Message) -> Message:
        """Take up what the site's last life has left."""
        loop, feedback = self._replica.loop, self._replica.feedback
        path = Path(command["path"]) if command["path"] else None
        try:
            residual = path if command["saved"] else None
            checkpoint.take_up(residual, command["own"], feedback)
        except OSError as error:
            raise FileTrouble(f"the residual cannot be taken up: {error}") from error
        notice = feedback.notice
        if path is not None and loop.keeps_state:
            try:
                checkpoint.restore(path, loop.optimizer)
            except StateUnfit as error:  # the residual counts all the same
                notice = f"inner state begins anew: {error}"
        pending = list(feedback.pending)
        return {"path": command["path"], "pending": pending, "notice": notice}

    def _do_evaluate(self, command: Message) -> Message:
        begun = time.perf_counter()
        result = self._replica.evaluate(command["max_tokens"])
        return {
            "version": self._replica.version,
            "loss": result.loss,
            "perplexity": result.perplexity,
            "bits_per_byte": result.bits_per_byte,
            "num_tokens": result.num_tokens,
            "seconds": _since(begun),
        }

    def _path(self, command: Message) -> Path:
        return self._directory / command["path"]

    def _finish(self) -> None:
        """Between two steps: fold in what is ready."""
        with self.stall.of(BLOCKED):
            self._beside.finish()

    def _report(self, meter: Meter) -> None:
        """After each step: say how far training is, at most five times a second."""
        now = time.monotonic()
        if now - self._reported < _PROGRESS_S:
            return
        self._reported = now
        self._say(
            {
                "say": "progress",
                "step": meter.steps,
                "tokens": meter.tokens,
                "tokens_per_s": meter.tokens_per_s,
                "step_s": meter.step_s,
                "slowest_step_s": meter.slowest_step_s,
            }
        )


def failure(command: Message, error: Exception) -> Message:
    """The answer to a command that failed."""
    kind = "" if isinstance(error, AtollError) else f"{type(error).__name__}: "
    said = {name: command.get(name) for name in ("tag", "label")}
    return {"did": command.get("do"), "error": kind + one_line(error), **said}


def _since(begun: float) -> float:
    return time.perf_counter() - begun


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
