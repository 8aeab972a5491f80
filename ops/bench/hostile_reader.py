"""Folds a run's whole log as a coordinator does, in a process of its own:
`python -m ops.bench.hostile_reader CREDENTIALS RUN FILE`, FILE to say how far it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from broker.connection import connect
from broker.credentials import Credentials
from broker.jetstream_log import JetStreamLog
from eventlog.projector import Projection
from leases.table import LeaseTable

_BATCH = 500


async def main(file: Path, run: str, said: Path) -> None:
    """Until it is ended."""
    identity = Credentials.read(file)
    async with await connect(identity.urls, name="reader", identity=identity) as connection:
        log = await JetStreamLog.open(connection, run)
        with Projection(said.with_suffix(".sqlite"), [LeaseTable()], run) as projection:
            _say(said, 0)
            async for records in log.follow(0):
                for at in range(0, len(records), _BATCH):
                    projection.apply(records[at : at + _BATCH])
                _say(said, projection.position.sequence)


def _say(said: Path, position: int) -> None:
    part = said.with_suffix(".part")
    part.write_text(str(position))
    os.replace(part, said)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
