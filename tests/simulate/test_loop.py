"""Virtual time: it moves only when nothing is ready, and a frozen process does nothing in it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ops.simulate.loop import THREAD_S, Process, Stuck, VirtualLoop


def run(work: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_a_day_of_sleep_takes_exactly_a_day_of_virtual_time() -> None:
    async def day() -> float:
        for _ in range(24):
            await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(day()) == pytest.approx(86400, abs=1e-6)


def test_timers_fire_in_the_order_of_their_times() -> None:
    order: list[float] = []

    async def after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    async def all_of_them() -> None:
        await asyncio.gather(*(after(seconds) for seconds in (3.0, 1.0, 2.0, 0.5)))

    run(all_of_them())
    assert order == [0.5, 1.0, 2.0, 3.0]


def test_a_frozen_process_does_nothing_until_it_goes_on_and_then_everything_at_once() -> None:
    seen: list[float] = []

    async def world() -> float:
        loop = asyncio.get_running_loop()
        process = Process("frozen")

        async def beats() -> None:
            for _ in range(3):
                await asyncio.sleep(1.0)
                seen.append(loop.time())

        task = process.spawn(beats())
        await asyncio.sleep(1.5)
        process.paused = True
        await asyncio.sleep(10.0)
        process.resume()
        await task
        return loop.time()

    assert run(world()) == pytest.approx(12.5)
    assert seen == [pytest.approx(1.0), pytest.approx(11.5), pytest.approx(12.5)]


def test_a_timeout_that_was_left_while_frozen_does_not_fire_afterwards() -> None:
    async def world() -> bool:
        process, news = Process("frozen"), asyncio.Event()

        async def waits() -> bool:
            try:
                async with asyncio.timeout(2.0):
                    await news.wait()
            except TimeoutError:
                return False
            await asyncio.sleep(0)
            return True

        task = process.spawn(waits())
        await asyncio.sleep(1.0)
        process.paused = True
        news.set()  # its wake-up is queued before its timeout is
        await asyncio.sleep(5.0)
        process.resume()
        return bool(await task)

    assert run(world()) is True


def test_work_for_a_thread_runs_here_a_moment_later() -> None:
    async def world() -> tuple[int, float]:
        result = await asyncio.to_thread(lambda: 7)
        return result, asyncio.get_running_loop().time()

    assert run(world()) == (7, pytest.approx(THREAD_S))


def test_a_simulation_in_which_nothing_can_happen_any_more_says_so() -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    loop = VirtualLoop()
    with pytest.raises(Stuck):
        loop.run_until_complete(waits())
    loop.close()
