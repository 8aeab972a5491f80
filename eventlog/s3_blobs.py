"""Blobs in object storage that speaks S3, for centres that have it (atoll[s3]).

Chunk i of a blob is the object `chunks/<digest>/<i>` under the run's prefix; its meta, written
last, is `blobs/<digest>`. Objects are written whole or not at all, and always with the bytes that
their name stands for, so writers do each other no harm. Region, endpoint and credentials come from
the environment, a profile or the machine's role (`eventlog/s3_access.py`); they are in no
configuration and in no log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from eventlog.blobs import is_digest
from eventlog.chunked import META, ChunkedBlobs
from eventlog.errors import BlobDamaged, BlobUnavailable, ExtraMissing
from eventlog.pace import Pace
from eventlog.s3_access import AccessMissing, access

SCHEME = "s3://"
PATIENCE_S = 120.0  # how long one request is tried, with back-off
SETTLE_S = 0.1
MAX_PART_BYTES = 8 << 20  # of one object: a chunk, or the list of chunks of a blob of 256 GiB


class S3Blobs(ChunkedBlobs):
    """A `BlobStore` at `s3://bucket/prefix`. Nothing is asked before the first call, which raises
    ExtraMissing where obstore is not installed, and AccessMissing."""

    def __init__(
        self, url: str, *, patience_s: float = PATIENCE_S, pace: Pace | None = None
    ) -> None:
        super().__init__(url, pace)
        self._url, self._patience_s = url, patience_s
        self._opened: Any = None

    async def ready(self) -> None:
        """Find out whether this process has what it takes, without asking the store itself. Raises
        ExtraMissing, AccessMissing."""
        await asyncio.to_thread(self._store)

    async def close(self) -> None:
        """See `BlobStore.close`. The library's threads let go of their last answers a moment after
        we have them, and abort the process if the interpreter ends in that moment."""
        await super().close()
        if self._opened is not None:
            await asyncio.sleep(SETTLE_S)

    async def has(self, digest: str) -> bool:
        """See `BlobStore.has`."""
        return is_digest(digest) and await self._size(_path(digest, META)) is not None

    async def digests(self) -> list[str]:
        """See `BlobStore.digests`."""
        return sorted(filter(is_digest, await self._names("blobs")))

    async def _parts(self, digest: str) -> set[str]:
        parts = await self._names(f"chunks/{digest}")
        return {*parts, META} if await self.has(digest) else set(parts)

    async def _all_parts(self) -> Iterable[tuple[str, str]]:
        chunks = await self._names("chunks")
        metas = await self._names("blobs")
        return [
            *((digest, part) for digest, _, part in (name.partition("/") for name in chunks)),
            *((digest, META) for digest in metas),
        ]

    async def _remove(self, digest: str) -> None:
        """Its meta first: half a blob is none."""
        await self._ask("delete_async", _path(digest, META))
        parts = await self._names(f"chunks/{digest}")
        if parts:
            await self._ask("delete_async", [_path(digest, part) for part in parts])

    async def _write(self, digest: str, part: str, data: bytes, number: int) -> None:
        await self._ask("put_async", _path(digest, part), data, use_multipart=False)

    async def _read(self, digest: str, part: str, number: int) -> bytes | None:
        answer = await self._ask("get_async", _path(digest, part))
        if answer is None:
            return None
        if (size := int(answer.meta["size"])) > MAX_PART_BYTES:
            what = f"{size:,} bytes lie where at most {MAX_PART_BYTES:,} can be"
            raise BlobDamaged(f"blob {digest}: {what} ({part}); restore the blob")
        try:
            return bytes(await answer.bytes_async())
        except Exception as error:
            raise self._unavailable(error) from error

    async def _size(self, path: str) -> int | None:
        found = await self._ask("head_async", path)
        return None if found is None else int(found["size"])

    async def _names(self, folder: str) -> list[str]:
        """Paths of the objects under a folder, relative to it."""
        store = self._store()
        import obstore

        names: list[str] = []
        try:
            async for page in obstore.list(store, prefix=folder):
                names += [str(found["path"]).partition(f"{folder}/")[2] for found in page]
        except Exception as error:
            raise self._unavailable(error) from error
        return names

    async def _ask(self, request: str, *arguments: Any, **options: Any) -> Any:
        """One request, which obstore tries again with back-off; None for what does not exist."""
        store = self._store()
        import obstore

        try:
            return await getattr(obstore, request)(store, *arguments, **options)
        except FileNotFoundError:
            return None
        except Exception as error:
            self._window.shrink()
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> BlobUnavailable:
        """The store's own first line: what follows in it is for developers of the library."""
        first = str(error).partition("\n")[0]
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
            return BlobUnavailable(
                f"the blobs at {self._url} are refused to the credentials here: {first}; give "
                "those that may get, put, delete and list there"
            )
        return BlobUnavailable(f"the blobs at {self._url} cannot be reached: {first}; try again")

    def _store(self) -> Any:
        self._check_open()
        if self._opened is None:
            try:
                from obstore.store import S3Store
            except ImportError as error:
                raise ExtraMissing(
                    f"this run keeps its blobs at {self._url}: install atoll[s3] (obstore)"
                ) from error
            options: Any = access(os.environ, self._url)
            endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
            patience = timedelta(seconds=self._patience_s)
            try:
                self._opened = S3Store.from_url(
                    self._url,
                    client_options={"allow_http": endpoint.startswith("http://"), "timeout": "60s"},
                    retry_config={"max_retries": 30, "retry_timeout": patience},
                    config=options,
                )
            except Exception as error:  # the library's own, of a variable that it cannot read
                first = str(error).partition("\n")[0]
                raise AccessMissing(
                    f"the blobs at {self._url}: a variable AWS_... is not what it can be: {first}"
                ) from error
        return self._opened


def _path(digest: str, part: str) -> str:
    return f"blobs/{digest}" if part == META else f"chunks/{digest}/{part}"
