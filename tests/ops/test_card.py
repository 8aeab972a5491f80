"""The model card: of a fork it says where the model comes from, and counts all that it has seen."""

from __future__ import annotations

from pathlib import Path

from leases.audit import Audit
from ops.card import facts_of, model_card
from sitehub.build import Options, build
from sitehub.corpus import Corpus
from sitehub.sources import folder
from tests.leases.stories import records
from tests.leases.test_evaluators import committed, story
from tests.ops.test_report_origin import PARENT, forked
from tests.sitehub.support import write_text
from tests.support.scenario import RUN, Scenario


def card(scenario: Scenario, version: int, tmp_path: Path) -> str:
    corpus: Corpus = build(
        [folder(write_text(tmp_path / "text"))], tmp_path / "data", Options(16, 300)
    )
    audit = Audit(RUN)
    try:
        audit.feed(records(scenario))
        return model_card(facts_of(audit.view, version, audit.result(), corpus))
    finally:
        audit.close()


def test_a_fork_says_where_it_comes_from_and_counts_its_parents_tokens(tmp_path: Path) -> None:
    said = card(forked(), 2, tmp_path)
    digest = PARENT.parameters_digest
    assert f"| forked from | before, version 40 (parameters `{digest}`) |" in said
    assert (
        "| tokens trained | 1,344, 64 of them in this run; an epoch of its data has 176 |" in said
    )
    assert "found no violation" in said


def test_a_run_that_is_no_fork_has_its_own_tokens(tmp_path: Path) -> None:
    scenario = story()
    committed(scenario, 3)
    said = card(scenario, 3, tmp_path)
    assert "| tokens trained | 96; an epoch of its data has 176 |" in said
    assert "forked from" not in said
