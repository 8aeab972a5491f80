"""The trainer: a process that holds the model and does what its hub says, one command at a time.

    python -m sitehub.trainer --socket PATH --data DIR --config FILE --dir DIR --threads N

It connects to the hub's unix socket, says `ready`, and answers each command {"do": ...} with
{"did": ...}; a command that failed has "error", one line, in its answer. It never outlives its
hub: the end of the stream ends it at once, in the middle of a step too. Paths in commands are
relative to --dir. Exit codes: 0 told to exit, 1 a failure after which the state is not to be
trusted, 3 data or configuration that cannot be trained on, 4 the hub is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from eventlog.config import RunConfig
from eventlog.errors import AtollError
from eventlog.events import DataShape
from outer.arithmetic import SITE_OPERATIONS, self_test
from sitehub import machine
from sitehub.corpus import Corpus
from sitehub.model import build_model
from sitehub.replica import Replica
from sitehub.training import InnerLoop, Meter
from sitehub.wire import Message, WireInvalid, read_message, write_message

EXIT_BROKEN, EXIT_INVALID, EXIT_HUB_GONE = 1, 3, 4
_PROGRESS_S = 0.2  # between two reports of progress


class Trainer:
    """The commands. Each method does one and returns its answer."""

    def __init__(self, replica: Replica, say: Callable[[Message], None], directory: Path) -> None:
        self._replica, self._say, self._directory = replica, say, directory
        self._reported = 0.0

    def do(self, command: Message) -> Message:
        """Raises AtollError where nothing was changed; anything else means a broken state."""
        method = getattr(self, f"_do_{command['do']}")
        answer: Message = method(command)
        return answer

    def _do_load(self, command: Message) -> Message:
        begun = time.perf_counter()
        digest = self._replica.load(command["version"], self._path(command), command["kind"])
        return {"version": command["version"], "digest": digest, "seconds": _since(begun)}

    def _do_train(self, command: Message) -> Message:
        loop = self._replica.loop
        progress = (command["progress_from"], command["progress_to"])
        result = self._replica.train(command["block"], progress, self._report)
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
        }

    def _do_publish(self, command: Message) -> Message:
        begun = time.perf_counter()
        path, codec = self._path(command), command["codec"]
        norms = self._replica.publish(path, codec)
        return {
            "path": command["path"],
            "tag": command.get("tag"),
            "codec": codec,
            "norm": norms.norm,
            "max_abs": norms.max_abs,
            "num_bytes": path.stat().st_size,
            "seconds": _since(begun),
        }

    def _do_apply(self, command: Message) -> Message:
        begun = time.perf_counter()
        digest = self._replica.apply(command["version"], self._path(command), command["progress"])
        return {"version": command["version"], "digest": digest, "seconds": _since(begun)}

    def _do_rebase(self, command: Message) -> Message:
        self._replica.rebase(reset=command["reset"])
        return {}

    def _do_discard(self, command: Message) -> Message:
        self._replica.discard()
        return {}

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

    def _report(self, meter: Meter) -> None:
        """Say how far training is, at most five times a second."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to exit; the exit code."""
    arguments = _arguments(argv)
    machine.set_threads(arguments.threads)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(arguments.socket)
    except OSError as error:
        print(f"{arguments.socket}: no hub listens there: {error.strerror}", file=sys.stderr)
        return EXIT_HUB_GONE
    commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sock, commands), daemon=True).start()

    def say(message: Message) -> None:
        try:
            write_message(sock, message)
        except OSError:  # the listener sees the end of the stream too; whoever is first
            os._exit(EXIT_HUB_GONE)

    try:
        trainer = _prepare(arguments, say)
    except (AtollError, OSError, ValueError) as error:
        traceback.print_exc()
        say({"say": "failed", "error": _one_line(error)})
        return EXIT_INVALID
    return _serve(trainer, commands, say)


def _serve(
    trainer: Trainer, commands: queue.SimpleQueue[Message], say: Callable[[Message], None]
) -> int:
    while (command := commands.get()).get("do") != "exit":
        did = {"did": command.get("do")}
        try:
            answer = trainer.do(command)
        except AtollError as error:
            say(did | {"error": _one_line(error), "tag": command.get("tag")})
        except Exception as error:
            traceback.print_exc()
            say(did | {"error": f"{type(error).__name__}: {_one_line(error)}"})
            return EXIT_BROKEN
        else:
            say(did | answer)
    return 0


def _prepare(arguments: argparse.Namespace, say: Callable[[Message], None]) -> Trainer:
    """Everything that a command needs, then `ready`."""
    content = json.loads(arguments.config.read_bytes())
    config = RunConfig.model_validate(content["config"])
    shape = DataShape.model_validate(content["data"])
    corpus = Corpus.open(arguments.data, verify="full")
    device = machine.pick_device()
    model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
    torch.nn.Module.to(model, device)  # the model's own `to` is typed for something else
    loop = InnerLoop(model, corpus, config.inner, shape.block_sequences)
    arguments.dir.mkdir(parents=True, exist_ok=True)
    found = self_test().operations
    trainer = Trainer(Replica(model, corpus, config.outer, loop), say, arguments.dir)
    say(
        {
            "say": "ready",
            "pid": os.getpid(),
            "hardware": machine.hardware(device),
            "software": machine.software(device),
            "arithmetic": {name: found[name] for name in SITE_OPERATIONS},
            "manifest_digest": corpus.manifest_digest,
            "threads": arguments.threads,
        }
    )
    return trainer


def _listen(sock: socket.socket, commands: queue.SimpleQueue[Message]) -> None:
    """Queue commands until `exit`. Without its hub a trainer's work belongs to nobody."""
    try:
        while (message := read_message(sock)) is not None:
            commands.put(message)
            if message.get("do") == "exit":
                return
    except (OSError, WireInvalid) as error:
        print(f"the hub's stream broke: {error}", file=sys.stderr, flush=True)
    os._exit(EXIT_HUB_GONE)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sitehub.trainer")
    parser.add_argument("--socket", required=True, help="the hub's unix socket")
    parser.add_argument("--data", required=True, type=Path, help="the data directory")
    parser.add_argument("--config", required=True, type=Path, help="run configuration as JSON")
    parser.add_argument("--dir", required=True, type=Path, help="where exchanged files lie")
    parser.add_argument("--threads", type=int, default=1, help="threads this process may use")
    return parser.parse_args(argv)


def _since(begun: float) -> float:
    return time.perf_counter() - begun


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
