"""`atoll audit --anchor`: whether a log is the one that was published, and what nothing attests."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.events import COORDINATOR, EvaluationCompleted
from eventlog.signatures import Anchor
from ops.cli import run
from tests.leases.stories import records
from tests.leases.test_signing import KEYS
from tests.leases.test_signing import finished as signed_to_its_end
from tests.ops.test_audit_command import audited, exported


def test_it_says_whether_the_log_is_the_published_one_and_what_nothing_attests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = signed_to_its_end()
    end = records(scenario)[-1]
    anchor = Anchor.of("tests", end, KEYS[COORDINATOR].public)
    fields = {"version": 1, "num_tokens": 8, "loss": 1.0, "seconds": 0.5, "perplexity": 2.7}
    measured = EvaluationCompleted.model_validate({**fields, "bits_per_byte": 1.0})
    assert scenario.operator(measured) == ""
    file = exported(scenario, tmp_path)
    published = f"It is the log that was published, through {anchor.through}."

    (tmp_path / "anchor").write_text(anchor.text())
    by_hand = f"tests:{anchor.through}:{anchor.log_digest}"
    for given in (anchor.text(), f" {anchor.text()}\n", str(tmp_path / "anchor"), by_hand):
        assert run(["audit", str(file), "--anchor", given]) == 0
        said = capsys.readouterr().out
        assert published in said and "by operator; nothing attests that." in said
    assert audited(capsys, str(file), "--anchor", by_hand, code=0)["published"] == anchor.through
    assert audited(capsys, str(file), code=0)["published"] is None

    other = f"tests:{anchor.through}:{'0' * 64}"
    assert run(["audit", str(file), "--anchor", other]) == 1
    assert "that was published" not in capsys.readouterr().out
    assert audited(capsys, str(file), "--anchor", other, code=1)["published"] is None
    assert run(["audit", str(file), "--anchor", "nosuch"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "nosuch: no such file" in line
