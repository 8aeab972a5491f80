"""Whoever is revoked is out, also where that was interrupted, or one of the servers hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import DeploymentInvalid, Refused
from broker.node import read_users, reload_node
from broker.roles import SITE
from broker.server import BrokerServer, read_address
from ops.cli import run
from tests.support.forkserver import CHECKOUT
from tests.support.secured import Secured, clustered, secured

# Killed as it writes the file whose name ends so, the N-th time.
KILLED = """
import os, signal, sys
from pathlib import Path
from broker import files, node, deployment
from ops.cli import run
left, real = [int(sys.argv[2])], files.replace_file
def replace_file(path, text, mode=0o644):
    if str(path).endswith(sys.argv[1]):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    real(path, text, mode)
node.replace_file = deployment.replace_file = replace_file
run(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("file", "num"),
    [("b/users.json", 0), ("atoll/users.json", 0), ("users.conf", 0), ("users.conf", 1)],
)
async def test_a_revocation_that_was_killed_is_ended_by_asking_again(
    tmp_path: Path, file: str, num: int, capsys: pytest.CaptureFixture
) -> None:
    with secured(tmp_path / "b") as broker:
        broker.add(SITE, "alpha")
        identity = broker.credentials(SITE, "alpha")
        where = ["--dir", str(tmp_path / "b")]
        words = [sys.executable, "-c", KILLED, file, str(num), "broker", "revoke-site", "alpha"]
        killed = subprocess.run([*words, *where], cwd=CHECKOUT)
        assert killed.returncode == -signal.SIGKILL
        code = run(["broker", "revoke-site", "alpha", *where])
        assert code in (0, 3), "it is said where it was out already"
        assert "alpha" not in [one.name for one in read_users(broker.deployment.node("atoll"))]
        identity.write(broker.file(SITE, "alpha"))
        with pytest.raises(Refused):
            await broker.connect(SITE, "alpha")
        assert run(["broker", "add-site", "alpha", *where]) == 0
        await (await broker.connect(SITE, "alpha")).close()


async def test_a_server_that_hangs_does_not_keep_the_others_from_being_told(tmp_path: Path) -> None:
    with clustered(tmp_path / "b") as cluster:
        cluster.add(SITE, "alpha")
        identity = cluster.credentials(SITE, "alpha")
        os.kill(cluster.servers["n1"].pid, signal.SIGSTOP)
        try:
            cluster.deployment.revoke(SITE, "alpha")
            with pytest.raises(DeploymentInvalid, match=r"n1 does not answer.*atoll broker reload"):
                cluster.deployment.reload()
            identity.write(cluster.file(SITE, "alpha"))
            for host in ("127.0.0.2", "127.0.0.3"):
                with pytest.raises(Refused):
                    await cluster.connect(SITE, "alpha", host=host)
        finally:
            os.kill(cluster.servers["n1"].pid, signal.SIGCONT)
        assert all(cluster.deployment.reload().values())
        with pytest.raises(Refused):
            await cluster.connect(SITE, "alpha", host="127.0.0.1")


def test_the_number_of_a_process_that_ended_is_not_signalled(tmp_path: Path) -> None:
    """What an earlier server wrote down may be anybody's by now: while the next one starts, there
    is no number."""
    made = Secured(tmp_path / "b")
    settings = made.server.settings
    with made.server:
        assert (read_address(settings.store_dir) or {})["pid"] == made.server.pid
    seen = []

    class Watched(BrokerServer):
        def _spawn(self, binary: Path, lock: int) -> int:
            seen.append((read_address(settings.store_dir) or {})["pid"])
            return super()._spawn(binary, lock)

    with Watched(settings):
        assert seen == [0]
        assert reload_node(settings.store_dir)
