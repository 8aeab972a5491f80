"""The guard against deltas that are too large (P8, ADR-0009)."""

from __future__ import annotations

import random

import pytest

from eventlog.config import Limits
from leases.outliers import MAX_HISTORY, Guard, claim_holds
from leases.rows import Delta
from tests.support.scenario import Scenario, config

FACTOR = Limits().outlier_factor


def a_run(**sections: object) -> Scenario:
    """A run without warm-up at a constant rate, so that a delta's effort is its tokens."""
    inner = {"steps": 6, "batch_sequences": 2, "warmup": 0.0, "final_lr": 1.0}
    return Scenario(num_sequences=4000, **{"target": {"rounds": 1000}, "inner": inner, **sections})


def delta(seq: int, site: str, tokens: int = 96, base: int = 0) -> Delta:
    return Delta(
        token=(seq, f"d{seq}"), incarnation=seq, site=site, state="undecided", base_version=base,
        blob="b", codec="fp32", norm=0.0, num_blocks=1, tokens=tokens, last=False, weight=None,
        reason="", ticks=0, num_bytes=1,
    )  # fmt: skip


def refused(run: Scenario, *sizes: tuple[str, float, int]) -> list[str]:
    """Which sites' deltas of (site, norm, tokens) in one cut are outliers."""
    deltas = [delta(n, site, tokens) for n, (site, _, tokens) in enumerate(sizes, 1)]
    norms = {n: norm for n, (_, norm, _) in enumerate(sizes, 1)}
    return [one.site for one, _ in Guard(run.view, deltas, norms).outliers()]


def merged(run: Scenario, num: int, norm: float = 1.0, first: int = 0) -> None:
    """So many rounds, in each of which alpha's delta of that norm is merged."""
    if "alpha" not in run.sites:
        run.arrive("alpha")
    for block in range(first, first + num):
        assert run.open(alpha=1) == ""
        assert run.grant("alpha", block) == ""
        run.train("alpha", block)
        run.deliver("alpha", block, norm=norm)
        run.commit()


def test_a_first_lonely_delta_is_never_an_outlier() -> None:
    assert refused(a_run(), ("a", 1e6, 96)) == []


def test_one_of_three_in_the_first_round_is_refused_beside_the_others() -> None:
    run = a_run()
    assert refused(run, ("a", 1.0, 96), ("b", 1.3, 96), ("c", 1000.0, 96)) == ["c"]
    assert refused(run, ("a", 1.0, 96), ("b", 1.3, 96), ("c", 10.0, 96)) == []
    assert refused(run, ("a", 1.0, 96), ("b", 1000.0, 96)) == ["b"]


def test_a_lonely_site_is_held_against_what_was_merged() -> None:
    run = a_run()
    merged(run, 3)
    assert refused(run, ("a", 1000.0, 32)) == ["a"]
    assert refused(run, ("a", 0.99 * FACTOR, 32)) == []
    assert refused(run, ("a", 1.01 * FACTOR, 32)) == ["a"]


def test_two_merged_deltas_are_too_few_to_judge_by() -> None:
    run = a_run()
    merged(run, 2)
    assert refused(run, ("a", 1000.0, 32)) == []


def test_what_was_merged_long_ago_counts_no_more() -> None:
    run = a_run()
    merged(run, 3, norm=1e-3)
    merged(run, MAX_HISTORY, norm=1.0, first=3)
    assert refused(run, ("a", 10.0, 32)) == []


def test_where_the_deltas_of_all_sites_grow_together_none_is_odd() -> None:
    run = a_run()
    merged(run, 3, norm=0.01)
    assert refused(run, ("a", 1.0, 32), ("b", 1.1, 32)) == []
    assert refused(run, ("a", 1.0, 32), ("b", 1.1, 32), ("c", 1000.0, 32)) == ["c"]


def test_one_that_is_as_odd_does_not_outvote_history_and_a_healthy_site() -> None:
    run = a_run()
    merged(run, 3)
    assert refused(run, ("a", 1.0, 32), ("b", 1000.0, 32), ("c", 1100.0, 32)) == ["b", "c"]


