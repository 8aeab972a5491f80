"""`atoll run fork`: what it writes of where a run comes from."""

from __future__ import annotations

import asyncio

import pytest

from ops.forking import origin_at
from tests.leases.test_evaluators import committed, story
from tests.ops.test_report_origin import PARENT, forked
from tests.support.scenario import name


@pytest.mark.parametrize(("version", "own"), [(0, 0), (2, 64), (3, 96)])
def test_a_fork_of_a_fork_has_the_tokens_of_all_before_it(version: int, own: int) -> None:
    scenario = forked()
    found = asyncio.run(origin_at(scenario.view, scenario.log, version))
    assert found.tokens == PARENT.tokens + own
    assert (found.version, found.parameters_digest) == (version, name(f"version {version}"))


def test_a_fork_of_a_first_run_has_that_runs_tokens() -> None:
    scenario = story()
    committed(scenario, 2)
    assert asyncio.run(origin_at(scenario.view, scenario.log, 2)).tokens == 64
