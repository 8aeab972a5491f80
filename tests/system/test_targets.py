"""A run with two sites ends by itself at its target, of whichever kind, and the audit holds."""

from __future__ import annotations

import pytest

from eventlog.events import EpochClosed, RoundCommitted, RunFinished
from tests.support.fleet import Fleet
from tests.support.watched import History


async def _to_the_end(fleet: Fleet) -> History:
    """Two sites train until the run has finished, and all processes leave it with 0."""
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(lambda log: log.view.run().state == "finished", "the target", 60)
    for name in ("alpha", "beta", "coordinator"):
        assert await fleet.ended(name) == 0, fleet.said()
    return fleet.history


async def _shown_as_finished(fleet: Fleet) -> None:
    listed = await fleet.atoll("run", "list")
    assert [line for line in listed.out.splitlines() if line.split()[:2] == [fleet.run, "finished"]]
    shown = (await fleet.atoll("run", "show", fleet.run, "--json")).json()
    (_, end), run = fleet.history.of(RunFinished)[0], fleet.history.view.run()
    assert (shown["state"], shown["version"], shown["tokens"]) == (
        "finished",
        end.version,
        sum(commit.tokens for _, commit in fleet.history.of(RoundCommitted)),
    )
    assert run.live == 0 or not fleet.processes


@pytest.mark.settings("target={tokens=20_000}")
async def test_a_target_of_tokens_is_met_to_the_block_and_the_model_recomputed(
    fleet: Fleet,
) -> None:
    log = await _to_the_end(fleet)
    at, end = log.of(RunFinished)[0]
    assert end.outcome == "target"
    assert 20_000 <= end.tokens < 20_000 + 1024  # a block holds 32 sequences of 32 tokens
    await _shown_as_finished(fleet)
    found = await fleet.audit("--deep")
    assert found["model_digest"] == end.parameters_digest
    assert all(void["sequence"] > at for void in found["void"])  # said while the end came


@pytest.mark.own_interpreters
@pytest.mark.settings("target={rounds=3}")
async def test_a_target_of_rounds_is_met_exactly(fleet: Fleet) -> None:
    log = await _to_the_end(fleet)
    assert [commit.version for _, commit in log.of(RoundCommitted)] == [1, 2, 3]
    assert {cut.site for _, cut in log.merged()} == {"alpha", "beta"}
    await _shown_as_finished(fleet)
    await fleet.audit()


@pytest.mark.settings("target={epochs=2}", "data.block_sequences=64")
async def test_a_target_of_epochs_merges_every_block_of_each_once(fleet: Fleet) -> None:
    log = await _to_the_end(fleet)
    closed = [epoch for _, epoch in log.of(EpochClosed)]
    shape = log.view.index().shape
    assert [epoch.epoch for epoch in closed] == [0, 1]
    for epoch in closed:
        assert epoch.tokens == shape.num_sequences * shape.sequence_tokens
    found = await fleet.audit()
    for epoch in found["epochs"]:
        assert epoch["merged"] == epoch["blocks"] == closed[0].blocks
        assert epoch["duplicated"] == epoch["lost"] == epoch["open"] == 0
