"""The sites file, the scripts made of it, and the walltime that a job is told."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ops.placement.granted import NoJob, left_s
from ops.placement.script import Ask, job_name, render
from ops.placement.shapes import Shape
from ops.placement.sites import Site, SitesInvalid, load
from ops.placement.slurm.commands import cleaned

SITE = """
[[site]]
name = "lumi"
partition = "standard-g"
account = "project_1"
speed = 5200.5
shapes = [{nodes = 4, walltime = "12h"}, {nodes = 1, walltime = "30m"}]
options = ["--gpus-per-node=8", "--qos=normal"]
setup = "module load atoll"
start_up = "90s"
"""


def write(folder: Path, text: str = SITE) -> Path:
    path = folder / "sites.toml"
    path.write_text(text)
    return path


def test_a_file_becomes_what_the_planner_sees(tmp_path: Path) -> None:
    profile = load(write(tmp_path)).named("lumi").profile()
    assert profile.shapes == (Shape(1, 1800), Shape(4, 43_200))
    assert (profile.partition, profile.account, profile.speed) == (
        "standard-g",
        "project_1",
        5200.5,
    )
    assert profile.start_up_s == 90.0 and profile.queue == "lumi/standard-g"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("speed = 5200.5", "speed = 0"), "site.0.speed"),
        (('name = "lumi"', 'name = "Lumi"'), "site.0.name"),
        (("start_up", "startup"), "site.0.startup: unknown key"),
        (('walltime = "12h"', 'walltime = "soon"'), "site.0.shapes.0.walltime"),
        (('partition = "standard-g"', ""), "site.0.partition: missing"),
        (('"--qos=normal"', '"qos"'), "site.0.options.1"),
        (('start_up = "90s"', "[site.limits]\nmax_pending = 9"), "max_queued"),
        (("[[site]]", "[[site]"), "not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(SitesInvalid, match=r"sites\.toml") as error:
        load(write(tmp_path, SITE.replace(*change)))
    assert complaint in str(error.value)


def test_a_value_in_the_wrong_table_is_told_where_it_belongs_and_nothing_else(
    tmp_path: Path,
) -> None:
    misplaced = SITE.replace('name = "lumi"', 'name = "lumi"\nimage = "/a.sif"')
    with pytest.raises(SitesInvalid) as error:
        load(write(tmp_path, misplaced))
    (line,) = str(error.value).splitlines()
    assert "site.0.image: unknown key" in line and "{{image}}" in line and "[site.values]" in line


def test_a_site_stands_there_once_and_an_unknown_one_is_told_who_is(tmp_path: Path) -> None:
    with pytest.raises(SitesInvalid, match="twice"):
        load(write(tmp_path, SITE + SITE))
    with pytest.raises(SitesInvalid, match="it has lumi"):
        load(write(tmp_path)).named("frontier")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return load(write(tmp_path)).named("lumi")


def test_the_script_asks_for_the_shape_and_runs_the_site(site: Site, tmp_path: Path) -> None:
    ask = Ask("big", "atoll-big-1", Shape(4, 43_200), follows=True, begin_in_s=600)
    text = render(site, ask, tmp_path, tmp_path / "logs")
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in (
        "--job-name=atoll-big-1",
        "--partition=standard-g",
        "--account=project_1",
        "--nodes=4",
        "--time=12:00:00",
        "--begin=now+600",
        "--no-requeue",
        "--gpus-per-node=8",
        "--qos=normal",
    ):
        assert f"#SBATCH {option}" in lines
    assert any("--comment=" in line and "big" in line and "lumi" in line for line in lines)
    assert "atoll site run big lumi --data tokens --walltime job --successor &" in lines
    assert "module load atoll" in lines and "{{" not in text
    first = render(site, Ask("big", "atoll-big-1", Shape(4, 60)), tmp_path, tmp_path)
    assert "--successor" not in first and "--begin" not in first


def test_the_script_is_one_that_bash_reads(site: Site, tmp_path: Path) -> None:
    text = render(site, Ask("big", "j", Shape(1, 60)), tmp_path, tmp_path)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


# a shell that is late: atoll has gone by then
SLOW = 'kill() { builtin kill "$@"; local said=$?; sleep 0.5; return $said; }'


@pytest.mark.parametrize("setup", ["", SLOW])
def test_a_jobs_script_passes_signals_and_the_exit_code_on(
    site: Site, tmp_path: Path, setup: str
) -> None:
    """A stand-in for atoll, which leaves well on SIGTERM with 75, as `site run` does."""
    fake = tmp_path / "atoll"
    fake.write_text("#!/bin/bash\ntrap 'exit 75' TERM\ntouch began\nwhile :; do sleep 0.05; done\n")
    fake.chmod(0o755)
    one = site.model_copy(update={"command": str(fake), "setup": setup})
    script = tmp_path / "job.sh"
    script.write_text(render(one, Ask("big", "j", Shape(1, 60)), tmp_path, tmp_path))
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "TMPDIR": str(tmp_path)}
    job = subprocess.Popen(["bash", str(script)], cwd=tmp_path, env=env)
    while not (tmp_path / "began").exists():
        assert job.poll() is None
    assert list(tmp_path.glob("atoll-*-7"))
    job.terminate()
    assert job.wait(20) == 75
    assert not list(tmp_path.glob("atoll-*-7")), "what is node-local goes with the job"


def test_a_template_of_ones_own_is_checked_before_anything_is_asked(
    site: Site, tmp_path: Path
) -> None:
    one = site.model_copy(update={"template": "own.sh"})
    (tmp_path / "own.sh").write_text("#!/bin/sh\n{{directives}}\n${HOME} {x} {{ command }}\n")
    text = render(one, Ask("big", "j", Shape(1, 60)), tmp_path, tmp_path)
    assert "${HOME} {x} atoll site run big lumi" in text
    (tmp_path / "own.sh").write_text("#!/bin/sh\n{{directives}}\n{{commnd}}\n")
    with pytest.raises(SitesInvalid, match=r"no such thing as .*commnd"):
        render(one, Ask("big", "j", Shape(1, 60)), tmp_path, tmp_path)
    (tmp_path / "own.sh").write_text("#!/bin/sh\n{{command}}\n")
    with pytest.raises(SitesInvalid, match=r"without .*directives"):
        render(one, Ask("big", "j", Shape(1, 60)), tmp_path, tmp_path)


def test_names_of_jobs_are_short_and_no_two_runs_share_one() -> None:
    long = job_name("r" * 63, "s" * 63, 123_456, "id")
    assert len(long) <= 63
    names = {
        job_name(run, site, number, founded)
        for run in ("r", "rr")
        for site in ("s", "ss")
        for number in (1, 2)
        for founded in ("a", "b")
    }
    assert len(names) == 16
    assert job_name("r", "s", 1, "a") == job_name("r", "s", 1, "a")


def test_a_users_own_settings_do_not_reach_slurm() -> None:
    mine = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SQUEUE_FORMAT": "%i",
        "SBATCH_PARTITION": "old",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_JOB_ID": "7",
        "SINFO_FORMAT": "x",
        "SACCT_FORMAT": "y",
        "TZ": "America/New_York",
        "LC_ALL": "de_DE.UTF-8",
        "LANGUAGE": "de",
    }
    asked = cleaned(mine)
    assert asked == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_TIME_FORMAT": "%s",
        "TZ": "UTC",
        "LC_ALL": "C",
    }
    for_a_job = cleaned(mine, keeps_zone=True)
    assert for_a_job["TZ"] == "America/New_York" and "SBATCH_PARTITION" not in for_a_job
    assert "SLURM_TIME_FORMAT" not in for_a_job


def said(text: str) -> object:
    def ask(command: Sequence[str], environment: Mapping[str, str]) -> str:
        assert command[:4] == ["squeue", "-h", "-j", "7"]
        return text

    return ask


def test_a_job_asks_how_long_it_was_granted() -> None:
    here = {"SLURM_JOB_ID": "7"}
    now = 1_800_000_000.0
    assert left_s({**here, "SLURM_JOB_END_TIME": "1800000090"}, now) == 90.0
    banner = "Welcome\natoll|7|1800000060\n"
    assert left_s(here, now, said(banner)) == 60.0  # type: ignore[arg-type]
    asked = {**here, "ATOLL_JOB_WALLTIME_S": "3600"}
    assert left_s(asked, now, said("")) == 3600.0  # type: ignore[arg-type]
    begun = {**asked, "SLURM_JOB_START_TIME": "1799999400"}
    assert left_s(begun, now, said("")) == 3000.0  # type: ignore[arg-type]


def test_without_a_job_or_an_end_one_is_told_what_to_do() -> None:
    with pytest.raises(NoJob, match="SLURM_JOB_ID"):
        left_s({}, 0.0)
    with pytest.raises(NoJob, match="does not say"):
        left_s({"SLURM_JOB_ID": "7"}, 0.0, said("atoll|7|N/A"))  # type: ignore[arg-type]
