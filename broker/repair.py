"""A damaged log is put back from a copy, with every sequence and time as it was (R19).

It is done while the broker is down, by a server of its own on loopback that nobody else can reach,
under the lock of the broker's folder: nobody reads what is not verified yet, nobody writes on it,
and no user of the broker needs the right to change a stream. The damaged files are kept.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from broker import holdings
from broker.api import ask, persist, stream_info
from broker.connection import Connection, connect
from broker.errors import ApiError, BrokerUnfit
from broker.jetstream_log import JetStreamLog
from broker.link import Link
from broker.production import STORE, USERS_FILE
from broker.server import BrokerServer, lock_folder
from broker.settings import ServerSettings
from broker.streams import (
    Config,
    check_config,
    create_stream,
    log_config,
    log_stream,
    mirror_config,
    mirror_stream,
)
from eventlog.chain import Record, extend, start
from eventlog.errors import LogDamaged, LogUnavailable, RunUnknown
from eventlog.export import to_end

_GLOBAL = "$G"  # the server's own account, where a broker without users keeps its streams
_COPIED_S = 600.0  # a million events take seconds
_CAUGHT_UP_S = 20.0
_ASIDE, STREAMS = "damaged", "streams"


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back: through which sequence, D there (hex), and where the damaged files are
    ('' where there were none any more)."""

    last_sequence: int
    log_digest: str
    aside: str


async def restore(folder: Path, run: str, known: list[Record], *, lose: bool = False) -> Restored:
    """Put the log of a run back from its mirror.

    `folder`: of the server that holds both, as `serve` is told. `known`: records that somebody has
    of this log, from the first on, such as an export's: the copy must hold each of them. `lose`:
    write off events that are known to have been there and are in no copy.

    Raises LockHeld while a broker runs there, RunUnknown where there is no mirror, LogDamaged where
    the copy is not whole or ends too early; then nothing has been changed.
    """
    with held_streams(folder) as streams:
        with served_apart(streams) as server:
            async with await connect(server.url, name="restore") as connection:
                last, digest = await _proven(connection, run, known)
        check_reach(folder, run, last, lose=lose)
        with _copied(folder, streams / STREAMS / mirror_stream(run)) as bench:
            with served_apart(bench) as server:
                async with await connect(server.url, name="restore") as connection:
                    await _make_anew(connection, run, last)
                    made = await JetStreamLog.open(connection, run)
                    if await digest_of(made) != (last, digest):
                        raise LogDamaged(1, "what was made is not what the copy holds; try again")
            aside = put_in_place(folder, streams, bench / STREAMS / log_stream(run))
    return Restored(last, digest, aside)


def check_apart(folder: Path) -> list[str]:
    """Whether the logs of a broker's folder are what they were, before anybody can reach them: a
    server that lets somebody in has sequences that it lost given to other events. What is to be
    said of second copies. Raises LockHeld, LogDamaged, BrokerUnfit, OSError."""
    try:
        with held_streams(folder) as streams, served_apart(streams) as server:
            return holdings.check(folder, holdings.look(server.monitor_url))
    except RunUnknown:
        return holdings.check(folder, {}) if holdings.read(folder) else []  # it held something


async def drop_copy(folder: Path, run: str) -> Restored:
    """Move the second copy of a run, which is damaged, out of the way, so that `atoll run mirror`
    makes another: of a log that is whole itself, and ends nowhere before it did. Raises what
    `restore` raises; then nothing has been changed."""
    with held_streams(folder) as streams:
        with served_apart(streams) as server:
            async with await connect(server.url, name="restore") as connection:
                last, digest = await digest_of(await JetStreamLog.open(connection, run))
        check_reach(folder, run, last, lose=False)
        aside = _set_aside(folder, streams, mirror_stream(run))
        holdings.forget(folder, [mirror_stream(run)])
    return Restored(last, digest, aside)


def check_reach(folder: Path, run: str, last: int, *, lose: bool) -> None:
    """Raises LogDamaged where a copy that ends at `last` lacks what the log is known to have held,
    and nobody wrote that off."""
    before = holdings.read(folder).get(log_stream(run), 0)
    if last < before and not lose:
        raise LogDamaged(
            last + 1,
            f"the copy ends at {last}, and the log went on to {before}: restore from one that "
            "has them, or write them off with --lose",
        )


def put_in_place(folder: Path, streams: Path, made: Path) -> str:
    """Move the stream that was made into the store, which is held; where the damaged files are."""
    aside = _set_aside(folder, streams, made.name)
    (streams / STREAMS).mkdir(exist_ok=True)
    shutil.move(made, streams / STREAMS / made.name)
    holdings.forget(folder, [made.name])
    return aside


async def _proven(connection: Connection, run: str, known: list[Record]) -> tuple[int, str]:
    """The mirror's last sequence and D there, once it is contiguous and holds what is known."""
    await _caught_up(connection, run)
    try:
        mirror = await JetStreamLog.mirror(connection, run)
    except RunUnknown as error:
        raise RunUnknown(
            f"run {run} has no second copy on this broker; `atoll broker restore {run} --from "
            "FILE` puts it back from a backup (docs/damage.md)"
        ) from error
    return await digest_of(mirror, known)