def test_more_tokens_may_go_further_and_few_tokens_are_no_fault() -> None:
    run = a_run()
    partial, full = ("a", 1.0, 32), ("b", 50.0, 3200)
    assert refused(run, partial, full) == []  # a hundred times the tokens, fifty times as far
    assert refused(run, partial, ("b", 100 * FACTOR + 1, 3200)) == ["b"]
    assert refused(run, ("a", 1e-6, 32), ("b", 1.0, 3200), ("c", 1.0, 3200)) == []


def test_a_rising_learning_rate_is_no_explosion() -> None:
    """The second round of a warm-up trains with twenty sites at some forty times the rate."""
    inner = {"steps": 6, "batch_sequences": 2, "warmup": 1.0}
    run = a_run(inner=inner, target={"tokens": 32_000})
    run.arrive("alpha")
    for block in range(3):
        assert run.open(alpha=1) == ""
        assert run.grant("alpha", block) == ""
        run.train("alpha", block)
        run.deliver("alpha", block, norm=1e-3 * (2 * block + 1))
        run.commit()
    late = delta(99, "a", 32, base=3)
    assert Guard(run.view, [late], {99: 7e-3}).bound(late).norm == pytest.approx(
        FACTOR * 7e-3, rel=1e-6
    )


def test_deltas_of_zeros_are_nothing_to_compare_with() -> None:
    run = a_run()
    merged(run, 3, norm=0.0)
    assert refused(run, ("a", 0.0, 32), ("b", 5.0, 32)) == []
    assert refused(run, ("a", float("inf"), 32), ("b", 5.0, 32)) == ["a"]


def test_two_deltas_of_one_site_do_not_vouch_for_each_other() -> None:
    run = a_run()
    merged(run, 3)
    assert refused(run, ("a", 1000.0, 32), ("a", 1000.0, 32)) == ["a", "a"]


def test_a_factor_of_zero_switches_the_guard_off() -> None:
    run = a_run(limits={"outlier_factor": 0})
    merged(run, 3)
    assert refused(run, ("a", 1e6, 32), ("b", 1.0, 32)) == []


@pytest.mark.parametrize("factor", [-1.0, 0.5, 1.99, float("nan"), float("inf")])
def test_a_factor_that_refuses_healthy_deltas_is_no_configuration(factor: float) -> None:
    with pytest.raises(ValueError, match="outlier_factor"):
        config(limits={"outlier_factor": factor})


@pytest.mark.parametrize("seed", range(20))
def test_the_short_way_finds_what_the_bounds_say(seed: int) -> None:
    chance, run = random.Random(seed), a_run()
    if seed % 2:
        merged(run, 4, norm=chance.choice([0.01, 1.0, 30.0]))
    num = chance.randint(1, 40)
    deltas = [delta(n, f"s{chance.randrange(8)}", chance.randint(1, 500)) for n in range(1, num)]
    norms = {one.token[0]: 10 ** chance.uniform(-3, 3) for one in deltas}
    guard = Guard(run.view, deltas, norms)
    limits = {one.token[0]: guard.bound(one) for one in deltas}
    over = [seq for seq, bound in limits.items() if bound and norms[seq] > bound.norm]
    assert [one.token[0] for one, _ in guard.outliers()] == over


def test_the_reason_names_the_key_and_both_sizes() -> None:
    run = a_run()
    merged(run, 3)
    ((_, reason),) = Guard(run.view, [delta(1, "a", 32)], {1: 1000.0}).outliers()
    for word in ("1000", "merged last", "limits.outlier_factor", f"{FACTOR:g} times"):
        assert word in reason


def test_a_claimed_norm_may_differ_by_rounding_only() -> None:
    assert claim_holds(1.0, 1.003) and claim_holds(0.0, 0.0)
    assert not claim_holds(1.0, 1.03) and not claim_holds(float("inf"), 1.0)
    assert not claim_holds(1.0, 0.0)
