"""`atoll doctor`: what it finds on a real broker, a slow link, a foreign certificate, a network
filesystem."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from broker.connection import connect
from broker.jetstream_log import JetStreamLog
from broker.probe import probe
from broker.server import BrokerServer
from broker.settings import ServerSettings
from ops import home
from ops.cli import run
from ops.doctor import link, machine
from ops.filesystems import Filesystem, filesystem
from ops.home import Home, HomeUnfit
from tests.ops.watching import append, at_work, records
from tests.support.secured import secured
from tests.support.tap import tapped
from tests.support.tunnel import tunnel

ROOT = Path(__file__).parents[2]
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:44 / /home rw - nfs4 server:/home rw,vers=4.2
31 22 0:45 / /scratch/my\\040data rw - lustre 10.0.0.1@tcp:/lustre rw
32 30 8:2 / /home/local rw - xfs /dev/sdb rw
33 22 0:46 / /homely rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind", "network"),
    [
        ("/", "ext4", False),
        ("/home/me/.atoll", "nfs4", True),
        ("/home/local/x", "xfs", False),
        ("/homely", "tmpfs", False),
        ("/scratch/my data/x", "lustre", True),
    ],
)
def test_the_filesystem_of_a_folder_is_that_of_the_mount_above_it(folder, kind, network) -> None:
    class Where(type(Path())):  # type: ignore[misc]
        """A folder that exists and is what it says."""

        def exists(self, **_: bool) -> bool:
            return True

        def resolve(self, strict: bool = False) -> Path:
            return self

    found = filesystem(Where(folder), MOUNTS)
    assert (found.kind, found.is_network) == (kind, network)


def test_the_kernel_is_asked_and_a_folder_that_is_not_there_yet_is_placed(tmp_path: Path) -> None:
    there = filesystem(tmp_path)
    assert there.kind != "unknown"
    assert filesystem(tmp_path / "not" / "yet") == there
    assert filesystem(tmp_path, "nonsense") == Filesystem("unknown", "")


def test_databases_are_refused_on_a_network_filesystem(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(home, "filesystem", lambda _: Filesystem("nfs4", "/home"))
    for ask in (lambda: Home(tmp_path).projection("r", "x"), lambda: Home(tmp_path).site("r", "a")):
        with pytest.raises(HomeUnfit, match="is on nfs4, a network filesystem"):
            ask()
    assert Home(tmp_path).export("r").parent.is_dir()  # files are no databases
    finding = machine.disk(tmp_path, Filesystem("nfs4", "/home"))
    assert finding.level == "bad" and "ATOLL_HOME" in finding.todo
    assert machine.disk(tmp_path, Filesystem("tmpfs", "/x")).level == "note"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerServer]:
    """A broker on an empty home, with the run `tests`."""
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATOLL_BROKER", raising=False)
    with BrokerServer(ServerSettings(Home.find().broker)) as server:
        asyncio.run(append(server.url, records(at_work()), create=True))
        yield server


async def last(url: str) -> int:
    async with await connect(url, name="tests") as connection:
        log = await JetStreamLog.open(connection, "tests")
        try:
            return await log.last_sequence()
        finally:
            await log.close()


def test_of_a_healthy_run_every_check_is_told_and_nothing_is_written(server, capsys) -> None:
    before = asyncio.run(last(server.url))
    assert run(["doctor", "tests", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = {one["check"]: one for one in told["findings"]}
    here, there = (
        ("versions", "disk", "files", "device", "slurm"),
        ("reach", "clock", "permissions", "run"),
    )
    assert tuple(found) == (*here, *there, "rates", "exchange")
    assert told["ok"] and all(one["what"] and one["why"] for one in found.values())
    assert all(one["todo"] for one in found.values() if one["level"] != "good")
    assert abs(found["clock"]["measured"]["offset_s"]) < 5  # one machine
    assert found["run"]["measured"]["config"]["name"] == "tests"
    assert found["rates"]["measured"]["up_bytes_per_s"] > 0
    assert asyncio.run(last(server.url)) == before


def test_every_check_of_a_run_stands_apart_from_what_it_says(server, capsys) -> None:
    assert run(["doctor", "tests"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    start = max(len(line.split()[1]) for line in lines) + 6  # behind a sign of five columns
    assert all(line[start - 1] == " " != line[start] for line in lines)


def test_what_cannot_be_reached_is_a_finding_and_exit_code_1(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path))
    assert run(["doctor", "--broker", "nats://127.0.0.1:9"]) == 1
    out = capsys.readouterr().out
    assert "BAD  reach" in out and "no broker answers at nats://127.0.0.1:9" in out
    assert "do:  mend that first" in out
    assert run(["doctor", "tests", "--creds", str(tmp_path / "none")]) == 1
    assert "BAD  reach" in capsys.readouterr().out  # no fault of the run's


def test_an_unknown_run_is_a_finding(server: BrokerServer, capsys) -> None:
    assert run(["doctor", "nosuch", "--json"]) == 1
    bad = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["level"] == "bad"]
    assert [one["check"] for one in bad] == ["run"] and "no run 'nosuch'" in bad[0]["what"]


@pytest.mark.parametrize(
    ("up", "down", "level", "seconds"),
    [(1000.0, 1000.0, "good", 0.128), (0.1, None, "note", 640), (0.01, 1.0, "bad", 6464)],
)
def test_an_exchange_is_a_delta_up_and_an_update_down(up, down, level, seconds) -> None:
    view = at_work().view
    delta, update = 64, 64
    view.db.execute("UPDATE deltas SET num_bytes = ?", (delta,))
    view.db.execute("UPDATE versions SET update_bytes = ?", (update,))
    finding = link.exchange(view, up, down)
    assert finding.level == level and finding.measured is not None
    assert finding.measured["seconds"] == pytest.approx(seconds)


@asynccontextmanager
async def throttled(url: str, bytes_per_s: float) -> AsyncIterator[str]:
    """A way to the broker that lets through so many bytes a second from clients."""
    parts = urlsplit(url)

    async def up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(16384):
            await asyncio.sleep(len(data) / bytes_per_s)
            writer.write(data)
            await writer.drain()

    async def down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection(parts.hostname, parts.port)
        tasks = [
            asyncio.ensure_future(up(reader, far[1])),
            asyncio.ensure_future(down(far[0], writer)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (writer, far[1]):
            end.transport.abort()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_rate_up_is_that_of_the_link(tmp_path: Path) -> None:
    with BrokerServer(ServerSettings(tmp_path / "store")) as server:
        async with (
            throttled(server.url, 2e6) as url,
            await connect(url, name="tests") as connection,
        ):
            measured = await probe(connection, None)
    assert 0 < measured.up_bytes_per_s < 2.4e6  # load can only slow it
    assert measured.clock_offset_s is None and measured.round_trip_s > 0


async def test_a_broker_with_tls_far_away_is_measured(tmp_path: Path) -> None:
    with secured(tmp_path) as broker:
        known = broker.credentials("auditor")
        async with (
            tapped(known.urls, 0.1) as far,
            await connect(far.url, name="tests", identity=known) as connection,
        ):
            measured = await probe(connection, None)
    assert measured.round_trip_s >= 0.2 and measured.up_bytes_per_s > 0


class Secured:
    """A server that greets as NATS does and then speaks TLS, with a certificate of its own."""

    def __init__(self, folder: Path) -> None:
        key, self.certificate = folder / "key.pem", folder / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "10",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
             "-keyout", key, "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.certificate, key)
        self.sock = socket.create_server(("localhost", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"tls://localhost:{self.sock.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            client.sendall(b'INFO {"tls_required":true}\r\n')
            try:
                with self.context.wrap_socket(client, server_side=True) as secured:
                    secured.recv(1)
            except OSError:
                client.close()


def test_a_certificate_is_trusted_or_not_and_its_end_is_told(tmp_path, monkeypatch) -> None:
    server = Secured(tmp_path)
    try:
        (foreign,) = link.tls(server.url)
        assert foreign.level == "bad" and "certificate" in foreign.what
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        (trusted,) = link.tls(server.url)
        assert trusted.level == "note" and trusted.todo == "renew it"  # ten days are few
        assert trusted.measured is not None and 9 < trusted.measured["left_s"] / 86400 <= 10
        assert list(link.tls("nats://localhost:1")) == []
    finally:
        server.sock.close()


async def test_a_certificate_is_looked_at_by_the_way_that_websockets_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured(tmp_path, websocket=True) as broker:
        known = broker.add("site", "alpha", websocket=True)
        async with tunnel() as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            for name in ("NO_PROXY", "no_proxy"):
                monkeypatch.setenv(name, "")
            (found,) = await asyncio.to_thread(lambda: list(link.tls(known.urls, known.tls())))
    assert found.level == "good"
    assert proxy.asked == [known.urls.removeprefix("wss://")]


def test_who_hangs_up_at_once_as_a_tunnel_without_its_far_end_does_is_said_to_be_away() -> None:
    with socket.create_server(("localhost", 0)) as sock:
        hanging_up = threading.Thread(target=lambda: sock.accept()[0].close(), daemon=True)
        hanging_up.start()
        (found,) = link.tls(f"tls://localhost:{sock.getsockname()[1]}")
        hanging_up.join()
    assert found.level == "bad" and "hung up" in found.what
    assert "tunnel" in found.todo and "CA" not in found.todo


@pytest.mark.parametrize("role", ["site", "operator", "auditor"])
def test_of_a_broker_with_keys_who_is_let_in_finds_nothing_wrong(
    role: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    with secured(tmp_path / "broker") as known:
        if role == "site":
            known.add("site", "main")
        code = run(["doctor", "--json", "--creds", str(known.file(role))])
    findings = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert [one for one in findings.values() if one["level"] == "bad"] == []
    assert code == 0
    assert findings["tls"]["measured"]["left_s"] > 800 * 86400
    assert findings["rates"]["measured"]["up_bytes_per_s"] > 0
