"""Real Slurm clusters on this machine, without systemd: one munged, a controller and nodes each.

Needs root and Debian's slurmctld, slurmd, slurm-client and munge (.ci/tools installs them).
Everything that is started is ended by its own process id, and ends with this process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.daemons import PATH, Processes, free_ports, require

_CPUS, _GPUS = 8, 4
_UP_S = 60.0

# cred_expire: so long a requeued job waits (120 s by default). BatchStartTimeout: a machine that is
# busy takes its time to start a script, and 10 s later Slurm would start it again.
_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=20
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=300
InactiveLimit=0
KillWait=2
BatchStartTimeout=120
WaitTime=0
MinJobAge={min_job_age_s}
MessageTimeout=10
PropagateResourceLimits=NONE
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_resolution=60,bf_window=2880,bf_continue,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
EnforcePartLimits=ALL
{accounting}
NodeName={name}[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{last} CPUs={cpus} \
RealMemory={memory} Gres=gpu:h100:{gpus} {features} State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=24:00:00 DefaultTime=01:00:00 State=UP \
OverSubscribe=EXCLUSIVE
PartitionName=down Nodes={name}[1-2] MaxTime=01:00:00 State=DOWN
{partitions}
"""
_WITHOUT = "AccountingStorageType=accounting_storage/none\nPriorityType=priority/basic"


