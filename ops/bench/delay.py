"""A TCP proxy that delays and does not throttle: `python -m ops.bench.delay PORT DELAY_S`.

A process of its own, so that it shares no interpreter with whoever is measured. In each direction
of a connection one thread reads and another writes what is due; what is under way waits in memory.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

_PIECE_BYTES = 1 << 20
_UNDER_WAY = 256  # pieces of one direction; more than any window here


@contextlib.contextmanager
def delayed(port: int, delay_s: float) -> Iterator[int]:
    """A port of this machine behind which `port` is; each byte takes `delay_s` each way."""
    command = [sys.executable, "-m", "ops.bench.delay", str(port), str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def serve(port: int, delay_s: float) -> None:
    """Pass connections on until this process is ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _pass(source, target, delay_s)


def _pass(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    under_way: queue.Queue[tuple[float, bytes]] = queue.Queue(_UNDER_WAY)

    def read() -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(_PIECE_BYTES)
            except OSError:
                data = b""
            under_way.put((time.monotonic() + delay_s, data))

    def write() -> None:
        while True:
            due, data = under_way.get()
            if (left_s := due - time.monotonic()) > 0:
                time.sleep(left_s)
            try:
                if not data:
                    return target.shutdown(socket.SHUT_WR)
                target.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    source.shutdown(socket.SHUT_RD)
                return None

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()


def rate(num_bytes: int) -> float:
    """Bytes per second that the proxy passes without delay, on one connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as sink,
        delayed(sink.getsockname()[1], 0.0) as port,
    ):
        source = socket.create_connection(("127.0.0.1", port))
        reader, _ = sink.accept()
        buffer, left = bytearray(_PIECE_BYTES), num_bytes
        began = time.perf_counter()
        sending = threading.Thread(target=_send, args=(source, num_bytes))
        sending.start()
        while left > 0 and (num := reader.recv_into(buffer)):
            left -= num
        took = time.perf_counter() - began
        sending.join()
        reader.close()
    return (num_bytes - left) / took


def _send(source: socket.socket, num_bytes: int) -> None:
    piece = bytes(_PIECE_BYTES)
    with source:
        for _ in range(num_bytes // _PIECE_BYTES):
            source.sendall(piece)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve(int(sys.argv[1]), float(sys.argv[2]))
