"""The contract of blob stores, held by the one in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.blobs import BlobStore
from eventlog.dir_blobs import DirBlobs
from tests.contract.blob_contract import BlobContract, Damage


class TestDirBlobs(BlobContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> BlobStore:
        return DirBlobs(tmp_path / "blobs")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        async def flip(digest: str) -> None:
            path = tmp_path / "blobs" / digest
            body = bytearray(path.read_bytes())
            body[len(body) // 2] ^= 1
            path.write_bytes(body)

        return flip
