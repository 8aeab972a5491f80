"""A gateway that one reaches by ssh: an sshd of the test's own, and a client's configuration of it.

Needs root, sshd, ssh and ssh-keygen (Debian: openssh-server); without them a test is skipped or, in
CI, fails, as `tests.support.netns` has it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from broker.deathsig import arm, death_signal
from tests.support.netns import PATH, require
from tests.support.secured import free_ports

NAME = "gateway"  # as the client's configuration calls it
_TOOLS = ("sshd", "ssh", "ssh-keygen")
_PRIVSEP = Path("/run/sshd")  # of Debian's sshd, which wants it to exist
_UP_S = 30.0

_SERVER = """\
Port {port}
ListenAddress {host}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
"""
_CLIENT = """\
Host gateway
    HostName {host}
    Port {port}
    User root
    IdentityFile {folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known
    StrictHostKeyChecking accept-new
    BatchMode yes
    ExitOnForwardFailure yes
"""


@contextlib.contextmanager
def gateway(folder: Path, host: str) -> Iterator[Path]:
    """An sshd at `host` until the end of the block; the file for `ssh -F`."""
    require(*_TOOLS)
    folder.mkdir()
    (port,) = free_ports(1)
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True, env={**os.environ, "PATH": PATH})
    words = {"port": port, "host": host, "folder": folder}
    (folder / "sshd_config").write_text(_SERVER.format(**words))
    (folder / "ssh_config").write_text(_CLIENT.format(**words))
    _PRIVSEP.mkdir(exist_ok=True)
    sshd = shutil.which("sshd", path=PATH) or "sshd"
    prctl, parent = death_signal(), os.getpid()
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=(lambda: arm(prctl, parent)) if prctl else None,
        )
    try:
        _wait(process, host, port, folder / "log")
        yield folder / "ssh_config"
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    until = time.monotonic() + _UP_S
    while True:
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        with socket.socket() as one:
            if one.connect_ex((host, port)) == 0:
                return
        time.sleep(0.1)
