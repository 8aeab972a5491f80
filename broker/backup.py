"""A backup of a run's log, taken while the broker serves it, and put back from (R19).

nats-server has a snapshot of its own, but whoever asks for one says where on the streams' side its
pieces go, and could have them land in a stream (ADR-0040): so nobody may. A log only ever grows at
its end, and so do the files that hold it. A copy of these files is the log up to some event, and a
server of our own that reads the copy says up to which: an event that was torn by the copying is its
end, and whatever else is wrong with it is seen then and there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from broker import holdings
from broker.connection import connect
from broker.jetstream_log import JetStreamLog
from broker.repair import (
    STREAMS,
    Restored,
    check_reach,
    digest_of,
    held_streams,
    put_in_place,
    served_apart,
    streams_of,
)
from broker.server import read_address
from broker.streams import blob_config, blob_stream, create_stream, log_stream
from eventlog.chain import Record
from eventlog.dir_blobs import sync_directory
from eventlog.errors import LogDamaged, RunUnknown

_CARD = "backup.json"
_SETTLED_S = 10.0  # a place that is younger may be about to be locked
# Of a stream: its configuration, and its messages. The server makes its index anew.
_FILES = re.compile(r"meta\.(inf|sum)|msgs/[0-9]+\.blk")


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup holds: every event of a run through `last_sequence`; D there, in hex."""

    run: str
    last_sequence: int
    log_digest: str


async def back_up(folder: Path, run: str, target: Path) -> Backup:
    """Write the log of a run to `target`, which appears whole or not at all. `folder`: of the
    server that holds it, whether that runs or not.

    Raises RunUnknown, LogDamaged where the store is damaged, OSError.
    """
    stream = streams_of(folder) / STREAMS / log_stream(run)
    if not stream.is_dir():
        raise RunUnknown(f"the broker of {folder} has no run {run}")
    known = _known(folder, log_stream(run))
    with _bench(target.parent) as bench:
        for name in sorted(_names(stream)):
            copy = bench / STREAMS / stream.name / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stream / name, copy)
        found = Backup(run, *await _read(bench, run))
        if found.last_sequence < known:
            what = f"what is stored ends at {found.last_sequence}, and the log went on to {known}"
            raise LogDamaged(found.last_sequence + 1, what)
        _pack(bench, stream.name, found, target)
    return found


async def restore_backup(
    folder: Path, run: str, backup: Path, known: list[Record], *, lose: bool = False
) -> Restored:
    """Put the log of a run back from a backup; otherwise as `broker.repair.restore`. A backup that
    is damaged itself, or of another run, is LogDamaged; nothing has been changed then. Where the
    run's stream of blobs is gone as well there is one again, without any: a log alone is no run."""
    with held_streams(folder, create=True) as streams, _bench(folder) as bench:
        said = _unpack(backup, run, bench)
        last, digest = await _read(bench, run, known)
        if (last, digest) != (said.last_sequence, said.log_digest):
            what = f"{backup} is damaged: it held {said.last_sequence} events, and gives {last}"
            raise LogDamaged(min(last + 1, said.last_sequence), what)
        check_reach(folder, run, last, lose=lose)
        blobs = bench / STREAMS / blob_stream(run)
        if not (streams / STREAMS / blobs.name).exists():
            with served_apart(bench) as server:
                async with await connect(server.url, name="backup") as connection:
                    await create_stream(connection.control, blob_config(run))
            put_in_place(folder, streams, blobs)
        aside = put_in_place(folder, streams, bench / STREAMS / log_stream(run))
    return Restored(last, digest, aside)


async def _read(streams: Path, run: str, known: list[Record] | None = None) -> tuple[int, str]:
    """What a server makes of these files: (last sequence, D there)."""
    with served_apart(streams) as server:
        async with await connect(server.url, name="backup") as connection:
            return await digest_of(await JetStreamLog.open(connection, run), known or [])


def _known(folder: Path, stream: str) -> int:
    """Up to where the log goes now, by the server that runs there; else as it was last seen."""
    if address := read_address(folder):
        try:
            held = holdings.look(f"http://127.0.0.1:{address['monitor_port']}").get(stream)
            if held is not None:
                return held.last
        except OSError:
            pass  # it does not run
    return holdings.read(folder).get(stream, 0)


def _names(stream: Path) -> Iterator[str]:
    for path in stream.rglob("*"):
        name = path.relative_to(stream).as_posix()
        if _FILES.fullmatch(name) and path.is_file():
            yield name


def _pack(bench: Path, stream: str, found: Backup, target: Path) -> None:
    """The files as one, with a card that says what they hold."""
    part = bench / "packed"
    (bench / _CARD).write_text(json.dumps(asdict(found)))
    with tarfile.open(part, "w") as archive:
        archive.add(bench / _CARD, _CARD)
        for name in sorted(_names(bench / STREAMS / stream)):
            archive.add(bench / STREAMS / stream / name, name)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
    sync_directory(target.parent)


def _unpack(backup: Path, run: str, bench: Path) -> Backup:
    """The stream's files, below `bench`; what the card says of them. Raises LogDamaged."""
    said = None
    try:
        with tarfile.open(backup, "r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is None or not (member.name == _CARD or _FILES.fullmatch(member.name)):
                    raise LogDamaged(1, f"{backup} holds {member.name!r}: it is no backup of a log")
                if member.name == _CARD:
                    said = Backup(**json.loads(content.read()))
                    continue
                path = bench / STREAMS / log_stream(run) / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, ValueError, TypeError, EOFError) as error:
        raise LogDamaged(1, f"{backup} is no backup of a log, or damaged: {error}") from error
    if said is None:
        raise LogDamaged(1, f"{backup} is no backup of a log: it does not say what it holds")
    if said.run != run:
        raise LogDamaged(1, f"{backup} is a backup of run {said.run}, not of {run}")
    return said


@contextmanager
def _bench(folder: Path) -> Iterator[Path]:
    """A place on the filesystem of `folder`, removed at the end; and with it what those left there
    whom something ended at once: each holds the lock of its own."""
    for left in folder.glob(".backup-????????"):
        if time.time() - left.stat().st_mtime > _SETTLED_S and (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    bench = folder / f".backup-{secrets.token_hex(4)}"
    bench.mkdir(mode=0o700)
    lock = _lock(bench)
    try:
        yield bench
    finally:
        shutil.rmtree(bench, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(bench: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None where somebody has it, or it is gone."""
    try:
        handle = os.open(bench, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
