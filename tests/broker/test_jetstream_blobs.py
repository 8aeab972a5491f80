"""The contract of blob stores, held by JetStream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.api import ask, get_message
from broker.client import Outgoing
from broker.connection import Connection
from broker.jetstream_blobs import JetStreamBlobs
from broker.streams import blob_stream
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
            stream, subject = blob_stream(run_name), f"atoll.{run_name}.blob.{digest}.0"
            stored = await get_message(connection.control, stream, {"last_by_subj": subject})
            assert stored is not None
            body = bytearray(stored.data)
            body[len(body) // 2] ^= 1
            await ask(connection.control, f"STREAM.MSG.DELETE.{stream}", {"seq": stored.sequence})
            await connection.control.request(Outgoing(subject, bytes(body)))

        return flip
