"""Numbers, durations and instants in every form that Slurm 17 to 26 prints them."""

from __future__ import annotations

import pytest

from ops.placement.slurm import values


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("1-4", 1), ("2K", 2048), ("1.50K", 1536), (" 8 ", 8), ("2K-4K", 2048), ("0", 0)],
)
def test_a_number_of_nodes(text: str, number: int) -> None:
    assert values.count(text) == number


@pytest.mark.parametrize("text", ["", "N/A", "many", "(null)", "-1", "1.2.3"])
def test_no_number_is_not_nought(text: str) -> None:
    assert values.count(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),  # minutes
        ("30:00", 1800),
        ("0:45", 45),
        ("2:00:00", 7200),
        ("1-00:00:00", 86_400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("00:00:00", 0),
        ("1-00:00:00.123", 86_400),  # sacct's elapsed time of a step
    ],
)
def test_a_duration(text: str, seconds: int) -> None:
    assert values.duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "UNLIMITED", "INVALID", "NOT_SET", "Partition_Limit", "N/A", "soon", "infinite"]
)
def test_no_duration_is_not_nought(text: str) -> None:
    assert values.duration_s(text) is None


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("1795961711", 1_795_961_711),
        ("2026-11-29T14:15:11", 1_795_961_711),  # of TZ=UTC
        ("2026-11-29T09:15:11-0500", 1_795_961_711),
        ("2026-11-29T14:15:11+00:00", 1_795_961_711),
    ],
)
def test_an_instant(text: str, epoch: int) -> None:
    assert values.instant(text) == epoch


@pytest.mark.parametrize(
    "text", ["", "Unknown", "N/A", "NONE", "(null)", "Tue 14:15", "14:15:11", "0", "T+30.0min"]
)
def test_no_instant_is_not_nought_and_no_day_is_guessed(text: str) -> None:
    assert values.instant(text) is None


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [(60, "00:01:00"), (61, "00:02:00"), (7200, "02:00:00"), (360000, "100:00:00")],
)
def test_a_limit_is_whole_minutes_and_not_shorter(seconds: int, limit: str) -> None:
    assert values.as_limit(seconds) == limit
    assert values.duration_s(limit) == -(-seconds // 60) * 60


def test_an_instant_comes_back() -> None:
    assert values.instant(values.as_utc(1_795_961_711)) == 1_795_961_711
