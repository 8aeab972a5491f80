"""The contract of blob stores, held by S3: obstore against moto's server, over real HTTP."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.blobs import CHUNK_BYTES
from eventlog.errors import BlobUnavailable
from eventlog.s3_access import AccessMissing
from eventlog.s3_blobs import SETTLE_S, S3Blobs
from tests.contract.blob_contract import BlobContract, Damage
from tests.support.objects import object_storage

obstore = pytest.importorskip("obstore", reason="atoll[s3] is not installed")
pytest.importorskip("moto", reason="atoll[dev] is not installed")
pytest.importorskip("flask", reason="atoll[dev] is not installed")

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with object_storage() as environment:
        yield environment


@pytest.fixture
def url(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own, and the environment that leads to it."""
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    return f"s3://runs/test-{next(_numbers)}"


@pytest.fixture
def store(url: str) -> S3Blobs:
    return S3Blobs(url)


class TestS3Blobs(BlobContract):
    @pytest.fixture
    def damage(self, store: S3Blobs) -> Damage:
        async def flip(digest: str) -> None:
            path = f"chunks/{digest}/0"
            body = bytearray((await obstore.get_async(store._store(), path)).bytes())
            body[len(body) // 2] ^= 1
            await obstore.put_async(store._store(), path, bytes(body))

        return flip


async def test_a_put_sends_only_the_chunks_that_are_missing(store: S3Blobs, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(6 * CHUNK_BYTES))
    blob = await store.put(source)
    times = await modified(store, blob.digest)
    gone = [f"blobs/{blob.digest}", f"chunks/{blob.digest}/2"]
    await obstore.delete_async(store._store(), gone)
    assert await store.unfinished() == {blob.digest: 5}
    assert not await store.has(blob.digest)
    seen: list[int] = []
    assert await store.put(source, lambda done, _: seen.append(done)) == blob
    assert seen[0] == 6 * CHUNK_BYTES, "what is there counts from the start, and is not sent"
    again = await modified(store, blob.digest)
    assert [name for name in times if again[name] != times[name]] in ([], [gone[1]])
    assert await store.unfinished() == {}


async def modified(store: S3Blobs, digest: str) -> dict[str, object]:
    found: dict[str, object] = {}
    async for page in obstore.list(store._store(), prefix=f"chunks/{digest}"):
        found |= {str(one["path"]): one["last_modified"] for one in page}
    return found


async def test_a_store_that_is_away_is_named_without_its_credentials(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(BlobUnavailable, match=f"{url} cannot be reached") as caught:
        await S3Blobs(url, patience_s=0.3).put(tmp_path / "source")
    assert "not-for-the-log" not in str(caught.value)
    assert "somebody" not in str(caught.value)


async def test_keys_and_place_may_come_from_a_profile(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in environment:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text(
        f"[far]\naws_access_key_id = {environment['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {environment['AWS_SECRET_ACCESS_KEY']}\n"
        f"region = us-east-1\nendpoint_url = {environment['AWS_ENDPOINT_URL']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "far")
    (tmp_path / "source").write_bytes(b"abc")
    blob = await S3Blobs("s3://runs/by-profile").put(tmp_path / "source")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert await S3Blobs("s3://runs/by-profile").has(blob.digest)


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_are_said_to_be_the_matter(
    url: str, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        with pytest.raises(BlobUnavailable, match="refused to the credentials here") as caught:
            await S3Blobs(url, patience_s=1).has("0" * 64)
    assert "not-for-the-log" not in str(caught.value)


async def test_a_store_that_was_used_lets_its_librarys_threads_settle_when_it_is_closed(
    url: str,
) -> None:
    """Without it about one process in ten that ended right behind an answer was aborted."""
    took = []
    for asked in (False, True):
        store = S3Blobs(url)
        if asked:
            assert not await store.has("0" * 64)
        began = time.monotonic()
        await store.close()
        took.append(time.monotonic() - began)
    assert took[0] < SETTLE_S <= took[1] + 0.01


async def test_a_variable_that_cannot_be_read_is_told_in_one_line(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "perhaps")
    with pytest.raises(AccessMissing, match="is not what it can be") as caught:
        await S3Blobs(url).ready()
    assert "\n" not in str(caught.value)
