"""`atoll broker serve` on a damaged store, and `atoll broker restore`, as one meets them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from eventlog.export import to_end, write_export
from tests.support.history import RUN
from tests.support.scenario import Scenario, finish
from tests.support.server import Served

ROOT = Path(__file__).parents[2]
ATOLL = [sys.executable, "-m", "ops"]


def atoll(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ATOLL, *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


async def stored(url: str, run: Scenario, target: Path) -> None:
    """The scenario's events as a run of the broker, with a second copy, and an export."""
    async with await connect(url, name="writer") as connection:
        log = await JetStreamLog.create(connection, RUN)
        await JetStreamBlobs.create(connection, RUN)
        lasts: dict[str, int] = {}
        for record in finish(run.log.read(0)):
            expected = lasts.get(record.subject, 0)
            lasts[record.subject] = await log.append(record.subject, [record.payload], expected)
        mirror = await JetStreamLog.mirror(connection, RUN, create=True)
        async with asyncio.timeout(60):
            while await mirror.last_sequence() < run.last[0]:
                await asyncio.sleep(0.05)
        await write_export(RUN, to_end(log), target)


async def begun(folder: Path) -> tuple[Served, Scenario]:
    """A broker that holds a run at which two sites arrived; `export` in the folder holds it too."""
    served, run = Served(folder / "store"), Scenario(num_sequences=40)
    served.start()
    run.arrive("alpha", "beta")
    await stored(served.url, run, folder / "export")
    return served, run


def messages(served: Served) -> Path:
    """Where the server keeps the events."""
    return served.folder / "jetstream" / "$G" / "streams" / "ATOLL_TESTS" / "msgs"


