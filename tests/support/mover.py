"""A process of its own that puts or gets one blob: `python -m tests.support.mover URL RUN put PATH`
or `... get PATH DIGEST`, with `--rate BYTES_PER_S` capped. It says each chunk, and at the end how
far its memory grew over what it was when it began."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from eventlog.pace import Pace


async def main(url: str, run: str, what: str, path: Path, rest: list[str]) -> None:
    pace = Pace(float(rest[rest.index("--rate") + 1])) if "--rate" in rest else None
    async with await connect(url, name="mover") as connection:
        blobs = await JetStreamBlobs.open(connection, run, pace=pace)
        before = _memory("VmRSS")

        def report(done: int, total: int) -> None:
            print(f"{done} of {total}", flush=True)

        if what == "put":
            await blobs.put(path, report)
        else:
            await blobs.get(rest[0], path, report)
        print(f"grew {_memory('VmHWM') - before}", flush=True)


def _memory(name: str) -> int:
    """Bytes, as Linux counts them for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5:]))
