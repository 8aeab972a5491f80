"""`atoll audit FILE`: verdict, exit code, the first wrong sequence; with nothing but the file."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog.chain import extend, start
from eventlog.export import read_export
from eventlog.scanner import Placed, Scanner
from ops import logfile
from ops.cli import run
from tests.leases.stories import delivered, ending, whole_run
from tests.support.scenario import Scenario

ROOT = Path(__file__).parent.parent.parent
Damage = Callable[[bytes, list[tuple[int, int]]], bytes]


def exported(scenario: Scenario, folder: Path) -> Path:
    """A scenario's log as a file."""
    asyncio.run(logfile.export(scenario.log, None, folder / "run.atoll"))
    return folder / "run.atoll"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return exported(whole_run(), tmp_path)


def audited(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> dict:
    """What `atoll audit --json` prints: one object, and nothing else on either stream."""
    assert run(["audit", *arguments, "--json"]) == code
    said = capsys.readouterr()
    assert said.err == ""
    (line,) = said.out.splitlines()
    return json.loads(line)


def frames(path: Path) -> list[tuple[int, int]]:
    """Where the frame of each event begins and ends."""
    with path.open("rb") as file:
        scanner, found = Scanner(file, path), []
        begin = scanner.offset
        for item in scanner.frames():
            assert isinstance(item, Placed)
            found.append((begin, item.end))
            begin = item.end
    return found


def test_a_clean_file_passes_with_the_documented_object(file: Path, capsys) -> None:
    found = audited(capsys, str(file), code=0)
    digest = start("tests")
    for record in read_export(file):
        digest = extend(digest, record)
    assert found["log_digest"] == digest.hex()
    assert (found["run"], found["ok"], found["versions"]) == ("tests", True, 3)
    assert found["violations"] == [] and found["void"] == []
    assert found["epochs"] == [
        {
            "epoch": 0,
            "blocks": 6,
            "merged": 6,
            "open": 0,
            "duplicated": 0,
            "lost": 0,
            "quarantined": 0,
            "reclaimed": 2,
            "closed": True,
        }
    ]
    assert "deep" not in found and "block" not in found


def flipped(content: bytes, places: list[tuple[int, int]]) -> bytes:
    begin, end = places[19]  # event 20
    middle = (begin + end) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def removed(content: bytes, places: list[tuple[int, int]]) -> bytes:
    begin, end = places[19]
    return content[:begin] + content[end:]


def swapped(content: bytes, places: list[tuple[int, int]]) -> bytes:
    (begin, middle), (_, end) = places[19], places[20]
    return content[:begin] + content[middle:end] + content[begin:middle] + content[end:]


def repeated(content: bytes, places: list[tuple[int, int]]) -> bytes:
    begin, end = places[18]
    return content[:end] + content[begin:end] + content[end:]


@pytest.mark.parametrize("damage", [flipped, removed, swapped, repeated])
def test_damage_is_a_violation_at_the_first_wrong_sequence(
    file: Path, capsys, damage: Damage
) -> None:
    file.write_bytes(damage(file.read_bytes(), frames(file)))
    found = audited(capsys, str(file), code=1)
    assert [(one["rule"], one["sequence"]) for one in found["violations"]] == [("R19", 20)]
    assert (found["ok"], found["last_sequence"]) == (False, 19)


@pytest.mark.parametrize("last", [1, 20, 30])
@pytest.mark.parametrize("torn", [0, 7])
def test_a_cut_end_names_the_missing_footer_and_how_far_the_log_is_anchored(
    file: Path, capsys, last: int, torn: int
) -> None:
    commits = [one.sequence for one in read_export(file) if b"round.committed" in one.payload]
    cut = frames(file)[last - 1][1] + torn
    file.write_bytes(file.read_bytes()[:cut])
    found = audited(capsys, str(file), code=1)
    anchored = max([0, *(one - 1 for one in commits if one <= last)])
    assert found["anchored_through"] == anchored
    (one,) = found["violations"]
    assert (one["promise"], one["rule"], one["sequence"]) == ("P3", "R18", last + 1)
    assert "footer" in one["what"] and f"through {anchored}" in one["what"]


@pytest.mark.parametrize("place", [0, 13, 20, 60, -1, -50])
def test_no_changed_byte_gives_a_traceback_or_a_pass(file: Path, capsys, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)
    assert run(["audit", str(file)]) == (3 if place == 0 else 1)  # 0: no atoll log at all
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err


def test_bytes_behind_the_footer_are_found(file: Path, capsys) -> None:
    file.write_bytes(file.read_bytes() + b"more")
    found = audited(capsys, str(file), code=1)
    assert [one["rule"] for one in found["violations"]] == ["R19"]


def test_people_read_the_verdict_first_and_where_to_look_next(tmp_path: Path, capsys) -> None:
    scenario = delivered()
    assert scenario.decide(scenario.closing()) == ""
    commit = scenario.committing()
    assert scenario.decide(commit) == ""
    assert scenario.decide(commit) != ""
    file = exported(scenario, tmp_path)
    assert run(["audit", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The audit of run tests found 1 violation."
    (violation,) = [line for line in lines if line.startswith("violation")]
    assert f"P1 R4 at {scenario.last[0]}" in violation
    assert any(line.startswith(f"next: atoll log show {file} --after") for line in lines)


def test_explain_names_the_share_and_the_cause_by_site(file: Path, capsys) -> None:
    assert run(["audit", str(file), "--explain"]) == 0
    out = capsys.readouterr().out
    assert "2 of 10 granted blocks were reclaimed (20.0%)" in out
    (beta,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["beta"]]
    figures = ["beta", "3", "1", "0", "2", "66.7%", "1", "1"]  # unstarted, started
    assert beta == [*figures, "departed", "(lost):", "2"]


def test_explain_tells_each_departure_with_what_it_gave_back(file: Path, capsys) -> None:
    found = audited(capsys, str(file), "--explain", code=0)
    (departure,) = found["departures"]
    assert departure["sequence"] > 1 and departure["site"] == "beta"
    assert [departure[key] for key in ("code", "unstarted", "started")] == ["lost", 1, 1]
    assert (found["reclaimed_unstarted"], found["reclaimed_started"]) == (1, 1)
    assert [one["site"] for one in found["sites"]] == ["alpha", "beta"]
    assert "departures" not in audited(capsys, str(file), code=0)


def test_a_finding_names_whom_it_concerns_and_what_should_have_been(tmp_path: Path, capsys) -> None:
    scenario = delivered()
    assert scenario.grant("alpha", 3) == ""
    assert scenario.grant("beta", 3) != ""
    file = exported(scenario, tmp_path)
    (wrong,) = audited(capsys, str(file), code=1)["violations"]
    keys = ["block", "expected", "promise", "rule", "sequence", "site", "what"]
    assert sorted(wrong) == keys
    assert (wrong["site"], wrong["block"]) == ("beta", "0:3")
    assert run(["audit", str(file)]) == 1
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("violation")]
    assert "(beta, block 0:3)" in line and "should have been: " + wrong["expected"] in line
    assert run(["audit", str(file), "--block", "0:3"]) == 1
    out = capsys.readouterr().out
    assert "block 0:3: granted" in out and f"violation at {wrong['sequence']}" in out


def test_one_block_is_told_from_grant_to_merge(file: Path, capsys) -> None:
    found = audited(capsys, str(file), "--block", "0:5", code=0)
    moves = [(one["type"], one["before"], one["after"]) for one in found["block"]]
    assert moves[:3] == [
        ("lease.granted", "available", "leased"),
        ("lease.stolen", "leased", "available"),
        ("lease.granted", "available", "leased"),
    ]
    assert moves[-1] == ("round.committed", "delivered", "merged")
    assert run(["audit", str(file), "--block", "0:5"]) == 0
    assert "delivered → merged" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("0:6", "epoch 0 has blocks 0 to 5"),
        ("0:99", "epoch 0 has blocks 0 to 5"),
        ("1:0", "only epoch 0 has begun"),
    ],
)
def test_a_block_that_the_run_does_not_have_is_bad_input(
    file: Path, capsys, block: str, why: str, options: list[str]
) -> None:
    assert run(["audit", str(file), "--block", block, *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"atoll: run tests has no block {block}: {why} (see ")


def test_a_block_that_rests_is_told_from_one_that_there_is_not(tmp_path: Path, capsys) -> None:
    scenario = Scenario(num_sequences=8)  # two blocks an epoch
    scenario.arrive("alpha")
    scenario.open(alpha=3)
    assert scenario.grant("alpha", 0, 1) == "" and scenario.grant("alpha", 0, epoch=1) == ""
    file = exported(scenario, tmp_path)
    assert run(["audit", str(file), "--block", "1:1"]) == 0
    assert "block 1:1: no event of run tests names it" in capsys.readouterr().out
    assert audited(capsys, str(file), "--block", "1:1", code=0)["block"] == []
    for block, why in (("1:2", "epoch 1 has blocks 0 to 1"), ("2:0", "epochs 0 to 1 have begun")):
        assert run(["audit", str(file), "--block", block]) == 2
        assert why in capsys.readouterr().err


def test_what_is_broken_is_graver_than_a_block_that_there_is_not(file: Path, capsys) -> None:
    file.write_bytes(file.read_bytes()[:-40])
    assert audited(capsys, str(file), "--block", "0:99", code=1)["block"] == []
    assert run(["audit", str(file), "--block", "0:99"]) == 1
    assert "has no block 0:99" in capsys.readouterr().out


@pytest.mark.parametrize("block", [f"0:{10**30}", f"{10**30}:0", f"0:{2**63}"])
def test_a_block_that_no_epoch_can_have_is_no_traceback(file: Path, capsys, block: str) -> None:
    assert run(["audit", str(file), "--block", block]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has such a number" in line


@pytest.mark.parametrize("block", ["5", "0:", "a:b", "-1:2"])
def test_a_block_is_written_as_epoch_and_block(file: Path, capsys, block: str) -> None:
    assert run(["audit", str(file), f"--block={block}"]) == 2
    assert "EPOCH:BLOCK" in capsys.readouterr().err


def test_deep_needs_the_blobs(file: Path, capsys) -> None:
    assert run(["audit", str(file), "--deep"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--blobs" in line


def test_deep_is_not_tried_on_a_damaged_file(file: Path, capsys) -> None:
    file.write_bytes(flipped(file.read_bytes(), frames(file)))
    found = audited(capsys, str(file), "--deep", code=1)
    assert found["deep"]["ok"] is False and "damaged" in found["deep"]["what"]


def test_an_end_that_names_another_model_fails_the_audit(tmp_path: Path, capsys) -> None:
    scenario = Scenario(target={"rounds": 1})
    scenario.arrive("alpha")
    assert scenario.open(alpha=1) == ""
    scenario.work("alpha", 0)
    scenario.commit()
    assert scenario.decide(ending(scenario, parameters_digest="0" * 64)) == ""
    found = audited(capsys, str(exported(scenario, tmp_path)), code=1)
    assert [(one["promise"], one["rule"]) for one in found["violations"]] == [("P3", "R15")]


_WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "nats", "numpy"}:
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocked())
from ops.cli import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_file_is_audited_where_there_is_no_torch_and_no_broker(file: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT, "audit", str(file), "--explain"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The audit of run tests holds.")
