"""Caps as people write them."""

from __future__ import annotations

import click
import pytest

from ops.rates import bytes_per_s, pace_of


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50MB", 50e6),
        ("400kB/s", 400e3),
        ("1.5 GB", 1.5e9),
        ("20MiB/s", 20 * 1024**2),
        ("100Mbit", 12.5e6),
        ("10000B", 10e3),
    ],
)
def test_a_rate_in_bytes_or_bits(text: str, rate: float) -> None:
    assert bytes_per_s(text) == rate
    pace = pace_of(rate)
    assert pace is not None and pace.bytes_per_s == rate


@pytest.mark.parametrize("text", ["50", "MB", "-1MB", "50 apples", "9kB", "0MB", "1e9B"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        bytes_per_s(text)
