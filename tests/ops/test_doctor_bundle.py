"""The doctor's bundle: logs, stacks of who hangs, and no secret."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from ops.cli import run
from ops.doctor import machine
from ops.doctor.bundle import write_bundle
from ops.doctor.secrets import redacted
from ops.home import Home
from tests.support.secured import Secured, secured

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "text",
    [
        "url = nats://user:HUSH@host:4222",
        'password = "HUSH two"',
        "{'aws_secret_access_key': 'HUSH'}",
        '{"api_key": "HUSH", "kept": 1}',
        "ATOLL_TOKEN=HUSH",
        "webhook = 'https://hooks.example.org/HUSH'",
        "nkey seed: HUSH",
        "-----BEGIN USER NKEY SEED-----\nHUSH\n-----END USER NKEY SEED-----",
        "-----BEGIN PRIVATE KEY-----\nHUSH\nHUSH\n-----END PRIVATE KEY-----",
        "saw SU" + "A" * 56 + " in a line, not HUSH".replace("HUSH", ""),
        "-----BEGIN PRIVATE KEY-----\nHUSH\nHUSH\ncut off here",
        "HUSH\nHUSH\n-----END PRIVATE KEY-----\nwhat follows stays",
        "eyJhbGciOiJI.eyJzdWIiOiIx.HUSHHUSH",
        "Authorization: Bearer HUSHHUSH",
        '{"headers": ["authorization: Basic HUSHHUSH"]}',
        json.dumps({"ATOLL_S3_PASSWORD": 'one"HUSH'}),
        json.dumps({"what": 'it has password="HUSH, HUSH" in it'}),
        json.dumps({"what": json.dumps({"password": "one, HUSH"})}),
        "ATOLL_PRIVATE_KEY=HUSH",
        '{"command": ["curl", "-H", "X-Api-Key: HUSH"]}',
        "--password HUSH",
        '["--auth-token", "HUSH"]',
        "nats://user:ha/HUSH@host:4222",
        "https://store/x?X-Amz-Credential=HUSH&X-Amz-Signature=HUSH",
        "hf_HUSHHUSHHUSHHUSHHUSH",
        "AKIAHUSHHUSHHUSHHUSH",
    ],
)
def test_secrets_are_hidden_in_whatever_form_they_come(text: str) -> None:
    assert "HUSH" not in redacted(text) and "***" in redacted(text)
    assert "A" * 56 not in redacted(text)


def test_a_line_without_end_is_read_in_time() -> None:
    """From every place in it somebody's name may begin."""
    began = time.monotonic()
    for text in ("a.b-" * 10_000, "x" * 40_000, "-" * 40_000, "token " * 10_000):
        redacted(text)
    assert time.monotonic() - began < 10  # it took minutes


def test_what_is_no_secret_stays() -> None:
    text = "sequence_tokens = 32\ntokens: 780,000 merged; site alpha at nats://host:4222 (key 7)\n"
    text += "the authority: ca.pem; author = me; basic checks; --tokens 5 --creds alpha.creds"
    assert redacted(text) == text


def test_a_bundle_has_logs_and_stacks_of_a_trainer_that_hangs_and_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "sites" / "tests" / "alpha"
    (folder / "work").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "alpha.log").write_text("reached nats://me:HUSH@host:4222\n")
    code = (
        "import os, pathlib, time\nfrom sitehub.stacks import write_stacks_on_request\n"
        f"write_stacks_on_request(pathlib.Path({str(folder / 'work')!r}), os.getpid())\n"
        "def where_it_hangs():\n    print(flush=True)\n    time.sleep(600)\nwhere_it_hangs()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "as sitehub.trainer"], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        (folder / "site.json").write_text(json.dumps({"trainer_pid": process.pid}))
        target = tmp_path / "bundle.tgz"
        names = write_bundle(target, [machine.files()], Home(tmp_path))
        assert process.poll() is None  # it hangs on, undisturbed
    finally:
        process.kill()
        process.wait()
    assert oct(target.stat().st_mode)[-3:] == "600"
    with tarfile.open(target) as archive:
        texts = {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
    assert {f"atoll-doctor/{name}" for name in names} == set(texts)
    assert "where_it_hangs" in texts["atoll-doctor/sites/tests/alpha/stacks.txt"]
    assert "reached nats://***@host" in texts["atoll-doctor/logs/alpha.log"]
    assert "HUSH" not in "".join(texts.values())


def test_a_bundle_of_a_machine_with_a_configured_broker_holds_none_of_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its keys, everybody's credentials, and a password in the environment; a key in a log, too."""
    home, target = tmp_path / "home", tmp_path / "bundle.tgz"
    monkeypatch.setenv("ATOLL_HOME", str(home))
    monkeypatch.setenv("ATOLL_BROKER", "tls://me:HUSHHUSHHUSH@localhost:1")
    with secured(home / "broker", leaves=True) as broker:
        broker.add("site", "alpha")
        (home / "logs").mkdir()
        said = "".join(path.read_text() for path in secret_files(home))
        (home / "logs" / "careless.log").write_text(said)
        creds = broker.file("operator")
        asyncio.run(founded(broker))
        told = ["doctor", "mine", "--broker", broker.server.url, "--creds", str(creds)]
        code = run([*told, "--bundle", str(target)])
    assert "permissions" in capsys.readouterr().out, code
    secrets = {"HUSHHUSHHUSH"} | {text for path in secret_files(home) for text in secret(path)}
    assert len(secrets) > 10
    with tarfile.open(target) as archive:
        texts = {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
    whole = "\n".join(texts.values())
    assert [text for text in secrets if text in whole] == []
    server = texts["atoll-doctor/broker/nodes/atoll/nats-server.conf"]
    assert (
        "sync_interval: always" in server and "atoll-doctor/broker/nodes/atoll/users.conf" in texts
    )
    assert "Server is ready" in texts["atoll-doctor/broker/nodes/atoll/nats-server.log"]
    assert not [name for name in texts if name.endswith((".key", ".creds", ".json.creds"))]


def secret_files(home: Path) -> list[Path]:
    return sorted((*home.rglob("*.key"), *home.rglob("*.creds")))


def secret(path: Path) -> Iterator[str]:
    """What nobody else may see of a file: a seed, or each whole line of a PEM key."""
    text = path.read_text()
    if path.suffix == ".creds":
        yield json.loads(text)["seed"]
    else:
        yield from (line for line in text.splitlines() if line and not line.startswith("-----"))


async def founded(broker: Secured) -> None:
    async with await broker.connect("operator") as connection:
        await (await JetStreamLog.create(connection, "mine")).close()
        await JetStreamBlobs.create(connection, "mine")


def test_nobody_is_signalled_who_did_not_ask_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "sites" / "tests" / "alpha"
    (folder / "work").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "input()", "sitehub"], stdin=subprocess.PIPE)
    try:
        (folder / "site.json").write_text(json.dumps({"trainer_pid": process.pid}))
        names = write_bundle(tmp_path / "b.tgz", [], Home(tmp_path))
        assert process.poll() is None
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not [name for name in names if "stacks" in name]
    assert os.path.exists(tmp_path / "b.tgz")
