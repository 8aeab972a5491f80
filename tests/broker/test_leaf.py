"""A leaf node: lets its site's jobs in and nobody else, with what the broker grants that site."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Outgoing
from broker.connection import connect
from broker.credentials import Credentials
from broker.deployment import Deployment
from broker.errors import BrokerUnreachable, DeploymentInvalid, LinkDown, Refused
from broker.guard import FIRST_S, Watch
from broker.kick import connections
from broker.leaf import Leaf
from broker.node import node_settings
from broker.production import Shape
from broker.server import BrokerServer
from ops.cli import run
from tests.support.secured import Secured, free_ports, secured

INFO = "$JS.API.STREAM.INFO.ATOLL_MINE"
WAIT_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path / "broker", leaves=True) as made:
        yield made


def write(broker: Secured, folder: Path, site: Credentials) -> tuple[Credentials, BrokerServer]:
    """A leaf node for a site; what its jobs use."""
    port, monitor_port = free_ports(2)
    leaf = Leaf("localhost", port, monitor_port, broker.deployment.shape.leaf_port)
    jobs = Credentials.read(leaf.write(folder, site))
    settings = node_settings(folder)
    assert settings is not None and not Watch.is_due(settings)
    return jobs, BrokerServer(settings, die_with_parent=True)


async def asked(identity: Credentials, subject: str = INFO, urls: str = "") -> bytes:
    """The answer to one request. Raises LinkDown where none comes."""
    async with await connect(urls or identity.urls, name="job", identity=identity) as connection:
        return (await connection.control.request(Outgoing(subject, b""), timeout_s=2)).data


async def answered(identity: Credentials) -> bytes:
    """The same, once the leaf node has found the broker."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return await asked(identity)
        except LinkDown:
            assert time.monotonic() < until
            await asyncio.sleep(0.1)


async def test_permission_by_a_leaf_is_that_of_its_site_and_of_nobody_else(
    broker: Secured, tmp_path: Path
) -> None:
    alpha = broker.add("site", "alpha", ("mine",), leaf=True)
    beta = broker.add("site", "beta", ("mine",), leaf=True)
    jobs, server = write(broker, tmp_path / "leaf", alpha)
    with server:
        assert json.loads(await answered(jobs))["error"]["code"] == 404  # JetStream's own words
        for refused in (
            "$JS.API.STREAM.INFO.ATOLL_THEIRS",
            "$JS.API.STREAM.DELETE.ATOLL_MINE",
            "$JS.API.STREAM.CREATE.ATOLL_MINE",
            "atoll.mine.ev.coordinator",
            "atoll.mine.ev.site.beta",
        ):
            with pytest.raises(LinkDown):
                await asked(jobs, refused)
        with pytest.raises(BrokerUnreachable, match="not trusted"):
            await asked(beta, urls=jobs.urls)
        foreign = Credentials("site", "beta", jobs.urls, beta.seed, jobs.ca)
        with pytest.raises(Refused):
            await asked(foreign)
    secret = [path for path in (tmp_path / "leaf").iterdir() if alpha.seed in path.read_text()]
    assert {path.name for path in secret} == {"nats-server.conf", "site-alpha.creds"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)


async def test_permission_to_come_by_a_leaf_is_given_by_name(
    broker: Secured, tmp_path: Path
) -> None:
    jobs, server = write(broker, tmp_path / "leaf", broker.add("site", "gamma"))
    with server:
        log, until = tmp_path / "leaf" / "nats-server.log", time.monotonic() + WAIT_S
        while "Authorization Violation" not in log.read_text():
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        with pytest.raises(LinkDown):
            await asked(jobs)
    plain = Deployment(tmp_path / "plain")
    plain.configure(Shape({"atoll": "broker.example.org"}))
    with pytest.raises(DeploymentInvalid, match="--leaf-port 7422"):
        plain.issue("site", "alpha", leaf=True)


def test_whoever_floods_by_a_leaf_is_judged(broker: Secured, tmp_path: Path) -> None:
    jobs, server = write(broker, tmp_path / "leaf", broker.add("site", "alpha", leaf=True))
    until = time.monotonic() + WAIT_S
    with server, contextlib.closing(Watch(broker.server)) as watch:
        while not leaves(broker):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert watch.look(0.0) == []
        flood(jobs, 3000)
        said = watch.look(1.0)
        assert len(said) == 1 and said[0].startswith("site-alpha floods")
        assert jobs.key.public not in users(broker), "it is let in no longer"
        while leaves(broker):
            assert time.monotonic() < until
            watch.look(2.0)
            time.sleep(0.1)
        watch.look(1.0 + FIRST_S + 1)
        assert jobs.key.public in users(broker), "its time is over"


def leaves(broker: Secured) -> list[str]:
    """Keys of the leaf nodes that are connected."""
    found = connections(broker.server.monitor_url)
    return [str(one["authorized_user"]) for one in found if one.get("kind") == "Leafnode"]


def users(broker: Secured) -> str:
    return (broker.deployment.node("atoll") / "users.conf").read_text()


def flood(jobs: Credentials, num: int) -> None:
    """So many events for a run that there is not."""

    async def publish() -> None:
        async with await connect(jobs.urls, name="job", identity=jobs) as connection:
            session = await connection.control.session(5.0)
            await session.publish(*[Outgoing("atoll.mine.ev.site.alpha", b"")] * num)
            with contextlib.suppress(LinkDown):  # answered after all of them, by nobody
                await session.request(Outgoing("atoll.mine.ev.site.alpha", b""), timeout_s=1)

    asyncio.run(publish())


async def test_permission_that_is_revoked_ends_a_leaf_at_once(
    broker: Secured, tmp_path: Path
) -> None:
    jobs, server = write(broker, tmp_path / "leaf", broker.add("site", "alpha", leaf=True))
    with server:
        assert await answered(jobs)
        root = str(broker.deployment.root)
        revoked = await asyncio.to_thread(run, ["broker", "revoke-site", "alpha", "--dir", root])
        assert revoked == 0
        with pytest.raises(LinkDown):
            await asked(jobs)


def test_the_command_says_what_credentials_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = Deployment(tmp_path / "broker")
    deployment.configure(Shape({"atoll": "broker.example.org"}, leaf_port=7422))
    good = deployment.issue("site", "alpha", leaf=True)
    folder = str(tmp_path / "leaf")
    arguments = ["broker", "leaf", folder, "--host", "login1", "--json", "--creds"]
    assert run([*arguments, str(good)]) == 0
    made = Credentials.read(Path(json.loads(capsys.readouterr().out)["credentials"]))
    assert made.urls == "tls://login1:4222" and made.seed == Credentials.read(good).seed
    conf = (tmp_path / "leaf" / "nats-server.conf").read_text()
    assert '"tls://broker.example.org:7422"' in conf
    operator = deployment.root / "credentials" / "operator-main.creds"
    assert run([*arguments, str(operator)]) == 3
    assert "add-site --leaf" in capsys.readouterr().err
