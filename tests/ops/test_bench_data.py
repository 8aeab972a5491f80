"""`atoll bench data` and `bench loader` measure what they say; the English they stand on."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from ops.bench import english
from ops.cli import run
from tests.support.benches import quick


def test_quick_builds_and_compares_with_the_tokenizer_alone() -> None:
    found = quick("data")
    build, memory = found["measures"]
    assert (build["what"], build["target"]) == ("build", "≥ 0.8×")
    assert (memory["what"], memory["target"]) == ("memory", "≤ 1.1×")
    for one in (build, memory):
        assert one["value"] > 0 and one["ratio"] == pytest.approx(
            one["value"] / one["against_value"]
        )
    assert 0.01 < memory["value"] < 4  # GB: several Python processes


def test_quick_reads_batches_and_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "loader", "--quick", "--json"]) == 0
    (loader,) = json.loads(capsys.readouterr().out)["measures"]
    assert (loader["what"], loader["target"], loader["unit"]) == ("loader", "≥ 50×", "batches/s")
    assert loader["value"] > loader["against_value"] > 0


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>One <b>word</b>.</p><p>Two &amp; &lt;three&gt;</p>", "One word.\nTwo & <three>"),
        ("<ul> <li>a</li> <li>b</li></ul>", "a\nb"),
        ("no tags", "no tags"),
        ("<p></p>", ""),
    ],
)
def test_tags_are_removed_and_blocks_are_lines(markup: str, text: str) -> None:
    assert english.plain(markup) == text


def test_english_is_every_services_documentation_once(tmp_path: Path) -> None:
    """Against the files themselves, read in another way."""
    source = english.write(tmp_path / "english.jsonl.gz", subset=60)
    assert source.label["version"] == english.version()
    lines = gzip.decompress((tmp_path / "english.jsonl.gz").read_bytes()).splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    services = english.services()[::60]
    assert len(texts) == len(services)
    for text, path in zip(texts, services, strict=True):
        content = json.loads(gzip.decompress(path.read_bytes()))
        operations = [one.get("documentation", "") for one in content["operations"].values()]
        assert all(english.plain(one) in text for one in operations)
        parts = Counter(text.strip().split("\n\n"))
        assert max(parts.values()) == 1
    (tmp_path / "again").mkdir()
    english.write(tmp_path / "again" / "english.jsonl.gz", subset=60)
    first, second = sorted(tmp_path.rglob("*.gz"))
    assert first.read_bytes() == second.read_bytes()
