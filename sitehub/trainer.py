"""The trainer: a process that holds the model and does what its hub says.

    python -m sitehub.trainer --socket PATH --data DIR --config FILE --dir DIR --threads N
    torchrun ... -m sitehub.trainer ...     as many ranks; the first one is the trainer

It connects to the hub's unix socket, says `ready`, and answers each command {"do": ...} with
{"did": ...}; a command that failed has "error", one line, in its answer. Commands are carried out
one after the other, but for the long part of the exchange: `apply`, and `publish` once it has said
`cut`, run beside the training of further blocks (`sitehub.beside`). It never outlives its
hub: the end of the stream ends it at once, in the middle of a step too. Paths in commands are
relative to --dir. Exit codes: 0 told to exit, 1 a failure after which the state is not to be
trusted, 3 data or configuration that cannot be trained on, 4 the hub is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

from eventlog.config import RunConfig
from eventlog.errors import AtollError
from eventlog.events import DataShape
from eventlog.phases import IDLE
from outer.arithmetic import SITE_OPERATIONS, self_test
from sitehub import machine
from sitehub.commands import Trainer, failure, one_line
from sitehub.corpus import Corpus
from sitehub.evaluate import evaluate
from sitehub.layout import Between, Layout
from sitehub.model import build_model
from sitehub.replica import Replica
from sitehub.stacks import write_stacks_on_request
from sitehub.training import InnerLoop
from sitehub.wire import Message, WireInvalid, read_message, write_message

EXIT_BROKEN, EXIT_INVALID, EXIT_HUB_GONE = 1, 3, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to exit; the exit code."""
    arguments = _arguments(argv)
    machine.set_up(arguments.threads)
    write_stacks_on_request(Path(arguments.dir), os.getpid())
    if not arguments.sharding:
        machine.be_alone()
    for number in (signal.SIGTERM, signal.SIGUSR1) if machine.num_ranks() == 1 else ():
        signal.signal(number, signal.SIG_IGN)  # a job's end is the hub's to hear and to answer
    device = machine.pick_device()
    if machine.num_ranks() > 1:
        from sitehub import ranks  # what of torch is for many

        ranks.join(device)
    if machine.this_rank() > 0:
        return _follow(arguments, device)
    return _lead(arguments, device)


def _lead(arguments: argparse.Namespace, device: torch.device) -> int:
    """The trainer, as its hub knows it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(arguments.socket)
    except OSError as error:
        print(f"{arguments.socket}: no hub listens there: {error.strerror}", file=sys.stderr)
        return EXIT_HUB_GONE
    inbox = _Inbox()
    threading.Thread(target=_listen, args=(sock, inbox), daemon=True).start()
    speaking = threading.Lock()  # two threads answer

    def say(message: Message) -> None:
        try:
            with speaking:
                write_message(sock, message)
        except OSError:  # the listener sees the end of the stream too; whoever is first
            os._exit(EXIT_HUB_GONE)

    def broken(error: BaseException) -> None:
        traceback.print_exception(error)
        say({"say": "broken", "error": one_line(error)})
        os._exit(EXIT_BROKEN)

    try:
        trainer = _prepare(arguments, device, say, inbox.wake, broken)
    except (AtollError, OSError, ValueError) as error:
        traceback.print_exc()
        say({"say": "failed", "error": one_line(error)})
        return EXIT_INVALID
    inbox.trainer = trainer
    return _serve(trainer, inbox.commands, say)


class _Inbox:
    """Commands in the order they came, but for those that do not wait for the training."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.trainer: Trainer | None = None

    def put(self, command: Message) -> None:
        does = command.get("do")
        if self.trainer is not None and does in ("apply", "settle"):
            (self.trainer.apply if does == "apply" else self.trainer.settle)(command)
        else:
            self.commands.put(command)

    def wake(self) -> None:
        self.commands.put({"do": "wake"})


