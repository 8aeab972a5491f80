"""Work in pieces on threads of its own: nothing that other threads do is changed by it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from outer import pieces
from outer.pieces import PIECE, over_pieces, over_tensors

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


@pytest.mark.parametrize("num_threads", [1, 2])
def test_results_come_by_tensor_in_order_whoever_is_done_first(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    sizes = {"a": 3 * PIECE + 5, "empty": 0, "b": 7, "c": 9 * PIECE}

    def work(name: str, piece: slice) -> tuple[str, int, int]:
        if piece.start == 0:
            time.sleep(0.02)  # the first piece of each is done last
        return name, piece.start, piece.stop

    found = list(over_tensors(sizes.items(), work))
    assert found == [
        (name, [(name, i, min(i + PIECE, size)) for i in range(0, size, PIECE)])
        for name, size in sizes.items()
    ]


def test_a_tensor_is_asked_for_only_a_little_ahead_of_the_work() -> None:
    go_on, asked = threading.Event(), []

    def tensors() -> Iterator[tuple[str, int]]:
        for number in range(1000):
            asked.append(number)
            yield str(number), 1

    working = over_tensors(tensors(), lambda *_: go_on.wait(60))
    first = threading.Thread(target=lambda: next(working))
    first.start()
    while len(asked) < 8:
        time.sleep(0.001)
    go_on.set()
    first.join()
    assert len(asked) < 20
    assert sum(1 for _ in working) == 999
    assert asked == list(range(1000))


def test_when_one_piece_fails_no_work_is_under_way_any_more() -> None:
    under_way, most = [0], 0

    def work(_: str, piece: slice) -> None:
        under_way[0] += 1
        try:
            if piece.start == PIECE:
                raise OSError("the disk is full")
            time.sleep(0.05)
        finally:
            under_way[0] -= 1

    for _ in range(3):
        with pytest.raises(OSError, match="disk is full"):
            list(over_tensors([("a", 2 * PIECE), ("b", MANY), ("c", MANY)], work))
        most = max(most, under_way[0])
    assert most == 0
