"""Trainers on one machine, forked from a parent that has paid for the imports once.

    python -m sitehub.preload SOCKET        lives until told to exit, or its standard input closes

The parent imports torch, the model's class and the trainer, and runs no operation of torch: it has
one thread, so a fork of it is a whole process. On its unix socket it answers, one request a
connection, in the messages of `sitehub.wire`:

    {"ping": true}                            -> {"pid"}
    {"argv": [...], "log": path, "env": {}}   -> {"pid"} of a trainer in a session of its own
    {"status": pid}                           -> {"returncode"}: null while it runs
    {"exit": true}                            -> {}; the trainers live on
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

from sitehub.spawn import WAITING
from sitehub.wire import Message, WireInvalid, read_message, write_message

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_MODULES = ("transformers.models.qwen3.modeling_qwen3", "tokenizers", "sitehub.trainer")
_REAP_S = 0.2  # how often dead trainers are looked for
_CLIENT_S = 5.0  # what a client may take to say what it wants


class Preload:
    """The parent: serves requests on a listening socket."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._returncodes: dict[int, int | None] = {}

    def serve(self) -> None:
        """Until told to exit, or the standard input closes."""
        sources = [self._listener, sys.stdin]
        while True:
            readable, _, _ = select.select(sources, [], [], _REAP_S)
            self._reap()
            if sys.stdin in readable and not os.read(sys.stdin.fileno(), 4096):
                return
            if self._listener in readable and not self._answer_one():
                return

    def _answer_one(self) -> bool:
        """Serve one connection; False: it told us to exit."""
        client, _ = self._listener.accept()
        with client, contextlib.suppress(OSError, WireInvalid):
            client.settimeout(_CLIENT_S)
            request = read_message(client) or {}
            write_message(client, self._answer(request, client))
            return "exit" not in request
        return True

    def _answer(self, request: Message, client: socket.socket) -> Message:
        if "argv" in request:
            return self._fork(request, client)
        if "status" in request:
            self._reap()
            if request["status"] not in self._returncodes:
                return {"error": f"{request['status']} is no trainer of this parent"}
            return {"returncode": self._returncodes[request["status"]]}
        return {"pid": os.getpid()} if "ping" in request else {}

    def _fork(self, request: Message, client: socket.socket) -> Message:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._listener.close()
            client.close()
            _become_trainer(request)
        self._returncodes[pid] = None
        return {"pid": pid}

    def _reap(self) -> None:
        for pid in [pid for pid, code in self._returncodes.items() if code is None]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._returncodes[pid] = os.waitstatus_to_exitcode(status)


def _become_trainer(request: Message) -> None:
    """In the child: never returns, whatever happens."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(request.get("env") or {})
        from sitehub import trainer

        code = trainer.main(request["argv"])
    except SystemExit as error:  # argparse
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(argv: list[str] | None = None) -> int:
    """Import, listen, serve; the exit code. The socket appears once forks are quick."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m sitehub.preload SOCKET", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us
    # Before libraries read it: threads of a pool do not survive a fork.
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    for module in _MODULES:
        importlib.import_module(module)
    gc.freeze()  # what is imported stays shared with the children
    path = Path(arguments[0])
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(part))
        listener.listen(16)
        os.replace(part, path)
        try:
            Preload(listener).serve()
        finally:
            path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
