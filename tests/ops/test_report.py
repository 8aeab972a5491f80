"""`atoll report`: the page's numbers are the audit's and the log's; nothing in it is foreign."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.codec import decode
from eventlog.events import JobIntended, JobShape, RunPaused
from eventlog.writer import Stamp
from ops.cli import run
from ops.numbers import compact, size, thinned, time_unit
from ops.report import canvas, made, tables
from ops.report.page import embedded
from ops.spells import MAX_SPELLS, Spells
from tests.ops.recordings import demo_log, demo_records
from tests.ops.test_watch import HOSTILE
from tests.ops.watching import at_work, exported, over
from tests.support.scenario import Scenario

ROOT = Path(__file__).parent.parent.parent
ATOLL = [sys.executable, "-c", "from ops.cli import main; main()"]


def reported(
    file: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[str, dict[str, Any]]:
    """The page of a log, and the facts embedded in it."""
    page = file.with_suffix(".html")
    assert run(["report", str(file), "-o", str(page), *options]) == 0
    capsys.readouterr()
    text = page.read_text(encoding="utf-8")
    (embedded,) = re.findall(r'<script type="application/json" id="facts">(.*?)</script>', text)
    return text, json.loads(embedded)


def facts_of(file: Path) -> dict[str, Any]:
    """The facts alone."""
    return made.of_file(file, lambda *_: None)


def audited(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What `atoll audit` says of it."""
    run(["audit", str(file), "--json", "--explain", *options])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("scenario", [at_work, over])
def test_the_embedded_verdict_is_the_audits(tmp_path: Path, capsys, scenario) -> None:
    file = exported(tmp_path, scenario())
    facts = json.loads(embedded(facts_of(file)))
    expected = audited(file, capsys)
    num_void = facts["audit"].pop("num_void")
    assert facts["audit"] == expected and num_void == len(expected["void"])


