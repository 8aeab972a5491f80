"""The scripts of the known centres on a real Slurm with partitions of those names: accepted, run,
warned, requeued on 75 and on nothing else. What a centre's own machines would say is not known."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from eventlog.events import SiteAdmitted, SiteDeparted
from tests.support.centre import CLUSTER, PARTITIONS, filled, software
from tests.support.fleet import Fleet
from tests.support.forkserver import ForkServer
from tests.support.secured import Secured, secured
from tests.support.secured_fleet import secured_fleet
from tests.support.slurm import Cluster, lab
from tests.support.watched import History

CENTRES = tuple(PARTITIONS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with lab(tmp_path_factory.mktemp("centres"), [("centre", 3)], **CLUSTER) as made:
        yield made.clusters["centre"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Secured]:
    with secured(tmp_path / "broker") as made:
        yield made


@pytest.fixture
async def fleet(
    broker: Secured, tmp_path: Path, data: Path, config: Path, parents: tuple[str, ForkServer]
) -> AsyncIterator[Fleet]:
    async with secured_fleet(broker, CENTRES, tmp_path, data, config, parents) as made:
        yield made


async def submit(
    fleet: Fleet, broker: Secured, cluster: Cluster, folder: Path, centre: str, *, ranks: int = 1
) -> str:
    """What a person does with a profile: fill it in, have the script printed, tried, submitted; the
    job's id."""
    cluster.environment = software(folder / "software", fleet.preload if ranks == 1 else "")
    environment = str(folder / "software" / "environment")
    fields = {
        "account": "project_465000000",
        "data": str(fleet.data),
        "credentials": str(broker.file("site", centre)),
    }
    values = {
        "environment": environment,
        "checkpoints": str(folder / "checkpoints"),
        "modules": "2025",
        "image": "image.sif",
        "node_folder": str(folder / "software"),
        "binding": "",
        "ranks": str(ranks),
    }
    file = folder / f"{centre}.toml"
    text = filled(centre, fields, values)
    if ranks == 1:  # this machine has no accelerators, and one process needs no launcher
        text = re.sub(r"site_options = \[\n.*?\n\]", "site_options = []", text, flags=re.DOTALL)
    file.write_text(text)
    options = ("--run", fleet.run, "--walltime", "30m", "--requeue")
    printed = await fleet.atoll("site", "script", centre, "--sites", str(file), *options)
    assert printed.code == 0, printed
    script = folder / f"{centre}.sh"
    script.write_text(printed.out)
    assert f"#SBATCH --partition={PARTITIONS[centre]}\n" in printed.out
    cluster.run("sbatch", "--test-only", str(script))
    return cluster.run("sbatch", "--parsable", str(script)).strip()


def shown(cluster: Cluster, job_id: str) -> dict[str, str]:
    """What Slurm says of a job."""
    said = cluster.run("scontrol", "show", "job", "-o", job_id)
    return dict(part.partition("=")[::2] for part in said.split() if "=" in part)


def wrote(fleet: Fleet) -> str:
    """What the jobs said."""
    files = sorted((fleet.home / "placement").rglob("*.out"))
    return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files)


def admissions(log: History, site: str) -> int:
    return sum(event.site == site for _, event in log.of(SiteAdmitted))


async def until(cluster: Cluster, holds: Callable[[], object], what: str) -> None:
    """As `Cluster.until`, beside what the fleet does."""
    await asyncio.to_thread(cluster.until, holds, what)


async def test_the_three_centres_scripts_are_accepted_train_and_start_again_on_75_alone(
    fleet: Fleet, broker: Secured, cluster: Cluster, tmp_path: Path
) -> None:
    fleet.coordinate()
    jobs = {name: await submit(fleet, broker, cluster, tmp_path, name) for name in CENTRES}
    try:
        await fleet.until(
            lambda log: {cut.site for _, cut in log.merged()} == set(CENTRES), "all three", 300
        )
    except AssertionError as error:
        raise AssertionError(wrote(fleet)) from error
    said = wrote(fleet)
    assert "module use /appl/local/laifs/modules" in said and "module load rocm/7.1.1" in said

    await _start_again(fleet, cluster, jobs["lumi"])
    await fleet.finish()
    for name, job_id in jobs.items():
        await until(cluster, lambda j=job_id: shown(cluster, j)["JobState"] == "COMPLETED", name)
        ended = shown(cluster, job_id)
        assert (ended["ExitCode"], ended["Restarts"]) == ("0:0", "1" if name == "lumi" else "0")
    assert (await fleet.audit())["ok"]


async def _start_again(fleet: Fleet, cluster: Cluster, job: str) -> None:
    """Lumi's job is told to go, ends with 75, and comes back when Slurm lets it: once its old
    credential is no more (cred_expire). `StartTime=now` is no way round that: given while the job's
    node is being cleared it is forgotten, and right after it the node may take the new credential
    for the old one, and refuse it."""
    cluster.run("scancel", "--batch", "--signal=USR1", job)  # as --signal does in time
    await fleet.until(
        lambda log: [event for _, event in log.of(SiteDeparted) if event.site == "lumi"],
        "it left",
        120,
    )
    await until(cluster, lambda: shown(cluster, job)["Restarts"] == "1", "the requeue")
    try:
        await fleet.until(lambda log: admissions(log, "lumi") == 2, "it came back", 240)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{shown(cluster, job)}\n{wrote(fleet)}") from error


@pytest.mark.soak
@pytest.mark.parametrize("centre", ["lumi", "frontier"])
async def test_ranks_start_by_the_centres_own_launcher(
    fleet: Fleet, broker: Secured, cluster: Cluster, tmp_path: Path, centre: str
) -> None:
    """Two ranks on this machine's CPUs, by torchrun as at LUMI and by srun as at Frontier."""
    fleet.coordinate()
    job_id = await submit(fleet, broker, cluster, tmp_path, centre, ranks=2)
    try:
        await fleet.until(lambda log: log.view.run().version >= 2, "two versions", 600)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{wrote(fleet)}") from error
    await fleet.finish()
    await until(cluster, lambda: shown(cluster, job_id)["JobState"] == "COMPLETED", "its end")
    assert (await fleet.audit())["ok"]
