"""A run over a broker with TLS, keys and permissions, as real processes do it: each with its own
credentials, one site by HTTPS through a proxy; signed, exported as a bundle, verified from that."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from eventlog.events import DeltaPublished, RoundCommitted, RunFinished
from eventlog.signatures import fault
from tests.support.fleet import Fleet
from tests.support.forkserver import CHECKOUT, ForkServer
from tests.support.secured import Secured, secured
from tests.support.tunnel import tunnel
from tests.support.watched import History


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path / "broker", websocket=True) as made:
        for name in ("alpha", "beta"):
            made.add("site", name, **({"websocket": True} if name == "beta" else {}))
        yield made


@pytest.fixture
async def fleet(
    broker: Secured, tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> AsyncIterator[Fleet]:
    """A run that names everybody's keys; each process with the credentials of its part."""
    operator = broker.credentials("operator")
    run = f"secured-{os.getpid()}"
    fleet = Fleet(tmp_path / "machine", operator.urls, data, config, run, *parents)
    fleet.variables = {"ATOLL_CREDS": str(broker.file("operator"))}
    fleet.own = {
        "coordinator": {"ATOLL_CREDS": str(broker.file("coordinator"))},
        "alpha": {"ATOLL_CREDS": str(broker.file("site", "alpha"))},
        "beta": {"ATOLL_CREDS": str(broker.file("site", "beta"))},
    }
    keys = await fleet.atoll("broker", "keys", "--dir", str(broker.deployment.root))
    (tmp_path / "keys").write_text(keys.out)
    pairs = [f"name={run}", "target={rounds=2}"]
    options = [part for pair in pairs for part in ("--set", pair)]
    created = await fleet.atoll(
        *("run", "create", str(config), "--data", str(data)),
        *("--keys", str(tmp_path / "keys"), *options),
    )
    assert created.code == 0, created
    assert "storing the initial parameters" in created.err, "what may take minutes is said"
    async with History.watched(operator.urls, run, operator) as fleet.history:
        yield fleet
        fleet.close()


async def test_a_run_with_credentials_is_signed_and_proves_itself_from_its_bundle(
    fleet: Fleet, broker: Secured, tmp_path: Path
) -> None:
    async with tunnel() as proxy:
        fleet.routes["beta"] = broker.credentials("site", "beta").urls
        assert fleet.routes["beta"].startswith("wss://")
        fleet.own["beta"] |= {"HTTPS_PROXY": proxy.url, "NO_PROXY": "", "no_proxy": ""}
        fleet.coordinate()
        fleet.site("alpha")
        fleet.site("beta")
        assert (await fleet.atoll("run", "mirror", fleet.run)).code == 0
        await fleet.until(lambda log: log.view.run().state == "finished", "the end", 90)
        assert len(proxy.asked) >= 2, "control and bulk went through the proxy"
    signed = [
        entry.record
        for entry in fleet.history.entries
        if isinstance(entry.event, DeltaPublished | RoundCommitted | RunFinished)
    ]
    assert {record.subject for record in signed} == {"site.alpha", "site.beta", "coordinator"}
    for record in signed:
        role, _, name = record.subject.partition(".")
        key = broker.credentials(role, name or "main").key.public
        assert fault(record.payload, [key]) == ""
    found = await fleet.audit()
    assert found["signatures"] >= 2 + 2 + 2  # created, deltas, commits, end
    same = (await fleet.atoll("log", "verify", fleet.run, "--mirror", "--json")).json()
    assert same["ok"] and same["last_sequences"][0] == same["last_sequences"][1]
    await _verify_bundle(fleet, tmp_path)


async def _verify_bundle(fleet: Fleet, folder: Path) -> None:
    """What a reviewer does: unpack, verify, audit deeply against the published anchor."""
    file = folder / "bundle.tar"
    exported = await fleet.atoll(
        *("log", "export", fleet.run, "--blobs", "--bundle", "--data", str(fleet.data)),
        *("-o", str(file)),
    )
    assert exported.code == 0, exported
    with tarfile.open(file) as archive:
        archive.extractall(folder / "review", filter="data")
    there = folder / "review" / fleet.run
    names = {path.name for path in there.iterdir()}
    parts = "anchor.json manifest.json versions.json environment.txt verify.sh SHA256SUMS"
    assert names == {"log.atoll", *parts.split()}
    assert "--deep --anchor anchor.json" in (there / "verify.sh").read_text()
    log_file, anchor = str(there / "log.atoll"), str(there / "anchor.json")
    found = await fleet.audit("--deep", "--anchor", anchor, target=log_file)
    assert found["deep"]["ok"] and found["versions"] == 2
    end = fleet.history.of(RunFinished)[0][1]
    assert found["anchored_through"] >= (end.through or 0) > 0
    published = json.loads(Path(anchor).read_text())
    wrong = f"{fleet.run}:{published['through']}:{'0' * 64}"
    refused = await fleet.atoll("audit", log_file, "--anchor", wrong)
    assert refused.code == 1 and "rewritten" in refused.out
    same = await fleet.atoll("log", "verify", fleet.run, log_file, "--json")
    assert same.json()["ok"]
    assert found["published"] == published["through"]
    command = folder / "bin" / "atoll"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ops "$@"\n')
    command.chmod(0o755)
    line = Path(anchor).read_text().strip()
    (there.parent.parent / "published").write_text(line)
    for given, code, words in (
        ([line], 0, f"It is the log that was published, through {published['through']}."),
        (["../../published"], 0, "It is the log that was published"),
        ([wrong], 1, "it was rewritten"),
        ([], 0, "not held against what was published"),
    ):
        done = await asyncio.to_thread(
            subprocess.run, ["sh", "verify.sh", *given], cwd=there, capture_output=True, text=True,
            env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}",
                 "PYTHONPATH": str(CHECKOUT)},
        )  # fmt: skip
        assert done.returncode == code and words in done.stdout + done.stderr, done


async def test_a_process_without_credentials_or_with_revoked_ones_is_refused_for_good(
    fleet: Fleet, broker: Secured, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.creds"
    kept.write_bytes(broker.file("site", "alpha").read_bytes())
    open_to_all = await fleet.atoll("run", "list", ATOLL_CREDS=str(kept))
    assert open_to_all.code == 3 and "chmod 600" in open_to_all.err
    kept.chmod(0o600)
    revoked = await fleet.atoll(
        "broker", "revoke-site", "alpha", "--dir", str(broker.deployment.root)
    )
    assert revoked.code == 0 and "knows it" in revoked.err
    refused = await fleet.atoll(
        "site", "run", fleet.run, "alpha", "--data", str(fleet.data), ATOLL_CREDS=str(kept)
    )
    assert refused.code == 6 and "site alpha" in refused.err
    assert len(refused.err.splitlines()) == 1
