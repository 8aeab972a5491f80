"""A leaf node: lets its site's jobs in and nobody else, with what the broker grants that site."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Outgoing
from broker.connection import connect
from broker.credentials import Credentials
from broker.deployment import Deployment, DeploymentInvalid, node_settings
from broker.errors import BrokerUnreachable, LinkDown, Refused
from broker.guard import LEAVES, Guard, Watch
from broker.leaf import Leaf
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
    _, server = write(broker, tmp_path / "leaf", broker.add("site", "alpha", leaf=True))
    watch, until = Watch(broker.server), time.monotonic() + WAIT_S
    with server:
        while not (found := watch._leaves()):
            assert time.monotonic() < until
            time.sleep(0.1)
    assert [one["authorized_user"] for one in found] == [LEAVES] and found[0]["cid"] < 0
    guard = Guard({LEAVES})
    assert not guard.look(found, 0.0)
    assert guard.look([{**found[0], "in_msgs": found[0]["in_msgs"] + 5000}], 1.0)[LEAVES] == 5000


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
