"""The doctor's bundle: logs, stacks of who hangs, and no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ops.doctor import machine
from ops.doctor.bundle import write_bundle
from ops.doctor.secrets import redacted
from ops.home import Home

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
        "eyJhbGciOiJI.eyJzdWIiOiIx.HUSHHUSH",
    ],
)
def test_secrets_are_hidden_in_whatever_form_they_come(text: str) -> None:
    assert "HUSH" not in redacted(text) and "***" in redacted(text)
    assert "A" * 56 not in redacted(text)


def test_what_is_no_secret_stays() -> None:
    text = "sequence_tokens = 32\ntokens: 780,000 merged; site alpha at nats://host:4222 (key 7)"
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
