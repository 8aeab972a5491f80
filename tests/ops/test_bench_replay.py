"""`atoll bench replay --quick`: it runs through the command line and says what it promises to say.

How fast things are is not for a test to judge; that the figures belong together is, and that the
log they are measured on is one that a run could have written.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from eventlog.chain import Record
from eventlog.codec import decode
from leases.audit import Audit
from ops import exits
from ops.bench import replay
from ops.bench.history import num_void, paper, retold, run_of, simulated
from ops.cli import run


@pytest.fixture(scope="module")
def base() -> list[Record]:
    return simulated(paper(48))


def test_a_history_told_again_is_one_run_without_void_events(base: list[Record]) -> None:
    log = list(retold(base, 3 * len(base)))
    assert [record.sequence for record in log] == list(range(1, 3 * len(base) + 1))
    assert num_void(base) == num_void(log) == 0
    ids = Counter((entry.record.subject, entry.token[1]) for entry in map(decode, log))
    assert max(ids.values()) == 1
    times = [record.time_ns for record in log]
    assert times == sorted(times)
    audit = Audit(run_of(log))
    audit.feed(log)
    found = audit.result()
    audit.close()
    assert found.violations == []
    assert [epoch.closed for epoch in found.epochs[:2]] == [True, True]
    assert found.anchored_through > 2 * len(base)


def test_it_has_the_mix_of_events_that_was_simulated(base: list[Record]) -> None:
    def mix(log: list[Record]) -> dict[str, float]:
        kinds = Counter(decode(record).envelope.type for record in log)  # type: ignore[union-attr]
        return {kind: num / len(log) for kind, num in kinds.items()}

    told = mix(list(retold(base, 4 * len(base))))
    for kind, share in mix(base).items():
        assert told.get(kind, 0.0) == pytest.approx(share, abs=0.005)


def test_the_quick_benchmark_prints_the_documented_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench", "replay", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "replay"
    assert found["runs"] == 1
    measures = {one["what"]: one for one in found["measures"]}
    assert list(measures) == [
        "fold",
        "events per second",
        "eventsourcing",
        "audit memory",
        "audit linear",
    ]
    for one in measures.values():
        assert one["value"] > 0
        assert one["target"]
        assert one["met"] is None
        if one["against_value"] is not None:
            assert one["ratio"] == one["value"] / one["against_value"]
    assert measures["events per second"]["ratio"] is None
    assert measures["audit memory"]["against_value"] == 500
    assert measures["events per second"]["value"] == measures["eventsourcing"]["value"]


def test_a_missing_peer_is_named_with_its_extra(monkeypatch, capsys) -> None:
    monkeypatch.setattr(replay, "find_spec", lambda name: None)
    assert run(["bench", "replay", "--quick"]) == exits.INVALID
    assert "atoll[bench]" in capsys.readouterr().err
