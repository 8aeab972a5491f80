"""Real Slurm clusters for the tests of placement, shared by all of them and tidied for each; and
logs that agents tell, by a real one or by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from eventlog.events import OPERATOR, AgentReported
from ops.placement.sites import load
from tests.placement.acting import Acting
from tests.placement.telling import FREE, SITE, Told
from tests.support.history import config, created
from tests.support.slurm import Cluster, Lab, lab


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A small one, and whatever a test adds."""
    with lab(tmp_path_factory.mktemp("slurm"), [("alpha", 4)]) as made:
        yield made


@pytest.fixture
def cluster(clusters: Lab) -> Iterator[Cluster]:
    """One that is empty and up, before and after."""
    one = clusters.clusters["alpha"]
    one.clean()
    yield one
    one.clean()


MakeSites = Callable[..., Path]


@pytest.fixture
def sites_file(tmp_path: Path) -> MakeSites:
    """Writes a sites file for clusters, whose jobs sleep; fast, for the test's own clusters."""

    def write(*clusters: Cluster, sleep_s: int = 3600, shapes: str = "", more: str = "") -> Path:
        template = "#!/bin/bash\n{{directives}}\n# {{command}}\n" + f"exec sleep {sleep_s}\n"
        (tmp_path / "job.tmpl").write_text(template)
        shapes = shapes or '[{nodes = 1, walltime = "10m"}, {nodes = 2, walltime = "30m"}]'
        tables = [
            f'[[site]]\nname = "{one.name}"\npartition = "gpu"\nspeed = 1\nshapes = {shapes}\n'
            f'template = "job.tmpl"\nslurm_conf = "{one.conf}"\nstart_up = "5s"\n{more}\n'
            "[site.etiquette]\n"
            'poll = "1s"\nsettle = "5s"\nbackoff = "1s"\nprobes = 50\nsubmissions_a_day = 100\n'
            for one in clusters
        ]
        path = tmp_path / "sites.toml"
        path.write_text('replan = "10s"\n' + "\n".join(tables))
        return path

    return write


@pytest.fixture
async def acting(tmp_path: Path, cluster: Cluster, sites_file: MakeSites) -> AsyncIterator[Acting]:
    """An agent of the cluster, at work."""
    one = Acting(tmp_path / "home", sites_file(cluster), cluster.name)
    await one.begin()
    yield one
    await one.kill()


@pytest.fixture
async def told(tmp_path: Path) -> Told:
    """A run, and an agent at lumi that works and sees an empty queue: a log in memory."""
    path = tmp_path / "sites.toml"
    path.write_text('replan = "1s"\n' + SITE.format("lumi", ""))
    one = Told(load(path))
    await one.say(OPERATOR, created(config({"tokens": 100_000})))
    await one.agent(AgentReported(state="working", message="serves lumi"), FREE)
    return one
