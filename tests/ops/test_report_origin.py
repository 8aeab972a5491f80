"""`atoll report`: where a fork comes from, how far a run is from one machine, where time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eventlog.events import Lineage
from eventlog.projector import Projection
from leases.goodput import table
from leases.table import LeaseTable
from ops.cli import run
from tests.leases.test_evaluators import committed, measured, story
from tests.ops import watching
from tests.ops.test_audit_command import exported
from tests.ops.test_compared import RESULT
from tests.ops.test_report import audited, reported
from tests.support.scenario import RUN, Scenario, name

PARENT = Lineage(
    run="before", version=40, parameters_digest=name("version 0"), made=(812, "c-812"), tokens=1280
)


def forked() -> Scenario:
    """A fork that has made three versions of its own, 96 tokens; the newest has 2.25 nats."""
    scenario = Scenario({"epochs": 9}, lineage=PARENT)
    scenario.arrive("a")
    committed(scenario, 3)
    assert scenario.operator(measured(3, 2.25)) == ""
    return scenario


def result(folder: Path, **changes: Any) -> Path:
    """A file as `atoll baseline` writes it."""
    path = folder / "baseline.json"
    path.write_text(json.dumps({**RESULT, **changes}))
    return path


def beside(
    scenario: Scenario, folder: Path, capsys: pytest.CaptureFixture[str], **changes: Any
) -> tuple[str, dict[str, Any]]:
    """Page and facts of a run beside a baseline."""
    file = exported(scenario, folder)
    return reported(file, capsys, "--baseline", str(result(folder, **changes)))


def test_a_fork_shows_where_it_comes_from_on_the_page_and_in_the_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(forked(), tmp_path)
    page, facts = reported(file, capsys)
    assert facts["lineage"] == PARENT.model_dump(mode="json") == facts["audit"]["lineage"]
    assert '<b data-fact="lineage.version">40</b> of run <b data-fact="lineage.run">before<' in page
    assert "1,280 tokens into it" in page and f"atoll audit {RUN} --parent before" in page
    assert "with those before the fork" in page
    assert run(["audit", str(file)]) == 0
    said = capsys.readouterr().out
    digest = PARENT.parameters_digest[:12]
    assert f"version 40 of run before, 1,280 tokens into it (parameters {digest})" in said
    assert digest in page


def test_a_run_that_is_no_fork_says_nothing_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, facts = reported(exported(watching.at_work(), tmp_path), capsys)
    assert facts["lineage"] is None and facts["baseline"] is None
    assert "Forked" not in page and "before the fork" not in page and "one machine" not in page


def test_the_gap_to_one_machine_is_the_audits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = story()
    committed(scenario, 3)
    assert scenario.operator(measured(3, 2.25)) == ""
    page, facts = beside(scenario, tmp_path, capsys)
    again = audited(tmp_path / "run.atoll", capsys, "--baseline", str(result(tmp_path)))
    assert facts["baseline"]["compared"] == again["baseline"]
    assert facts["baseline"]["compared"]["gap_nats"] == 0.25
    assert facts["baseline"]["curve"] == RESULT["curve"]
    assert ">+0.2500<" in page and ">2.2500<" in page and ">2.0000<" in page
    assert page.count(">one machine<") >= 2  # in the legend of both drawings
    assert "Not like with like" not in page


def test_of_a_fork_the_tokens_of_its_parents_count_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, facts = beside(forked(), tmp_path, capsys, tokens=1376)
    compared = facts["baseline"]["compared"]
    assert compared["tokens"] == 1280 + 96 and compared["unlike"] == []
    page, facts = beside(forked(), tmp_path, capsys)
    assert "Not like with like: 1,376 tokens trained, not 96." in page


def test_what_was_not_measured_or_is_no_number_breaks_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none, inf = float("nan"), float("inf")
    broken = {"loss": none, "perplexity": inf, "curve": [[32, 4.0], [64, none]]}
    page, facts = beside(forked(), tmp_path, capsys, **broken)
    assert facts["baseline"]["loss"] is None and ">+nan<" in page
    unmeasured = watching.at_work()
    file = exported(unmeasured, tmp_path)
    found = str(result(tmp_path))
    assert run(["report", str(file), "-o", str(tmp_path / "x.html"), "--baseline", found]) == 0
    assert "No version was evaluated" in capsys.readouterr().err
    assert "so there is no gap to tell" in (tmp_path / "x.html").read_text()


def test_where_the_time_went_is_what_run_show_says_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = watching.at_work()
    page, facts = reported(watching.exported(tmp_path, scenario), capsys)
    with Projection(":memory:", [LeaseTable()], RUN) as projection:
        folded = projection.apply(watching.records(scenario))
        expected = table((entry, voids[0]) for entry, voids in folded).as_json()
    assert facts["goodput"] == json.loads(json.dumps(expected))
    assert [one["site"] for one in expected["sites"]] == ["alpha", "beta", "gamma"]
    assert sum(expected["lost_share"].values()) + expected["training_share"] <= 1 + 1e-9
    assert "What the time went into" in page and "device-hours" in page