async def digest_of(log: JetStreamLog, known: Iterable[Record] = ()) -> tuple[int, str]:
    """(last sequence, D there in hex) of a log, which is closed. Raises LogDamaged where it lacks
    one of the records that are known, from the first on."""
    digest, last, proofs = start(log.run), 0, iter(known)
    async for records in to_end(log):
        for record in records:
            if (proof := next(proofs, record)) != record:
                what = "the copy has another event there than the file that proves it"
                raise LogDamaged(proof.sequence, what)
            digest, last = extend(digest, record), record.sequence
    await log.close()
    for proof in proofs:
        what = f"the copy ends at {last}; the file that proves it goes on"
        raise LogDamaged(proof.sequence, what)
    return last, digest.hex()


async def _caught_up(connection: Connection, run: str) -> None:
    """Let the mirror take what the log still gives it; a damaged one may give nothing."""
    end = time.monotonic() + _CAUGHT_UP_S
    while time.monotonic() < end:
        ends = [await _last(connection, name) for name in (log_stream(run), mirror_stream(run))]
        if None in ends or ends[1] >= ends[0]:  # type: ignore[operator]
            return
        await asyncio.sleep(0.2)


async def _last(connection: Connection, name: str) -> int | None:
    async def look() -> int | None:
        try:
            info = await stream_info(connection.control, name)
        except ApiError:
            return None
        return int(info["state"]["last_seq"])

    return await persist(
        look, _CAUGHT_UP_S, LogUnavailable, f"the end of stream {name} cannot be told"
    )


async def _make_anew(connection: Connection, run: str, last: int) -> None:
    """Where the copy stands alone: let it be a stream of its own, make the log's as its mirror,
    which keeps sequences and times, and once all is there let that be a stream of its own as well
    (nats-server 2.12: a mirror is promoted by an update). In between no two mirror each other."""
    config, link = log_config(run), connection.control
    await _promote(link, mirror_config(run) | {"mirror": None, "subjects": [f"copy.{run}"]})
    made = config | {
        "subjects": None,
        "mirror": {"name": mirror_stream(run)},
        "allow_atomic": False,
    }
    del made["duplicate_window"]  # a mirror has none
    await create_stream(link, made)
    end = time.monotonic() + _COPIED_S
    while (await _last(connection, config["name"]) or 0) < last:
        if time.monotonic() > end:
            raise BrokerUnfit(f"copying run {run} took more than {_COPIED_S:g} s; try again")
        await asyncio.sleep(0.05)
    check_config(await _promote(link, config), config)


async def _promote(link: Link, config: Config) -> Config:
    """Make a mirror a stream of its own; the configuration it then has. Raises BrokerUnfit."""
    body = {key: value for key, value in config.items() if value is not None}
    try:
        answer = await ask(link, f"STREAM.UPDATE.{config['name']}", {**body, "num_replicas": 1})
    except ApiError as error:
        raise BrokerUnfit(f"the copy cannot be made a log again: {error}") from error
    found: Config = answer["config"]
    return found


@contextmanager
def _copied(folder: Path, stream: Path) -> Iterator[Path]:
    """A place on the same filesystem with a copy of one stream's files, removed at the end: the
    copy that saves the log is only ever read."""
    bench = folder / ".restore"
    shutil.rmtree(bench, ignore_errors=True)
    try:
        shutil.copytree(stream, bench / STREAMS / stream.name)
        yield bench
    finally:
        shutil.rmtree(bench, ignore_errors=True)


@contextmanager
def held_streams(folder: Path, *, create: bool = False) -> Iterator[Path]:
    """The folder's lock, and the account's folder within its store that holds the streams."""
    found = streams_of(folder, create=create)
    lock = lock_folder(ServerSettings(folder))
    try:
        yield found
    finally:
        os.close(lock)


def streams_of(folder: Path, *, create: bool = False) -> Path:
    """The account's folder, within the store of a broker, that holds its streams. `create`: make
    it where a broker's folder has lost its store, or never had one. Raises RunUnknown."""
    places = (folder / "store" / "jetstream" / STORE, folder / "jetstream" / _GLOBAL)
    for place in places:
        if place.is_dir():
            return place
    settings = ServerSettings(folder)
    if create and settings.config_file.is_file():
        place = places[0] if (folder / USERS_FILE).is_file() else places[1]
        place.mkdir(parents=True)
        return place
    raise RunUnknown(f"{folder} is no folder of a broker that holds runs; give it as --dir")


@contextmanager
def served_apart(streams: Path) -> Iterator[BrokerServer]:
    """A server of our own on these streams, which stand in its account."""
    with TemporaryDirectory(prefix="atoll-restore-") as place:
        store = Path(place) / "jetstream"
        store.mkdir()
        (store / _GLOBAL).symlink_to(streams.resolve(), target_is_directory=True)
        with BrokerServer(ServerSettings(Path(place)), die_with_parent=True) as server:
            yield server


def _set_aside(folder: Path, streams: Path, name: str) -> str:
    """Move a stream's files out of the store; where they are now."""
    there = streams / STREAMS / name
    if not there.exists():
        return ""
    (folder / _ASIDE).mkdir(exist_ok=True)
    prefix = f"{name}-{time.strftime('%Y%m%dT%H%M%S')}-"
    target = mkdtemp(dir=folder / _ASIDE, prefix=prefix)  # two in one second are two
    there.replace(target)  # an empty folder gives way to another
    return target
