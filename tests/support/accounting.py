"""A slurmdbd with a private MariaDB, so that a test's Slurm has accounts, budgets and sacct.

Everything runs as root: a test's folders are closed to any other user.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.daemons import DATABASE, PATH, Processes, free_ports, require

_CONF = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
_ENFORCED = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={munge}
AccountingStorageEnforce=associations,limits,safe
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityMaxAge=1-0"""
_UP_S = 90.0


@dataclass
class Accounting:
    """The database daemons. `slurm_conf`: what a cluster's configuration says about them."""

    folder: Path
    munge: Path
    processes: Processes
    port: int = 0

    def start(self) -> str:
        """Both are up; the lines for slurm.conf."""
        require(*DATABASE)
        self.port = free_ports(1)
        data = self.folder / "data"
        data.mkdir(parents=True)
        make = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"]
        make += ["--auth-root-authentication-method=socket", "--skip-test-db"]
        subprocess.run(make, check=True, capture_output=True, env={**os.environ, "PATH": PATH})
        options = [f"--datadir={data}", f"--socket={self.socket}", "--skip-networking"]
        options += [f"--pid-file={self.folder}/mysql.pid", "--innodb-lock-wait-timeout=900"]
        options += ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"]
        self.processes.start("mariadbd", "mariadbd", "--no-defaults", "--user=root", *options)
        self._until(lambda: self._sql("select 1"), "MariaDB")
        for statement in (
            "create database slurm_acct_db",
            "create user slurm@localhost identified by 'slurm'",
            "grant all on slurm_acct_db.* to slurm@localhost",
        ):
            assert self._sql(statement), statement
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(_CONF.format(munge=self.munge, port=self.port, folder=self.folder))
        conf.chmod(0o600)
        # it has no option for its file, and looks beside SLURM_CONF
        where = {"SLURM_CONF": f"{self.folder}/slurm.conf", "MYSQL_UNIX_PORT": str(self.socket)}
        self.processes.start("slurmdbd", "slurmdbd", "-D", **where)
        self._until(self._listens, "slurmdbd")
        return _ENFORCED.format(port=self.port, munge=self.munge)

    @property
    def socket(self) -> Path:
        return self.folder / "mysql.sock"

    def _sql(self, statement: str) -> bool:
        client = ["mariadb", "--no-defaults", f"--socket={self.socket}", "-e", statement]
        return subprocess.run(client, capture_output=True, check=False).returncode == 0

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    @staticmethod
    def _until(holds, what: str) -> None:
        until = time.monotonic() + _UP_S
        while not holds():
            assert time.monotonic() < until, f"{what} does not start"
            time.sleep(0.1)
