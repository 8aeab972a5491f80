"""A run that evaluates itself; one whose loss explodes, which pauses, is forked, and goes on."""

from __future__ import annotations

import json

import pytest

from eventlog.events import EvaluationCompleted, RunPaused, VersionApplied
from leases.forks import lineage
from tests.support.fleet import Fleet
from tests.support.watched import History


@pytest.mark.settings(
    "evaluation.every_rounds=1", "evaluation.max_tokens=512", "inner.steps=16", "rounds.grace_s=30"
)
async def test_live_sites_evaluate_versions_in_turn_and_the_time_is_told(fleet: Fleet) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    fleet.site("beta")
    await fleet.until(
        lambda log: {f"site.{one}" for one in ("alpha", "beta")} == set(_measured_by(log)),
        "an evaluation by each",
        90,
    )
    said = [one for _, one in fleet.history.of(EvaluationCompleted)]
    assert all(one.seconds > 0 and one.loss > 0 for one in said)
    again = await fleet.atoll(
        "eval", fleet.run, "--data", str(fleet.data), "--version", str(said[0].version),
        "--max-tokens", "512", "--no-record", "--json",
    )  # fmt: skip
    assert again.json()["loss"] == pytest.approx(said[0].loss, rel=1e-5)
    await fleet.until(
        lambda log: any("evaluate" in one.seconds for _, one in log.of(VersionApplied)),
        "the time that it took",
    )
    await fleet.finish()
    found = await fleet.audit("--explain")
    assert len(found["evaluations"]) == len(fleet.history.of(EvaluationCompleted))
    assert sum(one["evaluate"] for one in found["overheads"]) > 0


@pytest.mark.settings(
    "inner.steps=8", "inner.lr=3e-3", "inner.warmup=0", "divergence.window=4",
    "divergence.patience=1", "limits.outlier_factor=0", "outer.lr=200", "outer.momentum=0",
    "outer.warmup=0.001", "target.rounds=100000",
)  # fmt: skip
async def test_a_run_whose_loss_explodes_pauses_is_forked_before_it_and_goes_on(
    fleet: Fleet,
) -> None:
    """The outer rate rises by 2 a round, up to an absurd one: what is healthy at first is thrown
    further and further, until a loss leaves what is usual."""
    fleet.coordinate()
    fleet.site("alpha")
    await fleet.until(lambda log: log.view.run().state == "paused", "its pause", 90)
    ((_, pause),) = fleet.history.of(RunPaused, "coordinator")
    assert "a loss spike" in pause.reason and "fork the run" in pause.reason
    shown = (await fleet.atoll("run", "show", fleet.run, "--json")).json()
    assert shown["diverged"] in pause.reason
    watched = (await fleet.atoll("watch", fleet.run, "--once", "--json")).json()
    assert any(shown["next"] in line for line in watched["next"]), watched["next"]
    command = shown["next"].split()
    assert command[:4] == ["atoll", "run", "fork", fleet.run]
    version = int(command[command.index("--version") + 1])
    forked = await fleet.atoll(*command[1:], "--set", "outer.lr=0.7", "--set", "outer.warmup=0")
    assert forked.code == 0, forked
    child = Fleet(
        fleet.root, fleet.url, fleet.data, fleet.config, forked.out.strip(), fleet.preload,
        fleet.forks,
    )  # fmt: skip
    try:
        async with History.watched(fleet.url, child.run) as child.history:
            child.coordinate("coordinator-of-the-fork")
            child.site("beta")
            await child.until(lambda log: log.view.run().version >= 6, "its own versions", 90)
            log = child.history
            assert log.view.run().state == "running"
            losses = [row.loss for row in log.view.versions()]
            assert max(losses[:6]) < _spiked(fleet.history), "it has gone on before the spike"
            await child.finish()
            come, initial = lineage(log.view), log.view.run().initial_digest
        found = await child.audit("--parent", fleet.run)
        assert found["lineage"]["run"] == fleet.run and found["lineage"]["version"] == version
        assert found["parent"] == {"log": fleet.run, "ok": True, "what": ""}
        told = (await child.atoll("report", child.run, "--json")).json()
        assert told["lineage"] == found["lineage"] and told["audit"]["ok"]
        assert come is not None
        row = fleet.history.view.version(version)
        digest = row.parameters_digest if row else fleet.history.view.run().initial_digest
        assert come.parameters_digest == initial == digest
        other = await child.atoll("audit", child.run, "--parent", child.run, "--json")
        assert other.code == 1 and "it was forked from" in json.loads(other.out)["parent"]["what"]
    finally:
        child.close()
    await fleet.finish()
    await fleet.audit("--deep")


def _measured_by(log: History) -> list[str]:
    return [row[0] for row in log.view.ask("SELECT source FROM evaluations")]


def _spiked(log: History) -> float:
    """The loss that paused the run."""
    return log.view.versions()[-1].loss or 0.0