def _serve(
    trainer: Trainer, commands: queue.SimpleQueue[Message], say: Callable[[Message], None]
) -> int:
    while True:
        with trainer.stall.of(IDLE):
            command = commands.get()
        if command.get("do") == "exit":
            trainer.end()
            return 0
        try:
            answer = trainer.do(command)
        except AtollError as error:
            say(failure(command, error))
        except Exception as error:
            traceback.print_exc()
            say(failure(command, error))
            return EXIT_BROKEN
        else:
            if answer is not None:
                say({"did": command["do"], **answer})


def _follow(arguments: argparse.Namespace, device: torch.device) -> int:
    """A rank that is not the first: does what that one orders, until it ends."""
    from sitehub import ranks

    try:
        loop, corpus, _ = _loop(arguments, device, verify="quick")
    except (AtollError, OSError, ValueError):
        traceback.print_exc()
        return EXIT_INVALID
    layout = loop.layout
    assert isinstance(layout, ranks.RanksLayout), "there are several ranks"

    def train(block: int, progress: tuple[float, float]) -> None:
        between = Between(take=lambda: ranks.follow(layout, does))
        loop.train_block(block, progress, lambda _: None, between)

    does: dict[str, Callable[..., object]] = {
        "train": train,
        "reset": loop.reset,
        "evaluate": lambda max_tokens: evaluate(loop.model, corpus, max_tokens),
        "state": loop.optimizer.whole_state,
        "restore": loop.optimizer.restore,
    }
    ranks.follow(layout, does)
    return 0


def _loop(
    arguments: argparse.Namespace, device: torch.device, verify: Literal["quick", "full"]
) -> tuple[InnerLoop, Corpus, RunConfig]:
    """Model, data and inner loop of one rank. Raises DataInvalid, ModelInvalid, RanksInvalid."""
    content = json.loads(arguments.config.read_bytes())
    config = RunConfig.recorded(content["config"])
    shape = DataShape.model_validate(content["data"])
    corpus = Corpus.open(arguments.data, verify=verify)
    model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
    torch.nn.Module.to(model, device)  # the model's own `to` is typed for something else
    layout = None
    if machine.num_ranks() > 1:
        from sitehub import ranks

        layout = ranks.layout_of(model, arguments.sharding, config.inner)
    loop = InnerLoop(model, corpus, config.inner, shape.block_sequences, layout)
    return loop, corpus, config


def _prepare(
    arguments: argparse.Namespace,
    device: torch.device,
    say: Callable[[Message], None],
    wake: Callable[[], None],
    broken: Callable[[BaseException], None],
) -> Trainer:
    """Everything that a command needs, then `ready`."""
    loop, corpus, config = _loop(arguments, device, verify="full")
    arguments.dir.mkdir(parents=True, exist_ok=True)
    found = self_test().operations
    replica = Replica(loop.model, corpus, config.outer, loop, arguments.dir / "residual")
    if replica.feedback.notice:
        print(replica.feedback.notice, file=sys.stderr, flush=True)
    trainer = Trainer(replica, say, arguments.dir, wake, broken)
    say(
        {
            "say": "ready",
            "pid": os.getpid(),
            "hardware": machine.hardware(device) | {"ranks": _words(loop.layout)},
            "software": machine.software(device),
            "arithmetic": {name: found[name] for name in SITE_OPERATIONS},
            "manifest_digest": corpus.manifest_digest,
            "threads": arguments.threads,
            "pending": list(replica.feedback.pending),
        }
    )
    return trainer


def _words(layout: Layout) -> str:
    return f"{layout.size} ({layout.name})" if layout.size > 1 else "1"


def _listen(sock: socket.socket, inbox: _Inbox) -> None:
    """Queue commands until `exit`. Without its hub a trainer's work belongs to nobody."""
    try:
        while (message := read_message(sock)) is not None:
            inbox.put(message)
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
    parser.add_argument("--sharding", choices=("ddp", "fsdp2"), help="of many ranks; else one")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
