"""The contract of blob stores, held by JetStream."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.api import ask, get_message
from broker.client import Outgoing
from broker.connection import Connection
from broker.jetstream_blobs import JetStreamBlobs
from broker.streams import blob_stream
from eventlog.blobs import CHUNK_BYTES
from eventlog.codec import pack
from eventlog.errors import BlobDamaged
from tests.contract.blob_contract import BlobContract, Damage


class TestJetStreamBlobs(BlobContract):
    @pytest.fixture
    async def store(self, connection: Connection, run_name: str) -> AsyncIterator[JetStreamBlobs]:
        store = await JetStreamBlobs.create(connection, run_name)
        yield store
        await store.close()
        await ask(connection.control, f"STREAM.DELETE.{blob_stream(run_name)}")

    @pytest.fixture
    def damage(self, connection: Connection, run_name: str) -> Damage:
        async def flip(digest: str) -> None:
            stream, subject = blob_stream(run_name), f"atoll.{run_name}.blob.{digest}.0.any"
            stored = await get_message(connection.control, stream, {"last_by_subj": subject})
            assert stored is not None
            body = bytearray(stored.data)
            body[len(body) // 2] ^= 1
            await ask(connection.control, f"STREAM.MSG.DELETE.{stream}", {"seq": stored.sequence})
            await connection.control.request(Outgoing(subject, bytes(body)))

        return flip

    @pytest.mark.parametrize(
        ("num_bytes", "chunk_sizes"),
        [
            (2**63, []),
            (2**64 - 1, [5]),
            (-1, []),
            ("5", [5]),
            (5.0, [5]),
            (None, []),
            (0, [5]),
            (5, []),
            (5, [4]),
            (5, [6]),
            (CHUNK_BYTES + 5, [CHUNK_BYTES + 1, 5]),
            (CHUNK_BYTES + 5, [5, CHUNK_BYTES]),
        ],
    )
    async def test_p8_chunks_that_are_no_file_are_damage_whatever_they_are_named(
        self, store: JetStreamBlobs, tmp_path: Path, num_bytes: object, chunk_sizes: list[int]
    ) -> None:
        """A site may store what it likes, under the digest that it would have as a blob."""
        bodies = [bytes([index + 1]) * size for index, size in enumerate(chunk_sizes)]
        digests = [hashlib.sha256(body).digest() for body in bodies]
        sized = isinstance(num_bytes, int) and num_bytes >= 0
        head = struct.pack(">IQ", CHUNK_BYTES, num_bytes if sized else 0)
        digest = hashlib.sha256(b"atoll blob 1\n" + head + b"".join(digests)).hexdigest()
        for index, body in enumerate(bodies):
            await store._write(digest, str(index), body, index)
        meta = pack({"num_bytes": num_bytes, "chunks": b"".join(digests)})
        await store._write(digest, "meta", meta, 0)
        with pytest.raises(BlobDamaged, match=digest):
            await store.get(digest, tmp_path / "target")
        assert not (tmp_path / "target").exists()
