"""What `atoll broker config` writes, and what happens to it afterwards."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from broker.authority import SERVER_DAYS, Pair, expires, new_authority, new_server
from broker.binary import find_binary
from broker.client import proxy_for
from broker.credentials import Credentials, CredentialsInvalid
from broker.deployment import Deployment
from broker.errors import DeploymentInvalid
from broker.node import node_settings
from broker.production import Shape
from ops.cli import run
from tests.support.forkserver import CHECKOUT

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
    signer = new_authority("of somebody else")
    given = new_server(signer, ["broker.example.org"])
    deployment = Deployment(tmp_path)
    issued = deployment.configure(Shape(HOSTS), given, signer.certificate)
    assert (deployment.node("atoll") / "server.pem").read_text() == given.certificate
    assert not (tmp_path / "ca.key").exists()
    assert Credentials.read(issued[0]).ca == signer.certificate


def test_the_own_authority_outlasts_a_certificate_of_somebody_else(tmp_path: Path) -> None:
    """There and back: who was let in before gets in again, and what is kept here leads there."""
    signer = new_authority("of somebody else")
    deployment = Deployment(tmp_path)
    deployment.configure(Shape(HOSTS))
    issued, own = deployment.issue("site", "alpha"), (tmp_path / "ca.pem").read_text()
    before = Credentials.read(issued)
    for given, ca in (
        (new_server(signer, ["b"]), signer.certificate),
        (new_server(signer, ["b"]), ""),
    ):
        deployment.configure(Shape(HOSTS), given, ca)
        assert issued in deployment.refresh()
        assert Credentials.read(issued).ca == ca
        deployment.configure(Shape(HOSTS))
        assert (tmp_path / "ca.pem").read_text() == own
        assert issued in deployment.refresh() and Credentials.read(issued) == before
        assert deployment.refresh() == []
        made = (deployment.node("atoll") / "server.pem").read_bytes()
        x509.load_pem_x509_certificate(made).verify_directly_issued_by(
            x509.load_pem_x509_certificate(own.encode())
        )


def test_an_authority_whose_certificate_stands_in_ca_pem_alone_is_taken_up(tmp_path: Path) -> None:
    """As folders were written before; and without it nothing is signed in its name."""
    deployment, key = Deployment(tmp_path), tmp_path / "ca.key"
    deployment.configure(Shape(HOSTS))
    alone = key.read_text().partition("-----BEGIN CERTIFICATE")[0]
    key.write_text(alone)
    own = (tmp_path / "ca.pem").read_text()
    deployment.configure(Shape(HOSTS))
    assert (tmp_path / "ca.pem").read_text() == own
    key.write_text(alone)
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(DeploymentInvalid, match="put that back"):
        deployment.configure(Shape(HOSTS))


def test_what_no_server_could_be_made_of_is_said_before_anything_is_written(tmp_path: Path) -> None:
    signer = new_authority("signer")
    good, other = new_server(signer, ["b"]), new_server(signer, ["b"])
    old = new_server(signer, ["b"], now=datetime.now(UTC) - timedelta(days=SERVER_DAYS + 2))
    deployment = Deployment(tmp_path / "broker")
    for host in ("", "a b", "http://b", "b:4222", "br\u00f6ker", "a..b", "x" * 64):
        with pytest.raises(DeploymentInvalid, match="no name or address"):
            deployment.configure(Shape({"atoll": host}))
    for shape, why in (
        (Shape(HOSTS, port=443), "port 443"),
        (Shape(dict.fromkeys(("n1", "n2", "n3"), "b"), leaf_port=8224), "port 8224"),
        (Shape(HOSTS, listen="n o"), "listen"),
    ):
        with pytest.raises(DeploymentInvalid, match=why):
            deployment.configure(shape)
    for given, ca, why in (
        (Pair(good.certificate, other.key), "", "not that of"),
        (Pair("hi", good.key), "", "--key: there is no"),
        (Pair(good.certificate, "hi"), "", "no private key"),
        (old, "", "ended"),
        (good, "hi", "--ca: there is no"),
    ):
        with pytest.raises(DeploymentInvalid, match=why):
            deployment.configure(Shape(HOSTS), given, ca)
    assert not deployment.root.exists()


def test_servers_of_other_names_do_not_hide_runs(tmp_path: Path) -> None:
    deployment, three = Deployment(tmp_path), dict.fromkeys(("n1", "n2", "n3"), "b")
    deployment.configure(Shape(three))
    deployment.configure(Shape(HOSTS))
    settings = node_settings(tmp_path)
    assert settings is not None and settings.store_dir == deployment.node("atoll")
    (deployment.node("atoll") / "store").mkdir()
    with pytest.raises(DeploymentInvalid, match="holds runs"):
        deployment.configure(Shape(three))
    assert list(deployment.shape.hosts) == ["atoll"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"bogus": 1}', ""])
@pytest.mark.parametrize("name", ["shape.json", "users.json", "nodes/atoll/node.json"])
def test_a_file_of_the_configuration_that_is_none_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str, text: str
) -> None:
    Deployment(tmp_path).configure(Shape(HOSTS))
    (tmp_path / name).write_text(text)
    words = ["serve"] if "node.json" in name else ["add-site", "alpha"]
    assert run(["broker", *words, "--dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert str(tmp_path / name) in said and said.count("\n") == 1


def test_a_full_disk_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    """RLIMIT_FSIZE ends a write as a full disk does, in the midst of it."""
    deployment = Deployment(tmp_path)
    deployment.configure(Shape(HOSTS))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    program = (
        "import resource, signal, sys\nfrom ops.cli import run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
        f"sys.exit(run(['broker', 'config', {str(tmp_path)!r}, '--host', 'broker.example.org']))"
    )
    for limit in (0, 100, 400, 600):
        command = [sys.executable, "-c", program, str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
        assert str(tmp_path) in done.stderr, "it names the file"
        left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert left.keys() == before.keys()
        for path, old_bytes in before.items():
            assert len(left[path]) > 0 or not old_bytes, path
    assert run(["broker", "config", str(tmp_path), "--host", "broker.example.org"]) == 0


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