@dataclass
class Cluster:
    """One Slurm. Commands of a test run as root with the cluster's configuration."""

    name: str
    num_nodes: int
    folder: Path
    port: int
    munge: Path
    processes: Processes
    accounting: str = _WITHOUT
    min_job_age_s: int = 300
    environment: dict[str, str] = field(default_factory=dict)
    cpus: int = _CPUS  # of a node, like those that follow
    gpus: int = _GPUS
    memory_mb: int = 1000
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()  # whole lines: more of them, over all nodes

    @property
    def conf(self) -> str:
        """What SLURM_CONF is to be for whoever means this cluster."""
        return str(self.folder / "slurm.conf")

    @property
    def saved_jobs(self) -> Path:
        """Where the controller writes its jobs down, every five seconds: what is not in it is lost
        with a controller that is killed."""
        return self.folder / "state" / "job_state"

    def start(self) -> None:
        """Write the configuration and start everything; does not wait."""
        self.configure()
        self.start_controller("-c")
        for number in range(1, self.num_nodes + 1):
            node = f"{self.name}{number}"
            self.processes.start(node, "slurmd", "-D", "-N", node, "-f", self.conf)

    def configure(self) -> None:
        """Write the configuration."""
        for folder in ("state", "spool", "dev"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        host = socket.gethostname().partition(".")[0]
        text = _CONF.format(
            name=self.name,
            host=host,
            munge=self.munge,
            port=self.port,
            folder=self.folder,
            accounting=self.accounting,
            min_job_age_s=self.min_job_age_s,
            nodes=self.num_nodes,
            first=self.port + 1,
            last=self.port + self.num_nodes,
            cpus=self.cpus,
            gpus=self.gpus,
            memory=self.memory_mb,
            features=f"Feature={','.join(self.features)}" if self.features else "",
            partitions="\n".join(self.partitions),
        )
        Path(self.conf).write_text(text)
        for number in range(
            self.gpus
        ):  # files that stand for devices; without them there are 0 GPUs
            (self.folder / "dev" / f"gpu{number}").touch()
        devices = f"File={self.folder}/dev/gpu[0-{self.gpus - 1}]"
        nodes = f"NodeName={self.name}[1-{self.num_nodes}]"
        (self.folder / "gres.conf").write_text(f"{nodes} Name=gpu Type=h100 {devices}\n")
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainCores=no\n")

    def start_controller(self, *options: str) -> None:
        """The controller, with what it kept of its state unless "-c" is given."""
        self.processes.start(f"{self.name}-ctld", "slurmctld", "-D", *options, "-f", self.conf)

    def kill_controller(self) -> None:
        """SIGKILL: the state is what it wrote down last."""
        self.processes.kill(f"{self.name}-ctld")

    def forget(self) -> None:
        """A controller that knows of no job: ids begin anew, which even "-c" does not do."""
        self.kill_controller()
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir()
        self.start_controller("-c")
        self.until(self.is_answering, "its controller")
        self.wait_until_up()

    def freeze(self) -> None:
        """The controller hears and does nothing until `thaw`."""
        self.processes[f"{self.name}-ctld"].send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.processes[f"{self.name}-ctld"].send_signal(signal.SIGCONT)

    def run(self, *command: str, check: bool = True) -> str:
        """The standard output of a command at this cluster."""
        done = subprocess.run(
            command,
            env={**os.environ, "PATH": PATH, "SLURM_CONF": self.conf, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, name: str, nodes: int, minutes: int, command: str = "sleep 3600") -> str:
        """A background job; its id."""
        options = ["-J", name, f"-N{nodes}", "-t", str(minutes), "-o", "/dev/null"]
        return self.run("sbatch", "--parsable", *options, f"--wrap={command}").strip()

    def occupy(self, nodes: int, minutes: int = 60) -> None:
        """So many nodes are busy with a job of somebody else's, which runs."""
        job_id = self.submit("background", nodes, minutes)
        self.until(lambda: (job_id, "background", "R") in self.jobs(), "its background job")

    def jobs(self) -> list[tuple[str, str, str]]:
        """(id, name, state) of all jobs that have not ended."""
        said = self.run("squeue", "-h", "-o", "%i|%j|%t")
        return [tuple(line.split("|")) for line in said.splitlines() if line]  # type: ignore[misc]

    def named(self, prefix: str) -> list[tuple[str, str, str]]:
        return [job for job in self.jobs() if job[1].startswith(prefix)]

    def until(self, holds: Callable[[], object], what: str, within_s: float = 60.0) -> None:
        """Wait until something holds; fails after a bound."""
        until = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < until, f"{self.name}: waited in vain for {what}"
            time.sleep(0.2)

    def wait_until_up(self) -> None:
        """All nodes are idle."""
        self.until(lambda: self.num_idle() == self.num_nodes, "idle nodes", _UP_S)

    def num_idle(self) -> int:
        said = self.run("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D", check=False)
        return sum(int(line) for line in said.split() if line.isdigit())

    def is_answering(self) -> bool:
        return "UP" in self.run("scontrol", "ping", check=False)

    def clean(self) -> None:
        """No job, no reservation, all nodes and partitions as they were."""
        if f"{self.name}-ctld" not in self.processes:
            self.start_controller()
        self.thaw()
        self.until(self.is_answering, "its controller")
        self.run("scancel", "-u", "root", check=False)
        for line in self.run("scontrol", "show", "res", "-o").splitlines():
            if line.startswith("ReservationName="):
                name = line.split()[0].partition("=")[2]
                self.run("scontrol", "delete", f"ReservationName={name}")
        self.run("scontrol", "update", "PartitionName=gpu", "State=UP")
        everything = f"NodeName={self.name}[1-{self.num_nodes}]"
        self.run("scontrol", "update", everything, "State=RESUME", check=False)
        self.wait_until_up()


@dataclass
class Lab:
    """Some clusters that share an authentication daemon."""

    folder: Path
    processes: Processes = field(default_factory=Processes)
    clusters: dict[str, Cluster] = field(default_factory=dict)

    def start_munge(self) -> Path:
        """A private munged; the path of its socket."""
        folder = self.folder / "munge"
        folder.mkdir(parents=True, mode=0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"key-file": key, "log-file": folder / "log", "pid-file": folder / "pid"}
        files |= {"socket": folder / "socket", "seed-file": folder / "seed"}
        options = [f"--{option}={path}" for option, path in files.items()]
        self.processes.start("munged", "munged", "--foreground", "--force", *options)
        until = time.monotonic() + 20
        while not (folder / "socket").exists():
            assert time.monotonic() < until, "munged does not start"
            time.sleep(0.05)
        return folder / "socket"

    def add(
        self, name: str, num_nodes: int, munge: Path, *, starts: bool = True, **more: object
    ) -> Cluster:
        """A cluster beside those there are; it starts, if it is to."""
        folder = self.folder / name
        folder.mkdir()
        port = free_ports(num_nodes + 1)
        cluster = Cluster(name, num_nodes, folder, port, munge, self.processes, **more)  # type: ignore[arg-type]
        if starts:
            cluster.start()
        self.clusters[name] = cluster
        return cluster


@contextlib.contextmanager
def lab(folder: Path, sizes: Sequence[tuple[str, int]], **more: object) -> Iterator[Lab]:
    """Clusters by (name, number of nodes), all of them up. `more`: fields of each Cluster."""
    require()
    os.chmod(folder, 0o755)
    made = Lab(folder)
    try:
        munge = made.start_munge()
        for name, nodes in sizes:
            made.add(name, nodes, munge, **more)
        for cluster in made.clusters.values():
            cluster.wait_until_up()
        yield made
    finally:
        made.processes.end()
