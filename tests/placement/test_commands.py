"""`atoll place probe`, `halt`, `go` and `atoll site script`, as a person calls them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from ops.cli import run
from tests.placement.conftest import MakeSites
from tests.support.slurm import Cluster

SITES = """
[[site]]
name = "lumi"
partition = "gpu"
speed = 1
shapes = [{nodes = 1, walltime = "10m"}, {nodes = 2, walltime = "30m"}]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    path = tmp_path / "sites.toml"
    path.write_text(SITES)
    return path


def test_a_script_is_printed_as_it_would_be_submitted(
    sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["site", "script", "lumi", "--sites", str(sites), "--run", "big"]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --nodes=2" in text and "#SBATCH --time=00:30:00" in text
    assert "site run big lumi" in text
    options = ["--nodes", "7", "--walltime", "4h", "--successor"]
    assert run(["site", "script", "lumi", "--sites", str(sites), *options]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --nodes=7" in text and "--time=04:00:00" in text and "--successor" in text


def test_mistakes_are_one_line_with_the_right_code(
    sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["site", "script", "nobody", "--sites", str(sites)]) == 3
    assert "no site nobody; it has lumi" in capsys.readouterr().err
    sites.write_text(SITES.replace("speed", "sped"))
    assert run(["place", "probe", "lumi", "--sites", str(sites)]) == 3
    assert "unknown key" in capsys.readouterr().err
    assert run(["place", "probe", "lumi"]) == 2
    assert run(["site", "run", "r", "lumi", "--data", str(sites.parent), "--walltime", "job"]) == 2
    assert "no SLURM_JOB_ID" in capsys.readouterr().err


def test_a_halt_is_made_and_ended(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["place", "halt", "--reason", "the centre asks"]) == 0
    assert "the centre asks" in (home / "placement" / "halt").read_text()
    assert run(["place", "go"]) == 0 and run(["place", "go"]) == 1
    assert "nothing was halted" in capsys.readouterr().err


def test_probes_of_a_real_slurm_as_json(
    cluster: Cluster, sites_file: MakeSites, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.occupy(3)
    sites = sites_file(cluster)
    assert run(["place", "probe", "alpha", "--sites", str(sites), "--json"]) == 0
    small, large = map(json.loads, capsys.readouterr().out.splitlines())
    assert (small["nodes"], large["nodes"]) == (1, 2)
    assert small["start_epoch_s"] <= time.time() + 30 < large["start_epoch_s"]
    sites.write_text(sites.read_text().replace("probes = 50", "probes = 2"))
    assert run(["place", "probe", "alpha", "--sites", str(sites)]) == 1
    assert "the cap on probes is reached" in capsys.readouterr().out


def test_the_printed_script_is_one_that_slurm_takes(
    cluster: Cluster, sites_file: MakeSites, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sites = sites_file(cluster)
    sites.write_text(sites.read_text().replace('template = "job.tmpl"', ""))
    assert run(["site", "script", "alpha", "--sites", str(sites)]) == 0
    script = tmp_path / "job.sh"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["bash", "-n", str(script)], check=True)
    job = cluster.run("sbatch", "--parsable", "--hold", str(script)).strip()
    told = cluster.run("scontrol", "show", "job", "-o", job)
    assert "NumNodes=2" in told and "TimeLimit=00:30:00" in told
    assert "Requeue=0" in told and "Comment=atoll run run, site alpha" in told
