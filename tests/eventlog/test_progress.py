"""What a person hears of a transfer that takes long."""

from __future__ import annotations

from pathlib import Path

from eventlog.dir_blobs import DirBlobs
from eventlog.progress import SpokenBlobs, spoken


def test_a_long_transfer_is_told_with_rate_and_time_left_and_a_short_one_not() -> None:
    now, said = 0.0, []
    report = spoken(said.append, "storing delta", lambda: now, every_s=10)
    report(100_000_000, 1_100_000_000)  # of an earlier attempt
    for now in (5.0, 10.0, 15.0, 20.0):
        report(100_000_000 + int(now) * 25_000_000, 1_100_000_000)
    assert said == [
        "storing delta: 350 of 1,100 MB, 25 MB/s, 30 s left",
        "storing delta: 600 of 1,100 MB, 25 MB/s, 20 s left",
    ]


def test_a_transfer_of_hours_is_told_in_minutes_and_one_that_stands_still_says_so() -> None:
    now, said = 0.0, []
    report = spoken(said.append, "fetching", lambda: now, every_s=10)
    report(0, 3_000_000_000)
    now = 10.0
    report(0, 3_000_000_000)
    now = 20.0
    report(20_000_000, 3_000_000_000)
    assert said == [
        "fetching: 0 of 3,000 MB, nothing since the last line",
        "fetching: 20 of 3,000 MB, 1 MB/s, 50 min left",
    ]


async def test_a_store_that_speaks_is_the_store(tmp_path: Path) -> None:
    said: list[str] = []
    store = SpokenBlobs(DirBlobs(tmp_path / "blobs"), said.append)
    (tmp_path / "source").write_bytes(b"abc")
    heard: list[tuple[int, int]] = []
    blob = await store.put(tmp_path / "source", lambda *progress: heard.append(progress))
    await store.get(blob.digest, tmp_path / "target", lambda *progress: heard.append(progress))
    assert heard and set(heard) == {(3, 3)}  # whoever asks is told beside the person
    assert (tmp_path / "target").read_bytes() == b"abc"
    assert await store.has(blob.digest) and await store.digests() == [blob.digest]
    await store.release([blob.digest])
    assert (await store.digests(), await store.unfinished()) == ([], {})
    assert said == [], "it was over at once"