def cut_short(*files: Path) -> None:
    """Each to half of its length, as a disk that has lost its end."""
    assert files
    for path in files:
        os.truncate(path, path.stat().st_size // 2)


async def test_r19_a_broker_with_a_log_that_lost_its_end_serves_nobody_until_it_is_restored(
    tmp_path: Path,
) -> None:
    export = tmp_path / "export"
    served, run = await begun(tmp_path)
    held = served.folder / "holdings.json"
    assert served.stop() == 0
    ends = {"ATOLL_TESTS": run.last[0], "ATOLL_TESTS_MIRROR": run.last[0]}
    assert json.loads(held.read_text()) == ends
    cut_short(*messages(served).glob("*.blk"), *messages(served).glob("index.db"))

    refused = atoll("broker", "serve", "--dir", str(served.folder), "--json")
    assert refused.returncode == 3, refused
    assert refused.stdout == ""
    assert "ATOLL_TESTS" in refused.stderr and "atoll broker restore tests" in refused.stderr
    assert refused.stderr.count("\n") == 1

    place = ("--dir", str(served.folder))
    done = atoll("broker", "restore", RUN, *place, "--proof", str(export), "--json")
    assert done.returncode == 0, done
    said = json.loads(done.stdout)
    assert said["last_sequence"] == run.last[0]
    assert Path(said["damaged_files"]).is_dir()
    env = {"ATOLL_HOME": str(tmp_path / "home")}
    again = Served(served.folder)
    again.start()
    try:
        same = atoll("log", "verify", RUN, str(export), ATOLL_BROKER=again.url, **env)
        assert same.returncode == 0, same
        mirror = atoll("log", "verify", RUN, "--mirror", ATOLL_BROKER=again.url, **env)
        assert mirror.returncode == 0, mirror
        audit = atoll("audit", RUN, "--json", ATOLL_BROKER=again.url, **env)
        assert json.loads(audit.stdout)["violations"] == [], audit
    finally:
        assert again.stop() == 0


async def test_r19_a_bit_that_flipped_is_named_and_put_right_from_a_backup(tmp_path: Path) -> None:
    """What docs/damage.md says, command by command."""
    file = tmp_path / "tests.backup"
    served, run = await begun(tmp_path)
    place = ("--dir", str(served.folder))
    saved = atoll("broker", "backup", RUN, str(file), *place, "--json")
    assert saved.returncode == 0, saved
    assert json.loads(saved.stdout)["last_sequence"] == run.last[0]
    assert served.stop() == 0
    (block,) = messages(served).glob("*.blk")
    data = bytearray(block.read_bytes())
    data[len(data) // 2] ^= 1
    block.write_bytes(data)
    broken = tmp_path / "broken.backup"
    broken.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused = atoll("broker", "restore", RUN, *place, "--from", str(broken))
    assert refused.returncode == 3 and refused.stderr.count("\n") == 1, refused
    proof = ("--proof", str(tmp_path / "export"))
    done = atoll("broker", "restore", RUN, *place, "--from", str(file), *proof, "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["log_digest"] == json.loads(saved.stdout)["log_digest"]
    again = Served(served.folder)
    again.start()
    env = {"ATOLL_HOME": str(tmp_path / "home"), "ATOLL_BROKER": again.url}
    try:
        audit = atoll("audit", RUN, "--json", **env)
        assert json.loads(audit.stdout)["violations"] == [], audit
    finally:
        assert again.stop() == 0


async def test_r19_while_a_shortened_log_is_looked_at_nobody_is_let_in(tmp_path: Path) -> None:
    """Who waits for the broker to come back would write where the events are that it lost."""
    served, _ = await begun(tmp_path)
    assert served.stop() == 0
    cut_short(*messages(served).glob("*.blk"), *messages(served).glob("index.db"))
    host, _, port = served.url.removeprefix("nats://").partition(":")
    starting = subprocess.Popen(
        [*ATOLL, "broker", "serve", "--dir", str(served.folder)], stderr=subprocess.DEVNULL
    )
    num_let_in = 0
    while starting.poll() is None:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.001)
            continue
        num_let_in += 1
        writer.close()
    assert (starting.returncode, num_let_in) == (3, 0)


async def test_r19_a_lost_store_is_put_back_from_a_backup(tmp_path: Path) -> None:
    """The disk was changed, and the folder with the configuration is there, or made anew."""
    file = tmp_path / "tests.backup"
    served, _ = await begun(tmp_path)
    saved = atoll("broker", "backup", RUN, str(file), "--dir", str(served.folder), "--json")
    assert served.stop() == 0
    shutil.rmtree(served.folder / "jetstream")
    configured = tmp_path / "configured"
    assert atoll("broker", "config", str(configured), "--host", "localhost").returncode == 0
    for folder in (served.folder, configured):
        done = atoll("broker", "restore", RUN, "--dir", str(folder), "--from", str(file), "--json")
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["log_digest"] == json.loads(saved.stdout)["log_digest"]
    assert (configured / "nodes/atoll/store/jetstream/STORE/streams/ATOLL_TESTS").is_dir()
    again = Served(served.folder)
    again.start()
    try:
        audit = atoll(
            "audit", RUN, "--json", ATOLL_BROKER=again.url, ATOLL_HOME=str(tmp_path / "home")
        )
        assert json.loads(audit.stdout)["violations"] == [], audit
    finally:
        assert again.stop() == 0
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    refused = atoll("broker", "restore", RUN, "--dir", str(nowhere), "--from", str(file))
    assert refused.returncode == 2 and not list(nowhere.iterdir()), refused


def test_a_cluster_says_what_to_do_in_place_of_a_backup(tmp_path: Path) -> None:
    three = "n1=127.0.0.1,n2=127.0.0.2,n3=127.0.0.3"
    assert atoll("broker", "config", str(tmp_path / "b"), "--cluster", three).returncode == 0
    node = str(tmp_path / "b" / "nodes" / "n1")
    refused = atoll("broker", "backup", RUN, str(tmp_path / "file"), "--dir", node)
    assert refused.returncode == 2 and "atoll run mirror" in refused.stderr, refused
    dropped = atoll("broker", "restore", RUN, "--dir", node, "--drop-mirror", "--lose")
    assert dropped.returncode == 2, dropped


async def test_r19_a_log_that_ends_before_its_second_copy_is_damaged(tmp_path: Path) -> None:
    """As after a folder that was put back without what was known of it."""
    served, run = await begun(tmp_path)
    assert served.stop() == 0
    cut_short(*messages(served).glob("*.blk"))
    (messages(served) / "index.db").unlink()
    (served.folder / "holdings.json").unlink()
    again = Served(served.folder)
    again.start()
    env = {"ATOLL_BROKER": again.url, "ATOLL_HOME": str(tmp_path / "home")}
    try:
        found = atoll("log", "verify", RUN, "--mirror", "--json", **env)
        assert found.returncode == 1, found
        said = json.loads(found.stdout)
        assert said["last_sequences"][0] < said["last_sequences"][1] == run.last[0]
        assert "lost its end" in said["problem"] and not said["ok"]
        behind = atoll("log", "verify", RUN, str(tmp_path / "export"), **env)
        assert behind.returncode == 0, "two copies of which one ends earlier are no contradiction"
    finally:
        assert again.stop() == 0
