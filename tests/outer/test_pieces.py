"""Work in pieces on threads of its own: nothing that other threads do is changed by it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from outer import pieces
from outer.pieces import PIECE, over_pieces

MANY = 8 * PIECE
NICE = 3


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """And none that an earlier test has left."""
    before = torch.get_num_threads()
    pieces._pool.cache_clear()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def on_a_new_thread(work: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def priority(_: object = None) -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no priorities")
def test_threads_have_the_priority_of_who_asks_for_them() -> None:
    """Those that a trainer has used while it loaded must not do the work beside its training."""
    own = priority()
    assert over_pieces(MANY, priority) == [own] * 8

    def lower() -> list[int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + NICE)
        return over_pieces(MANY, priority)

    assert on_a_new_thread(lower) == [own + NICE] * 8
    assert over_pieces(MANY, priority) == [own] * 8


def test_each_piece_is_worked_on_by_one_thread_and_all_others_keep_theirs() -> None:
    """Torch keeps its number of threads by thread, and what was set last for those to come."""
    begun, go_on = threading.Event(), threading.Event()

    def work(_: slice) -> int:
        begun.set()
        assert go_on.wait(60)
        return torch.get_num_threads()

    found: list[list[int]] = []
    beside = threading.Thread(target=lambda: found.append(over_pieces(MANY, work)))
    beside.start()
    assert begun.wait(60)
    here, to_come = torch.get_num_threads(), on_a_new_thread(torch.get_num_threads)
    go_on.set()
    beside.join()
    assert (here, to_come) == (2, 2)
    assert found == [[1] * 8]
    assert on_a_new_thread(torch.get_num_threads) == 2
