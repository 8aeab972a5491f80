"""The cap on bytes per second, and the window that fits itself to a link."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.pace import LATE_S, SOON_S, Pace, Window


@given(
    st.floats(1e3, 1e9),
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 4 << 20)), min_size=1, max_size=30),
)
def test_no_stretch_of_time_sees_more_than_its_bytes(
    rate: float, wishes: list[tuple[float, int]]
) -> None:
    now, moved = 0.0, []
    pace = Pace(rate, lambda: now)
    for wait_s, num_bytes in wishes:
        now += wait_s
        moved.append((now + pace.delay_s(num_bytes), num_bytes))
    for first in range(len(moved)):
        for last in range(first + 1, len(moved)):
            between = sum(num for _, num in moved[first + 1 : last + 1])
            stretch_s = moved[last][0] - moved[first][0]
            assert between <= rate * stretch_s * (1 + 1e-6) + 1e-3


def test_who_was_idle_has_saved_nothing_up() -> None:
    now = 0.0
    pace = Pace(100.0, lambda: now)
    assert pace.delay_s(50) == 0.5
    now = 1000.0
    assert [pace.delay_s(100), pace.delay_s(100)] == [1.0, 2.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_cap_that_lets_nothing_through_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="nothing through"):
        Pace(rate)


async def test_a_window_doubles_in_a_round_trip_and_halves_when_something_is_late() -> None:
    window = Window(16)
    sizes = [window.size]
    while window.size < 16:
        for _ in range(window.size):
            window.answered(SOON_S / 2)
        sizes.append(window.size)
    assert sizes == [2, 4, 8, 16]
    window.answered((SOON_S + LATE_S) / 2)
    assert window.size == 16
    window.answered(LATE_S + 1)
    window.shrink()
    assert window.size == 4
    for _ in range(9):
        window.shrink()
    assert window.size == 1


async def test_no_more_are_on_the_way_than_the_window_says_and_nobody_is_forgotten() -> None:
    window, most, done = Window(4), 0, []
    window.size = 4

    async def work(number: int) -> None:
        nonlocal most
        async with window.slot():
            most = max(most, window.num_busy)
            await asyncio.sleep(0)
            if number % 5 == 0:
                window.shrink()
            window.answered(0.0)
        done.append(number)

    tasks = [asyncio.ensure_future(work(number)) for number in range(50)]
    tasks[20].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert most == 4
    assert sorted(done) == [number for number in range(50) if number != 20]
    assert window.num_busy == 0
