"""What `atoll broker config` writes, and what happens to it afterwards."""

from __future__ import annotations

import json
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.authority import SERVER_DAYS, Pair, expires, new_authority, new_server
from broker.binary import find_binary
from broker.client import proxy_for
from broker.credentials import Credentials, CredentialsInvalid
from broker.deployment import Deployment, DeploymentInvalid, node_settings
from broker.production import Shape
from ops.cli import run

HOSTS = {"atoll": "broker.example.org"}


def test_the_server_finds_its_configuration_without_fault(tmp_path: Path) -> None:
    """nats-server's own check (-t) of all that can be written: one server, and each of three."""
    one, three = Deployment(tmp_path / "one"), Deployment(tmp_path / "three")
    one.configure(Shape(HOSTS, max_store_bytes=1 << 30))
    three.configure(Shape({"n1": "a.example", "n2": "b.example", "n3": "::1"}))
    for deployment in (one, three):
        deployment.issue("site", "alpha", ("a-run", "other"))
        for name in deployment.shape.hosts:
            node = deployment.node(name)
            command = [find_binary(), "-t", "-c", "nats-server.conf"]
            checked = subprocess.run(command, cwd=node, capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr
    with pytest.raises(DeploymentInvalid, match="n1, n2, n3"):
        node_settings(three.root)


def test_secrets_are_their_owners_alone_and_stand_in_one_file_each(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "broker")
    issued = deployment.configure(Shape(HOSTS))
    issued.append(deployment.issue("site", "alpha"))
    seeds = {Credentials.read(path).seed: path for path in issued}
    assert len(seeds) == 5
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        text = path.read_text()
        for seed, home in seeds.items():
            assert (seed in text) == (path == home), path
        secret = "PRIVATE KEY" in text or path in issued
        assert not secret or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    nodes = deployment.root / "nodes"
    assert not [path for path in nodes.rglob("*") if path.name == "ca.key"]


def test_a_second_configuration_keeps_authority_and_users_and_renews_certificates(
    tmp_path: Path,
) -> None:
    deployment = Deployment(tmp_path)
    assert len(deployment.configure(Shape(HOSTS))) == 4
    before = (tmp_path / "ca.pem").read_text(), deployment.users
    certificate = (deployment.node("atoll") / "server.pem").read_text()
    assert deployment.configure(Shape(HOSTS, port=5000)) == []
    assert ((tmp_path / "ca.pem").read_text(), deployment.users) == before
    assert (deployment.node("atoll") / "server.pem").read_text() != certificate
    assert "port: 5000" in (deployment.node("atoll") / "nats-server.conf").read_text()


def test_a_name_is_let_in_once_and_revoked_once(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.configure(Shape(HOSTS))
    path = deployment.issue("site", "alpha")
    with pytest.raises(DeploymentInvalid, match="already"):
        deployment.issue("site", "alpha")
    with pytest.raises(DeploymentInvalid, match="no name"):
        deployment.issue("site", "Alpha")
    deployment.configure(Shape(HOSTS, websocket_port=0))
    for way, option in (("websocket", "--websocket-port"), ("leaf", "--leaf-port")):
        with pytest.raises(DeploymentInvalid, match=option):
            deployment.issue("site", "beta", **{way: True})
    deployment.revoke("site", "alpha")
    assert not path.exists()
    with pytest.raises(DeploymentInvalid, match="no credentials"):
        deployment.revoke("site", "alpha")


@pytest.mark.parametrize("text", ["", "{}", "[]", "no json", '{"version": 2}'])
def test_what_is_no_credentials_file_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.creds"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(CredentialsInvalid, match=r"x\.creds"):
        Credentials.read(path)
    with pytest.raises(CredentialsInvalid, match="No such file"):
        Credentials.read(tmp_path / "none")


def test_a_certificate_names_its_hosts_and_ends_when_clients_want_it_to() -> None:
    from cryptography import x509

    now = datetime(2030, 1, 1, tzinfo=UTC)
    authority = new_authority("a broker", now)
    made = new_server(authority, ["broker.example.org", "192.0.2.1"], now)
    assert expires(made.certificate) == now + timedelta(days=SERVER_DAYS)
    found = x509.load_pem_x509_certificate(made.certificate.encode())
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.encode()))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example.org"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1"]
    assert "PRIVATE" not in repr(made)


def test_a_given_certificate_is_used_and_no_authority_is_made(tmp_path: Path) -> None:
    Deployment(tmp_path / "signer").configure(Shape(HOSTS))
    signer = (tmp_path / "signer" / "ca.pem").read_text()
    deployment = Deployment(tmp_path)
    issued = deployment.configure(Shape(HOSTS), Pair("chain", "secret"), signer)
    assert (deployment.node("atoll") / "server.pem").read_text() == "chain"
    assert not (tmp_path / "ca.key").exists()
    assert Credentials.read(issued[0]).ca == signer


def test_the_commands_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    where = ["--dir", str(tmp_path / "broker")]
    assert run(["broker", "config", str(tmp_path / "broker"), "--host", "b.example", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["credentials"]) == 4
    assert run(["broker", "add-site", "alpha", *where]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert Credentials.read(path).urls == "tls://b.example:4222"
    assert run(["broker", "keys", *where]) == 0
    subjects = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert subjects == ["operator", "coordinator", "planner", "site.alpha"]
    assert run(["broker", "add-site", "alpha", *where]) == 3
    assert run(["broker", "revoke-site", "alpha", *where]) == 0
    assert run(["broker", "config", str(tmp_path / "x")]) == 2
    assert run(["broker", "config", str(tmp_path / "x"), "--cluster", "a=1,b=2"]) == 2
    capsys.readouterr()
    for words in (["add-site", "alpha"], ["revoke-site", "alpha"], ["issue", "auditor", "ann"]):
        assert run(["broker", *words, "--dir", str(tmp_path / "none")]) == 3
        assert "holds no broker's configuration" in capsys.readouterr().err, words
    assert run(["broker", "serve", "--dir", str(tmp_path / "broker"), "--port", "1"]) == 2


@pytest.mark.parametrize(
    ("variables", "scheme", "proxy"),
    [
        ({}, "wss", None),
        ({"HTTPS_PROXY": "http://p:1"}, "wss", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "ws", None),
        ({"HTTP_PROXY": "http://p:2"}, "ws", "http://p:2"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b.example"}, "wss", None),
        ({"HTTPS_PROXY": "http://p:1", "WSS_PROXY": "http://q:3"}, "wss", "http://q:3"),
    ],
)
def test_a_websocket_takes_the_proxy_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], scheme: str, proxy: str | None
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "WSS_PROXY", "WS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(scheme, "b.example") == proxy
