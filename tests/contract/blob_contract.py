"""What every `BlobStore` must do, whatever it is made of.

An implementation's tests subclass `BlobContract` and give two fixtures: `store`, a fresh and empty
store, and `damage`, an async function that changes one byte of a stored blob behind its back.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from eventlog.blobs import CHUNK_BYTES, BlobStore, digest_file
from eventlog.errors import BlobDamaged, BlobMissing, BlobTooLarge

Damage = Callable[[str], Awaitable[None]]

SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 12345]
UNKNOWN = "0" * 64


def content(num_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def named(data: bytes) -> str:
    """A blob's digest as the documentation of `eventlog.blobs` defines it, done anew."""
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    chunks = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    head = b"atoll blob 1\n" + struct.pack(">I", CHUNK_BYTES) + struct.pack(">Q", len(data))
    return hashlib.sha256(head + chunks).hexdigest()


class BlobContract:
    """Subclass it as `class TestXBlobs(BlobContract)` beside fixtures `store` and `damage`."""

    @pytest.mark.parametrize("num_bytes", SIZES)
    async def test_what_was_put_is_got_bit_for_bit(
        self, store: BlobStore, tmp_path: Path, num_bytes: int
    ) -> None:
        data = content(num_bytes)
        ref = await store.put(write(tmp_path / "source", data))
        assert (ref.digest, ref.num_bytes) == (named(data), num_bytes)
        await store.get(ref.digest, tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data
        assert not (tmp_path / "target.part").exists()

    async def test_a_blob_is_there_once_put_and_named_once(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        one, two = content(1000, 1), content(CHUNK_BYTES + 5, 2)
        assert await store.digests() == []
        assert not await store.has(named(one))
        for data in (one, two, one):
            await store.put(write(tmp_path / "source", data))
        assert await store.has(named(one))
        assert await store.has(named(two))
        assert await store.digests() == sorted([named(one), named(two)])

    async def test_of_a_blob_that_is_longer_than_it_may_be_nothing_is_fetched(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        data = content(CHUNK_BYTES + 5)
        ref = await store.put(write(tmp_path / "source", data))
        with pytest.raises(BlobTooLarge, match=rf"{ref.digest} has 2,097,157 bytes, .* 2,097,156"):
            await store.get(ref.digest, tmp_path / "target", max_bytes=len(data) - 1)
        assert list(tmp_path.glob("target*")) == []
        await store.get(ref.digest, tmp_path / "target", max_bytes=len(data))
        assert (tmp_path / "target").read_bytes() == data

    async def test_a_missing_blob_is_named_and_leaves_no_target(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        with pytest.raises(BlobMissing, match=UNKNOWN):
            await store.get(UNKNOWN, tmp_path / "target")
        assert list(tmp_path.glob("target*")) == []
        assert not await store.has(UNKNOWN)

    async def test_get_replaces_what_stood_at_the_target(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        data = content(5000)
        ref = await store.put(write(tmp_path / "source", data))
        target = write(tmp_path / "target", content(9000, 7))
        await store.get(ref.digest, target)
        assert target.read_bytes() == data

    async def test_a_part_file_is_continued_or_overwritten_never_trusted(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        data = content(2 * CHUNK_BYTES + 99)
        ref = await store.put(write(tmp_path / "source", data))
        leftovers = [
            data[: CHUNK_BYTES + 17],
            content(CHUNK_BYTES, 3) + data[CHUNK_BYTES : 2 * CHUNK_BYTES],
            data + b"more than all of it",
        ]
        for leftover in leftovers:
            write(tmp_path / "target.part", leftover)
            await store.get(ref.digest, tmp_path / "target")
            assert (tmp_path / "target").read_bytes() == data
            assert not (tmp_path / "target.part").exists()

    async def test_damage_is_found_and_never_handed_out(
        self, store: BlobStore, damage: Damage, tmp_path: Path
    ) -> None:
        ref = await store.put(write(tmp_path / "source", content(CHUNK_BYTES + 1000)))
        await damage(ref.digest)
        with pytest.raises(BlobDamaged, match=ref.digest):
            await store.get(ref.digest, tmp_path / "target")
        assert not (tmp_path / "target").exists()

    async def test_released_blobs_are_gone_and_can_be_put_again(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        kept, gone = content(3000, 1), content(CHUNK_BYTES + 1, 2)
        for data in (kept, gone):
            await store.put(write(tmp_path / "source", data))
        await store.release([named(gone), UNKNOWN])
        await store.release([named(gone)])
        assert await store.digests() == [named(kept)]
        with pytest.raises(BlobMissing):
            await store.get(named(gone), tmp_path / "target")
        await store.put(write(tmp_path / "source", gone))
        await store.get(named(gone), tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == gone

    async def test_one_blob_put_by_many_at_once_is_whole(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        data = content(2 * CHUNK_BYTES + 7)
        sources = [write(tmp_path / f"source{number}", data) for number in range(4)]
        refs = await asyncio.gather(*(store.put(source) for source in sources))
        assert {ref.digest for ref in refs} == {named(data)}
        await store.get(named(data), tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data
        assert await store.digests() == [named(data)]

    async def test_many_blobs_go_at_once(self, store: BlobStore, tmp_path: Path) -> None:
        bodies = [content(50_000 + number, number) for number in range(8)]
        sources = [write(tmp_path / f"s{number}", body) for number, body in enumerate(bodies)]
        refs = await asyncio.gather(*(store.put(source) for source in sources))
        targets = [tmp_path / f"t{number}" for number in range(8)]
        pairs = zip(refs, targets, strict=True)
        await asyncio.gather(*(store.get(ref.digest, target) for ref, target in pairs))
        assert [target.read_bytes() for target in targets] == bodies

    async def test_a_broken_put_is_no_blob_and_a_repeated_one_completes_it(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        data = content(4 * CHUNK_BYTES)
        source = write(tmp_path / "source", data)
        begun = asyncio.Event()
        putting = asyncio.create_task(store.put(source, lambda done, total: begun.set()))
        await asyncio.wait_for(begun.wait(), 10)
        putting.cancel()
        outcome = (await asyncio.gather(putting, return_exceptions=True))[0]
        if isinstance(outcome, asyncio.CancelledError):
            assert not await store.has(named(data))
            assert await store.digests() == []
            assert list(await store.unfinished()) == [named(data)]
        await store.put(source)
        assert await store.unfinished() == {}
        await store.get(named(data), tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data

    async def test_half_a_blob_is_told_grows_and_can_be_released(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        source = write(tmp_path / "source", content(24 * CHUNK_BYTES))
        digest, sizes = digest_file(source).digest, []
        for share in (8, 2):
            begun = asyncio.Event()

            def report(done: int, total: int, share: int = share, e: asyncio.Event = begun) -> None:
                if done >= total // share:
                    e.set()

            putting = asyncio.create_task(store.put(source, report))
            await asyncio.wait_for(begun.wait(), 20)
            putting.cancel()
            outcome = (await asyncio.gather(putting, return_exceptions=True))[0]
            if not isinstance(outcome, asyncio.CancelledError):
                pytest.skip("this machine was too fast to be stopped in the middle")
            await asyncio.sleep(0.3)  # what was on its way arrives
            sizes.append((await store.unfinished())[digest])
        assert sizes[0] < sizes[1]
        await store.release([digest])
        assert (await store.unfinished(), await store.digests()) == ({}, [])

    async def test_progress_rises_to_all_bytes(self, store: BlobStore, tmp_path: Path) -> None:
        data = content(3 * CHUNK_BYTES + 1)
        seen: list[tuple[int, int]] = []
        ref = await store.put(
            write(tmp_path / "source", data), lambda done, total: seen.append((done, total))
        )
        put, seen = seen, []
        await store.get(ref.digest, tmp_path / "t", lambda done, total: seen.append((done, total)))
        for reports in (put, seen):
            assert reports == sorted(reports)
            assert reports[-1] == (len(data), len(data))