def test_of_a_recorded_run_sums_are_those_of_its_events(tmp_path: Path) -> None:
    entries = [decode(record) for record in demo_records(tmp_path)]
    by_type: dict[str, list[Any]] = {}
    for entry in entries:
        by_type.setdefault(entry.event.type, []).append(entry)  # type: ignore[union-attr]
    facts = facts_of(tmp_path / "demo.atoll")
    assert facts["audit"]["ok"] and facts["audit"]["num_void"] == 0  # so every event counts
    published = [entry.event for entry in by_type["delta.published"]]
    assert facts["bytes"]["deltas"] == sum(one.num_bytes for one in published)
    assert sum(one["delta_bytes"] for one in facts["rounds"]) == facts["bytes"]["deltas"]
    committed = [entry.event for entry in by_type["round.committed"]]
    assert facts["bytes"]["updates"] == sum(one.update_bytes for one in committed)
    assert [one["tokens"] for one in facts["versions"]] == [one.tokens for one in committed]
    assert facts["headline"]["tokens"] == sum(one.tokens for one in committed) == 783_360
    snapshots = [entry.event.num_bytes for entry in by_type["snapshot.saved"]]
    assert facts["bytes"]["snapshots"] == sum(snapshots)
    first, last = entries[0].record.time_ns, entries[-1].record.time_ns
    assert facts["seconds"] == (last - first) / 1e9
    completed = Counter(entry.record.subject for entry in by_type["block.completed"])
    seconds = sum(entry.event.seconds for entry in by_type["block.completed"])
    sites = {one["site"]: one for one in facts["sites"]}
    blocks = {f"site.{one['site']}": -(-one["trained_tokens"] // 4096) for one in facts["sites"]}
    assert blocks == completed  # the epoch's last block is short
    assert sum(one["training_s"] for one in sites.values()) == pytest.approx(seconds)
    assert sum(one["merged_tokens"] for one in sites.values()) == facts["headline"]["tokens"]
    evaluations = [entry.event.perplexity for entry in by_type["evaluation.completed"]]
    assert [one["perplexity"] for one in facts["evaluations"]] == evaluations


def test_presence_has_every_life_from_its_admission_to_its_departure(tmp_path: Path) -> None:
    entries = [decode(record) for record in demo_records(tmp_path)]
    start = entries[0].record.time_ns
    came, left, finished = {}, {}, 0.0
    for entry in entries:
        at_s = (entry.record.time_ns - start) / 1e9
        if entry.event.type == "site.admitted":  # type: ignore[union-attr]
            came[entry.record.sequence] = at_s
        if entry.event.type == "run.finished":  # type: ignore[union-attr]
            finished = at_s
        if entry.event.type == "site.departed":  # type: ignore[union-attr]
            left[entry.event.incarnation[0]] = (at_s, entry.event.code, entry.event.reason)
    facts = facts_of(tmp_path / "demo.atoll")
    assert {one["incarnation"]: one["came_s"] for one in facts["lives"]} == came
    gone = [one for one in facts["lives"] if one["left_s"] is not None]
    assert {one["incarnation"]: (one["left_s"], one["code"], one["reason"]) for one in gone} == left
    present = {one["site"]: one["present_s"] for one in facts["sites"]}
    beta = [one for one in facts["lives"] if one["site"] == "beta"]
    assert len(beta) == 2 and present["beta"] == pytest.approx(
        beta[0]["left_s"] - beta[0]["came_s"] + facts["ran_until_s"] - beta[1]["came_s"]
    )
    assert facts["ran_until_s"] == finished < facts["seconds"], "what comes later keeps nobody"
    for site, spells in facts["working"].items():
        lives = [one for one in facts["lives"] if one["site"] == site]
        for since, until in spells:
            assert any(
                one["came_s"] <= since < until <= (one["left_s"] or facts["seconds"])
                for one in lives
            ), (site, since, until)
    assert [one["code"] for one in gone] == ["lost"]


def test_the_same_log_gives_the_same_bytes_in_any_process(tmp_path: Path, capsys) -> None:
    file, page = demo_log(tmp_path), tmp_path / "other.html"
    here, _ = reported(file, capsys)
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "UTC5", "LC_ALL": "C"}
    command = [*ATOLL, "report", str(file), "-o", str(page)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert page.read_bytes() == here.encode()
    assert "silent for 8 ticks (4 s)" in here and ">lost<" in here


def test_nothing_a_log_says_is_markup_and_nothing_is_fetched(tmp_path: Path, capsys) -> None:
    scenario = at_work()
    evil = f"{HOSTILE} </script><script>alert(1)</script><img src=x onerror=alert(2)>"
    scenario.operator(RunPaused(reason=evil))
    text, facts = reported(exported(tmp_path, scenario), capsys)
    assert facts["reason"] == evil
    assert "<img" not in text and "<script>" not in text and text.count("<script") == 1
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    named = set(re.findall(r"https?://[^\"'\s<>]+", text))
    assert named <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # XML's names
    assert not re.search(r"""<[^>]*(src|href)="(?!#)|@import|url\((?!#)""", text)


def test_a_log_without_a_run_and_one_without_a_round_have_a_page(tmp_path: Path, capsys) -> None:
    text, facts = reported(exported(tmp_path, Scenario(elect=False)), capsys)
    assert facts["versions"] == [] and facts["headline"]["loss"] is None
    assert "none yet" in text and "Who was there" not in text


def test_of_a_damaged_file_the_page_says_so(tmp_path: Path, capsys) -> None:
    file = exported(tmp_path, over())
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 3 // 4])
    page = tmp_path / "x.html"
    assert run(["report", str(file), "-o", str(page)]) == 0
    assert "the audit FAILS" in capsys.readouterr().err
    assert "audit: 1 violation<" in page.read_text() and "R18" in page.read_text()


def test_placement_has_a_section_where_an_agent_wrote(tmp_path: Path, capsys) -> None:
    scenario = at_work()
    assert "Placement" not in "".join(tables.sections(facts_of(exported(tmp_path, scenario))))
    shape = JobShape(nodes=1, walltime_s=60)
    intent = JobIntended(job_name="tests-alpha-1", shape=shape, reason="the queue is empty")
    scenario.append("agent.alpha", [intent], Stamp())
    text, facts = reported(exported(tmp_path, scenario), capsys)
    assert "tests-alpha-1; the queue is empty" in text
    assert [one["type"] for one in facts["placement"]] == ["job.intended"]


def test_json_needs_no_matplotlib_and_a_page_names_what_is_missing(tmp_path: Path) -> None:
    file = exported(tmp_path, at_work())
    code = (
        "import sys\nsys.modules['matplotlib'] = None\nfrom ops.cli import run\n"
        f"sys.exit(run(['report', {str(file)!r}, *sys.argv[1:]]))"
    )

    def report(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = report("--json")
    assert done.returncode == 0 and json.loads(done.stdout)["headline"]["version"] == 1
    done = report("-o", str(tmp_path / "page.html"))
    assert done.returncode == 3 and "atoll[report]" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "page.html").exists()


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=2 * MAX_SPELLS))
def test_spells_stay_few_and_cover_what_was_added(gaps: list[tuple[float, float]]) -> None:
    found, at, added = Spells(), 0.0, []
    for gap, length in gaps:
        added.append((at + gap, at + gap + length))
        at = added[-1][1]
        found.add(*added[-1])
    assert len(found.spells) <= MAX_SPELLS
    ends = [end for spell in found.spells for end in spell]
    assert ends == sorted(ends)
    for since, until in added:
        assert any(first <= since and until <= last for first, last in found.spells)
    if added:
        assert (ends[0], ends[-1]) == (added[0][0], at)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.9, "1k"), (12_345, "12.3k"), (4.5e9, "4.5G"), (None, "–")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert compact(value) == text
    if value is not None and value > 1000:
        assert size(value) == f"{text[:-1]} {text[-1]}B"


def test_a_long_line_keeps_its_last_point_and_its_order() -> None:
    points = list(range(1001))
    some = thinned(points, 100)
    assert len(some) == 100 and some == sorted(some) and some[-1] == 1000
    assert thinned(points, 2000) == points
    assert [time_unit(seconds)[1] for seconds in (10, 600, 1e5, 1e6)] == [
        "seconds", "minutes", "hours", "days",
    ]  # fmt: skip


def test_a_long_name_gives_way_in_its_middle() -> None:
    long = "centre-with-a-long-name-partition-gpu-07"
    assert canvas.label(long, narrow=False) == long and len(long) == 40
    short = canvas.label(long, narrow=True)
    assert len(short) == 18 and short.startswith("centre-wi") and short.endswith("-gpu-07")
    assert len(canvas.label(long * 2, narrow=False)) == 40
