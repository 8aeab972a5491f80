"""What is taken as a broker's URL, and what is said of everything else."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from broker.connection import connect
from broker.errors import BrokerUnreachable, BrokerUrlInvalid
from broker.server import BrokerServer
from broker.urls import servers


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("nats://127.0.0.1:4333", "nats://127.0.0.1:4333"),
        ("127.0.0.1:4333", "nats://127.0.0.1:4333"),
        ("login.centre.example", "nats://login.centre.example:4222"),
        ("nats://node_7", "nats://node_7:4222"),
        ("NATS://Host:1/", "nats://host:1"),
        ("tls://host", "tls://host:4222"),
        ("ws://host", "ws://host:80"),
        ("wss://host/way", "wss://host:443/way"),
        ("nats://[::1]:7", "nats://[::1]:7"),
        ("nats://[fe80::1%eth0]", "nats://[fe80::1%eth0]:4222"),
        (" nats://a:1 , b ", "nats://a:1,nats://b:4222"),
        ("nats://key:s3:c@ret@host", "nats://key:s3:c@ret@host:4222"),
    ],
)
def test_what_is_left_out_is_nats_and_the_port_of_the_scheme(text: str, urls: str) -> None:
    assert ",".join(servers(text).urls) == urls
    assert servers(text).shown == urls.replace("key:s3:c@ret", "***")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://host:4222", "not http; write nats://host:4222"),
        ("https://host/nats", "not https; write nats://host/nats"),
        ("a:1,ftp://", "not ftp; write nats://HOST:PORT"),
        ("://x", "a broker speaks nats, tls, ws, wss, not ; write nats://x"),
        (" ", "it names no host; write nats://HOST:PORT"),
        ("nats://", "it names no host"),
        (":4222", "it names no host"),
        ("nats://a:1,,b", "it names no host"),
        ("4222", "a port alone is no host; write nats://HOST:4222"),
        ("nats://1.2.3:4", "'1.2.3' is no host"),
        ("nats://two words:1", "'two words' is no host"),
        ("nats://h:99999", "a port is a number up to 65535"),
        ("nats://h:port", "a port is a number up to 65535"),
        ("nats:h:1", "a port is a number up to 65535"),
        ("nats://h:0", "a port is a number from 1 to 65535"),
        ("nats://[::1", "invalid ipv6 url"),
        ("nats://h:1/path", "nothing may follow its port"),
        ("nats://h:1?x=1", "nothing may follow its port"),
        ("nats://a,wss://b", "cannot be mixed"),
    ],
)
def test_what_is_no_url_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(BrokerUrlInvalid) as caught:
        servers(text)
    assert says in str(caught.value) and "; write " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://me:secret@h:1", "nats://a,x://:secret@h", "nats://secret@h:0"]
)
def test_a_refusal_repeats_no_password(text: str) -> None:
    with pytest.raises(BrokerUrlInvalid) as caught:
        servers(text)
    assert "secret" not in str(caught.value) and "***@h" in str(caught.value)


async def test_nobody_who_asks_for_tls_talks_in_the_clear(broker: BrokerServer) -> None:
    url = broker.url.replace("nats://", "tls://me:secret@")
    with pytest.raises(BrokerUnreachable, match="speaks no TLS") as caught:
        await connect(url, name="tests")
    assert "secret" not in str(caught.value)


async def test_a_certificate_that_nothing_here_trusts_is_said_to_be_the_matter(
    tmp_path: Path,
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    made = subprocess.run(
        [*make, "-keyout", key, "-out", certificate], capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required": true, "max_payload": 1}\r\n')
        with contextlib.suppress(OSError):
            await writer.start_tls(context)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            BrokerUnreachable, match="its certificate is not trusted here: self"
        ) as why:
            await connect(f"tls://127.0.0.1:{port}", name="tests")
    assert "--creds" in str(why.value) and "start one" not in str(why.value)


async def test_a_host_that_nobody_knows_is_said_to_be_the_matter() -> None:
    with pytest.raises(BrokerUnreachable, match="its host is not known here"):
        await connect("nats://nowhere.invalid", name="tests")
