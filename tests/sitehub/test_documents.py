"""Odd documents: each kind is counted and handled by its stated rule, in every kind of file."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sitehub import documents as rules
from sitehub import rowfiles
from sitehub.documents import Choice, documents, pieces
from sitehub.rowfiles import File, Lines, Texts
from sitehub.sources import DataInvalid, folder


def found(value: Any) -> tuple[list[str], dict[str, int]]:
    """The documents of a value, and what was odd."""
    tally: Counter[str] = Counter()
    return [one.text for one in documents(value, tally)], dict(tally)


@pytest.mark.parametrize(
    ("value", "texts", "odd"),
    [
        ("plain\n", ["plain\n"], {}),
        ("naïve 漢字 😀", ["naïve 漢字 😀"], {}),
        (b"caf\xe9 \xff", ["caf\ufffd \ufffd"], {"invalid_utf8": 1}),
        (b"\xe6\xbc", ["\ufffd"], {"invalid_utf8": 1}),
        ("half \ud83d!", ["half \ufffd!"], {"invalid_utf8": 1}),
        ("whole \ud83d\ude00", ["whole 😀"], {"invalid_utf8": 1}),
        ("\ufeffmarked", ["marked"], {"byte_order_mark": 1}),
        (b"\xef\xbb\xbfmarked", ["marked"], {"byte_order_mark": 1}),
        ("a\0b\0", ["ab"], {"nul": 1}),
        ("a\r\nb\rc\r\n", ["a\nb\rc\n"], {"crlf": 1}),
        ("", [], {"empty": 1}),
        (b"", [], {"empty": 1}),
        (" \r\n\t\0", [], {"nul": 1, "crlf": 1, "empty": 1}),
        (None, [], {"null": 1}),
        (7, [], {"not_text": 1}),
        (["a"], [], {"not_text": 1}),
        ({"a": "b"}, [], {"not_text": 1}),
    ],
)
def test_each_odd_value_has_its_rule(value: Any, texts: list[str], odd: dict[str, int]) -> None:
    assert found(value) == (texts, odd)
    assert set(odd) <= set(rules.ODDITIES)


@given(st.one_of(st.binary(), st.text(st.characters()), st.none(), st.integers(), st.floats()))
def test_no_value_crashes_and_what_comes_out_is_sound(value: Any) -> None:
    for one in documents(value, Counter()):
        assert "\0" not in one.text and "\r\n" not in one.text and one.text.strip()
        assert one.digest == hashlib.sha256(one.text.encode()).digest()
        assert one.num_bytes == len(one.text.encode())


def test_a_long_text_is_cut_into_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_CHARACTERS", 4)
    assert found("漢字漢字漢字漢字漢") == (["漢字漢字", "漢字漢字", "漢"], {"cut": 1})
    assert found("abcd") == (["abcd"], {})


@given(st.text("ab \n漢"), st.integers(1, 7))
def test_pieces_are_the_text_and_none_is_too_long(text: str, most: int) -> None:
    parts = list(pieces(text, most))
    assert "".join(parts) == text
    assert all(len(part) <= most for part in parts)
    for part in parts[:-1]:
        assert part.endswith("\n") or "\n" not in part
        assert part.endswith(("\n", " ")) or (len(part) == most and " " not in part)


def test_a_large_file_of_text_is_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    for text in ("漢字" * 9, "é" * 13, "abcdefgh" * 2, "abcdefgh", "😀" * 5):
        path.write_text(text)
        for most in (5, 8, 11):
            monkeypatch.setattr(rowfiles, "MAX_CHARACTERS", most)
            tally: Counter[str] = Counter()
            values = list(Texts(0, (File.at(path),)).values(tally))
            assert b"".join(values) == text.encode()
            assert all(len(value.decode().encode()) <= most + 1 for value in values)
            assert tally["cut"] == (len(values) > 1)


LINES = (
    b'\xef\xbb\xbf{"text": "marked"}\n'
    b'{"text": "one"}\r\n'
    b"\n"
    b'{"text": null}\n'
    b'{"other": 1}\n'
    b'{"text": 5}\n'
    b'["text"]\n'
    b"{broken\n"
    b'{"text": "raw \xff byte"}\n'
    b'{"text": "half \\ud83d"}\n'
    b'{"text": "nul \\u0000 and raw \0"}\n' + b'{"text": "' + b"x" * 200 + b'"}\n'
    b'{"text": ' + b"[" * 60 + b"\n"
    b'{"text": "the last has no line end"}'
)
TEXTS = [
    "marked",
    "one",
    "raw \ufffd byte",
    "half \ufffd",
    "nul  and raw ",
    "the last has no line end",
]
ODD = {"null": 2, "not_text": 1, "damaged": 3, "invalid_utf8": 2, "nul": 1, "too_long": 1}


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json.zst"])
@pytest.mark.parametrize("unit_bytes", [1, 7, 40, 10_000])
def test_lines_are_read_once_however_a_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, unit_bytes: int
) -> None:
    monkeypatch.setattr(rowfiles, "MAX_LINE_BYTES", 100)
    zstandard = pytest.importorskip("zstandard")
    packed = {
        ".jsonl": LINES,
        ".jsonl.gz": gzip.compress(LINES[:50]) + gzip.compress(LINES[50:]),
        ".json.zst": zstandard.compress(LINES[:50]) + zstandard.compress(LINES[50:]),
    }
    path = tmp_path / f"rows{ending}"
    path.write_bytes(packed[ending])
    tally: Counter[str] = Counter()
    units = list(folder(tmp_path).units(0, unit_bytes))
    texts = [one.text for u in units for v in u.values(tally) for one in documents(v, tally)]
    assert (texts, dict(tally)) == (TEXTS, ODD)
    assert (len(units) > 1) == (ending == ".jsonl" and unit_bytes < 1000)


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows{ending}"
    whole = gzip.compress(json.dumps({"text": "x" * 9000}).encode())
    for content in (b"no such format at all, whatever its name says", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataInvalid, match=path.name) as caught:
            for unit in folder(tmp_path).units(0, 1000):
                list(unit.values(Counter()))
        assert len(str(caught.value).splitlines()) == 1


def test_copies_of_a_text_are_on_one_side_and_every_nth_is_held_out() -> None:
    choice = Choice(subset=1, heldout_every=10)
    digests = [hashlib.sha256(str(n).encode()).digest() for n in range(20_000)]
    share = sum(map(choice.holds_out, digests)) / len(digests)
    assert abs(share - 0.1) < 0.01  # 4.7 standard deviations
    assert all(choice.takes(digest) for digest in digests)
    assert abs(sum(map(Choice(subset=4).takes, digests)) / len(digests) - 0.25) < 0.015


def test_a_range_of_lines_is_no_line_before_or_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [json.dumps({"text": f"line {n}"}) + "\n" for n in range(30)]
    path.write_text("".join(rows))
    file = File.at(path)
    for cut in range(file.num_bytes + 1):
        halves = [Lines(0, file, "text", 0, cut), Lines(0, file, "text", cut, file.num_bytes)]
        first, second = (list(half.values(Counter())) for half in halves)
        assert first + second == [f"line {n}" for n in range(30)]
        assert len(first) == sum(len("".join(rows[:n])) < cut for n in range(30))
