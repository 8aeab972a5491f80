"""What a site's time went into: each figure is a sum of figures that were written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eventlog.codec import decode
from eventlog.events import VersionApplied
from leases.goodput import table
from leases.peaks import flops_per_token, peak_of
from tests.leases.stories import records
from tests.support.scenario import Scenario, name

HOUR_NS = 3600 * 10**9


def told(run: Scenario, hours: dict[int, float]) -> dict[str, Any]:
    """The goodput of a log whose events from these sequences on stand at these hours."""
    found, hour = [], 0.0
    for record in records(run):
        hour = hours.get(record.sequence, hour)
        moved = replace(record, time_ns=int(hour * HOUR_NS))
        found.append((decode(moved), run.why.get(record.sequence, "")))
    return table(found).as_json()


def applied(version: int, **seconds: float) -> VersionApplied:
    fields = {"version": version, "parameters_digest": name(f"version {version}")}
    stall_s = sum(seconds.values())
    return VersionApplied.model_validate(
        {**fields, "source": "update", "seconds": seconds, "stall_s": stall_s}
    )


def story() -> tuple[Scenario, dict[int, float]]:
    """alpha, on four A100, comes at 0 h, holds a version at 1 h; merges one block, has one refused,
    dies with one at 3 h; beta has delivered one that nothing is decided about."""
    run, at = Scenario({"epochs": 9}), {}
    hardware = {"accelerator": "NVIDIA A100-SXM4-80GB", "ranks": "4 (fsdp)"}
    join = run.join("alpha", hardware=hardware)
    assert run.admit("alpha", join) == ""
    at[run.last[0]] = 0.0
    assert run.says("alpha", applied(0, idle=9.0)) == ""
    at[run.last[0]] = 1.0
    run.arrive("beta")
    assert run.open(alpha=3, beta=1) == ""
    run.work("alpha", 0)
    run.commit()
    assert run.says("alpha", applied(1, blocked=2.0, idle=3.0, evaluate=4.0)) == ""
    assert run.open(alpha=3, beta=1) == ""
    assert run.refuse(run.work("alpha", 1), "alpha") == ""
    assert run.grant("alpha", 2) == ""
    run.train("alpha", 2)
    run.work("beta", 3)
    assert run.depart("alpha") == ""
    at[run.last[0]] = 3.0
    return run, at


def test_a_sites_time_is_training_that_counted_training_that_was_lost_and_standing_still() -> None:
    found = told(*story())
    alpha, beta = found["sites"]
    assert (alpha["wall_s"], alpha["num_devices"], alpha["device_hours"]) == (10800.0, 4, 12.0)
    assert (alpha["tokens"], alpha["tokens_lost"], alpha["tokens_undecided"]) == (32, 64, 0)
    lost = {key: share * 10800 for key, share in alpha["lost_share"].items()}
    expected = {"lost_work": 2, "blocked": 2, "idle": 3, "evaluate": 4, "starting": 3600}
    assert lost == pytest.approx({**expected, "rest": 10800 - 3600 - 12})
    assert alpha["training_share"] == pytest.approx(1 / 10800)
    assert (beta["tokens"], beta["tokens_undecided"]) == (0, 32)
    assert found["tokens"] == 32 and found["device_hours"] == pytest.approx(12 + 2)


def test_utilisation_is_of_the_peak_of_known_devices_and_of_no_others() -> None:
    found = told(*story())
    alpha, beta = found["sites"]
    assert alpha["mfu"] == pytest.approx(32 * 60 / (4 * 10800 * 312e12))  # 10 parameters, 6N
    assert beta["mfu"] is None and found["mfu"] is None
    assert peak_of("NVIDIA H100 PCIe") == 756e12 and peak_of("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_of("AMD Instinct MI250X") == 191.5e12 and peak_of("NVIDIA A10G") is None
    assert peak_of("Intel(R) Xeon(R) Gold 6230") is None


def test_a_token_costs_what_the_palm_paper_counts() -> None:
    """PaLM 540B, appendix B: L=118, H=48, Q=256, T=2048."""
    table_ = {"num_hidden_layers": 118, "num_attention_heads": 48, "head_dim": 256}
    flops = flops_per_token(540_350_000_000, table_, 2048)
    assert flops == 6 * 540_350_000_000 + 12 * 118 * 48 * 256 * 2048
    assert flops_per_token(10, {}, 8) == 60
