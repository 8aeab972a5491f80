"""Keys as they are pressed, from a terminal that is given back as it was."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_SEQUENCES = {
    "[D": "left", "OD": "left", "[C": "right", "OC": "right", "[H": "home", "OH": "home",
    "[1~": "home", "[F": "end", "OF": "end", "[4~": "end",
}  # fmt: skip  # what xterm and its kin send behind an escape


@contextmanager
def pressed() -> Iterator[asyncio.Queue[str]]:
    """A queue that keys come into, as `Player.press` names them; none ever come where stdin is no
    terminal. Within a running loop."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield keys
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()
    tty.setcbreak(file)

    def read() -> None:
        for key in named(os.read(file, 1024)):
            keys.put_nowait(key)

    loop.add_reader(file, read)
    try:
        yield keys
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def named(data: bytes) -> list[str]:
    """The keys in what a terminal sent at once."""
    text, found = data.decode("utf-8", "replace"), []
    while text:
        sequence = next((one for one in _SEQUENCES if text.startswith("\x1b" + one)), None)
        found.append(text[0] if sequence is None else _SEQUENCES[sequence])
        text = text[1 if sequence is None else 1 + len(sequence) :]
    return found
