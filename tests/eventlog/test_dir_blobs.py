"""What the directory of blobs adds to the contract: parts, and what is spared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eventlog.blobs import CHUNK_BYTES, chunk_digests, digest_file
from eventlog.dir_blobs import DirBlobs, _copy
from eventlog.errors import BlobDamaged, BlobMissing, BlobUnavailable
from tests.contract.blob_contract import content, named, write


async def test_a_blob_is_a_file_named_by_its_digest(tmp_path: Path) -> None:
    store = DirBlobs(tmp_path / "deep" / "store")
    ref = await store.put(write(tmp_path / "source", content(1000)))
    assert (tmp_path / "deep" / "store" / ref.digest).read_bytes() == content(1000)
    assert list((tmp_path / "deep" / "store" / "parts").iterdir()) == []
    assert digest_file(tmp_path / "source") == ref


async def test_a_put_goes_on_from_the_chunks_that_are_there(tmp_path: Path) -> None:
    data = content(4 * CHUNK_BYTES)
    store = DirBlobs(tmp_path / "store")
    part = write(store.part(named(data)), data[: 3 * CHUNK_BYTES - 5])
    inode = part.stat().st_ino
    await store.put(write(tmp_path / "source", data))
    assert (tmp_path / "store" / named(data)).stat().st_ino == inode
    assert (tmp_path / "store" / named(data)).read_bytes() == data


async def test_a_part_with_other_bytes_is_put_right(tmp_path: Path) -> None:
    data = content(2 * CHUNK_BYTES + 3)
    store = DirBlobs(tmp_path / "store")
    write(store.part(named(data)), content(3 * CHUNK_BYTES, 9))
    await store.put(write(tmp_path / "source", data))
    await store.get(named(data), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data


async def test_a_part_is_no_blob_and_release_removes_it(tmp_path: Path) -> None:
    data = content(100)
    store = DirBlobs(tmp_path / "store")
    write(store.part(named(data)), data)
    assert not await store.has(named(data))
    assert await store.digests() == []
    await store.release([named(data)])
    assert not store.part(named(data)).exists()


def test_a_source_that_changes_after_it_was_named_is_refused_chunk_by_chunk(
    tmp_path: Path,
) -> None:
    data = content(3 * CHUNK_BYTES)
    digests, _ = chunk_digests(write(tmp_path / "source", data))
    changed = bytearray(data)
    changed[CHUNK_BYTES] ^= 1
    for source in (bytes(changed), data[:CHUNK_BYTES], data[:CHUNK_BYTES] + b"x"):
        with pytest.raises(BlobDamaged, match="changed"):
            _copy(lambda done, total: None, write(tmp_path / "s", source), tmp_path / "p", digests)
        assert (tmp_path / "p").read_bytes() == data[:CHUNK_BYTES]


async def test_adopting_proves_the_name(tmp_path: Path) -> None:
    data = content(CHUNK_BYTES + 1)
    store = DirBlobs(tmp_path / "store")
    store.adopt(write(store.part(named(data)), data), named(data))
    assert await store.digests() == [named(data)]
    with pytest.raises(BlobDamaged):
        store.adopt(write(tmp_path / "other", b"other"), named(data))


@pytest.mark.parametrize("digest", ["", "x", "../" + "0" * 61, "A" * 64, "0" * 63, "parts"])
async def test_what_is_no_digest_reaches_no_file(tmp_path: Path, digest: str) -> None:
    store = DirBlobs(tmp_path / "store")
    assert not await store.has(digest)
    await store.release([digest])
    with pytest.raises(BlobMissing):
        await store.get(digest, tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["store"]


async def test_a_place_that_cannot_hold_blobs_is_said_so(tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    with pytest.raises(BlobUnavailable, match="file"):
        DirBlobs(tmp_path / "file")
    with pytest.raises(BlobUnavailable, match="nothing"):
        await DirBlobs(tmp_path / "store").put(tmp_path / "nothing")
