"""A run that comes apart is paused by the coordinator, with the reason; noise pauses none."""

from __future__ import annotations

import math
import random

import pytest

from eventlog.events import EvaluationCompleted, RunPaused, RunResumed
from eventlog.steering import Divergence
from leases.divergence import Diverged, diverged, no_number, pausing, spike
from outer.facts import Facts
from outer.rounds import decide
from outer.waiting import waiting
from tests.leases.stories import alone, assert_clean, audited
from tests.support.scenario import Scenario

RULE = Divergence()


def numbered(*losses: float) -> list[tuple[int, float]]:
    return list(enumerate(losses, start=1))


def falling(num: int, seed: int = 0, noise: float = 0.05) -> list[float]:
    """A usual curve: 10 nats falling towards 3, with noise on every version."""
    draw = random.Random(seed)
    return [3 + 7 / (1 + 0.3 * step) + draw.gauss(0, noise) for step in range(num)]


def test_a_loss_that_stays_high_for_as_many_versions_as_patience_says_is_a_spike() -> None:
    usual = falling(30)
    assert spike(numbered(*usual), RULE) is None
    for num, is_spike in ((1, False), (2, False), (3, True)):
        found = spike(numbered(*usual, *[8.0] * num), RULE)
        assert (found is not None) is is_spike, num
    assert found is not None
    assert found.version == 29, "the first high loss, 31, speaks against the version it began on"
    assert "versions 31 to 33" in found.why and "8.000" in found.why


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.01, 0.2, 1.0])
def test_noise_of_any_size_is_no_spike_and_one_outlier_neither(seed: int, noise: float) -> None:
    losses = falling(200, seed, noise)
    losses[50] = losses[120] = math.inf
    for end in range(1, len(losses) + 1):
        assert spike(numbered(*losses[:end]), RULE) is None, end


def test_nothing_is_unusual_before_enough_is_known() -> None:
    assert spike(numbered(3.0, 3.0, 3.0, 9.0, 9.0, 9.0), RULE) is None
    why = (
        "a loss spike: versions 5 to 7 have a training loss of 9.000, 9.000, 9.000 nats; the 4 "
        "versions before had 3.000 ± 0.000, and 3.500 is the limit"
    )
    assert spike(numbered(3.0, 3.0, 3.0, 3.0, 9.0, 9.0, 9.0), RULE) == Diverged(3, why)


def test_losses_that_are_no_numbers_are_a_spike_too() -> None:
    found = spike(numbered(*falling(10), *[math.inf] * 3), RULE)
    assert found is not None and found.version == 9


def test_an_evaluation_that_is_no_number_needs_no_patience() -> None:
    assert no_number([(2, 3.0), (4, 2.9)]) is None
    found = no_number([(2, 3.0), (4, 2.9), (6, math.inf), (8, 2.8)])
    assert found is not None and (found.version, "version 6" in found.why) == (4, True)


# -- in a run -------------------------------------------------------------------------------------


def trained(run: Scenario, *losses: float) -> None:
    """A version for each loss."""
    for loss in losses:
        version = run.view.run().version
        epoch, block = divmod(version, 6)
        assert run.open(a=1) == ""
        assert run.grant("a", block, epoch=epoch) == ""
        assert run.says("a", run.starting(block, epoch)) == ""
        assert run.says("a", run.completing(block, epoch, loss=loss)) == ""
        run.deliver("a", block, epoch=epoch)
        run.commit()
        assert run.apply("a", version + 1) == ""


def story(*losses: float, **rule: object) -> Scenario:
    run = Scenario({"epochs": 9}, divergence=rule)
    run.arrive("a")
    trained(run, *losses)
    return run


def test_the_coordinator_pauses_a_run_that_diverges_and_the_audit_agrees() -> None:
    run = story(*[3.0] * 6, 9.0, 9.0)
    assert pausing(run.view) == []
    trained(run, 9.0)
    (pause,) = pausing(run.view)
    assert isinstance(pause, RunPaused) and "Version 5 is the newest" in pause.reason
    assert run.decide(pause) == "" and run.view.run().state == "paused"
    (wait,) = [one for one in waiting(run.view) if one.remedy]
    assert (wait.remedy, wait.how) == ("fork", "--version 5 --set inner.lr=0.0005")
    assert audited(run).ok


def test_the_operator_may_go_on_and_only_what_comes_then_counts() -> None:
    run = story(*[3.0] * 6, 9.0, 9.0, 9.0)
    assert run.decide(*pausing(run.view)) == ""
    assert run.operator(RunResumed(reason="it is meant to be so")) == ""
    assert diverged(run.view) is None
    trained(run, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 20.0, 20.0, 20.0)
    found = diverged(run.view)
    assert found is not None and found.version == 14


def test_the_rule_can_be_switched_off() -> None:
    run = story(*[3.0] * 6, 9.0, 9.0, 9.0, action="none")
    assert pausing(run.view) == [] and diverged(run.view) is None


def test_a_pause_that_nothing_asks_for_is_found() -> None:
    run = story(*[3.0] * 3)
    assert run.decide(RunPaused(reason="because")) == ""
    assert alone(run)[:2] == ("P2", "R2")


def test_a_run_that_goes_on_though_it_diverged_is_found() -> None:
    run = story(*[3.0] * 6, 9.0, 9.0, 9.0)
    for _ in range(40):
        run.tick()
        assert run.apply("a", run.view.run().version) == ""
    assert any("goes on with a loss spike" in one.what for one in audited(run).violations)


def test_an_evaluation_without_a_number_pauses_at_once() -> None:
    run = story(3.0, 3.0)
    numbers = dict.fromkeys(("loss", "perplexity", "bits_per_byte"), math.nan)
    assert run.says("a", EvaluationCompleted(version=2, num_tokens=8, **numbers)) == ""
    (pause,) = decide(run.view, Facts())
    assert isinstance(pause, RunPaused) and "not a finite number" in pause.reason
    assert run.decide(pause) == ""
    assert_clean(run)
