"""The learning rate at a progress is a closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.inner import Inner
from leases.progress import inner_share, lr_share
from sitehub.schedule import learning_rate, step_progress


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (0.0, 0.0),
        (0.1, 0.5),
        (0.2, 1.0),
        (0.4, 0.1 + 0.9 * (2 + 2**0.5) / 4),  # cos(π/4) = √2/2
        (0.6, 0.55),
        (1.0, 0.1),
        (-1.0, 0.0),
        (2.0, 0.1),
    ],
)
def test_warm_up_then_cosine(progress: float, share: float) -> None:
    assert lr_share(progress, 0.2, 0.1) == pytest.approx(share)


def test_without_warm_up_the_peak_is_first() -> None:
    assert lr_share(0.0, 0.0, 0.1) == 1.0
    assert lr_share(1.0, 1.0, 0.1) == 1.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_share_stays_between_zero_and_one(progress: float, warmup: float, final: float) -> None:
    assert 0.0 <= lr_share(progress, warmup, final) <= 1.0 + 1e-12


def test_rate_is_the_share_of_the_peak() -> None:
    assert learning_rate(0.6, Inner(lr=2e-3, warmup=0.2, final_lr=0.1)) == pytest.approx(1.1e-3)


def test_steps_of_a_block_divide_its_progress_and_reach_its_end() -> None:
    reached = [step_progress(0.5, 0.7, step, 4) for step in range(4)]
    assert reached == pytest.approx([0.55, 0.6, 0.65, 0.7])


@pytest.mark.parametrize(
    ("progress", "share"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.6, 1.0), (0.8, 1.0), (0.9, 0.6), (1.0, 0.2), (2, 0.2)],
)
def test_warm_up_stable_decay(progress: float, share: float) -> None:
    inner = Inner(schedule="wsd", warmup=0.1, decay=0.2, final_lr=0.2)
    assert inner_share(progress, inner) == pytest.approx(share)


@pytest.mark.parametrize(("progress", "share"), [(0.05, 0.5), (0.1, 1.0), (0.5, 1.0), (1.0, 1.0)])
def test_constant_after_warm_up(progress: float, share: float) -> None:
    assert inner_share(progress, Inner(schedule="constant", warmup=0.1)) == pytest.approx(share)


def test_cosine_is_what_runs_had_before_there_was_a_choice() -> None:
    assert inner_share(0.37, Inner(warmup=0.2, final_lr=0.1)) == lr_share(0.37, 0.2, 0.1)
