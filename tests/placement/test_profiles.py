"""The profiles of known centres: what is missing is named, what is rendered is what is shown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ops.cli import run
from ops.placement import profiles
from ops.placement.script import Ask, render
from ops.placement.shapes import Shape
from ops.placement.sites import SitesInvalid

CENTRES = ("frontier", "lumi", "snellius")
ASK = Ask("big", "j", Shape(1, 3600))


@pytest.mark.parametrize("centre", CENTRES)
def test_each_field_that_no_source_gives_is_asked_for_by_name(centre: str, tmp_path: Path) -> None:
    needs = profiles.profile(centre).needs
    assert {"account", "data", "credentials"} <= needs.keys()
    for name in needs:
        others = {one: "here" for one in needs if one != name}
        with pytest.raises(SitesInvalid) as error:
            render(profiles.profile(centre, **others), ASK, tmp_path, tmp_path)
        assert f"fill in `{name}`" in str(error.value) and needs[name] in str(error.value)
        assert "\n" not in str(error.value)
    text = render(profiles.profile(centre, **dict.fromkeys(needs, "here")), ASK, tmp_path, tmp_path)
    assert "{{" not in text and "--account=here" in text and "--creds here" in text
    assert "not run at the centre" in text and "https://" in text


@pytest.mark.parametrize("centre", CENTRES)
def test_the_rendered_scripts_are_what_the_profiles_say(centre: str) -> None:
    shown = (profiles.RENDERED / f"{centre}.sh").read_text()
    assert shown == profiles.example(centre), "run `python -m ops.docs`"
    assert subprocess.run(["bash", "-n"], input=shown, text=True, check=False).returncode == 0
    assert "#SBATCH --signal=B:USR1@600" in shown and "#SBATCH --requeue" in shown


@pytest.mark.parametrize(
    ("code", "restarts", "requeues"),
    [(75, "", True), (75, "49", True), (75, "50", False), (0, "", False), (6, "", False)],
)
def test_a_job_starts_again_on_75_alone_and_not_for_ever(
    tmp_path: Path, code: int, restarts: str, requeues: bool
) -> None:
    """The script itself: an atoll that ends so, a Slurm that writes down what it is asked."""
    site = profiles.profile("snellius", **dict.fromkeys(profiles.profile("snellius").needs, "x"))
    ask = Ask("big", "j", Shape(1, 3600), requeues=True)
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    (tmp_path / "atoll").write_text(f"#!/bin/sh\nexit {code}\n")
    for name in ("scontrol", "atoll"):
        (tmp_path / name).chmod(0o755)
    one = site.model_copy(update={"setup": "", "command": "atoll"})
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "TMPDIR": str(tmp_path)}
    env |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    script = render(one, ask, tmp_path, tmp_path)
    done = subprocess.run(["bash"], input=script, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == code
    asked = tmp_path / "asked"
    assert (asked.read_text() == "requeue 7\n") if requeues else not asked.exists()
    assert "--no-requeue" in render(one, ASK, tmp_path, tmp_path)


def test_a_person_gets_a_profile_and_is_told_what_to_fill_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "home"))
    assert run(["site", "profile"]) == 0
    assert capsys.readouterr().out.split() == list(CENTRES)
    assert run(["site", "profile", "lumi"]) == 0
    (tmp_path / "sites.toml").write_text(capsys.readouterr().out)
    assert run(["site", "script", "lumi", "--sites", str(tmp_path / "sites.toml")]) == 3
    said = capsys.readouterr().err
    assert "`account`" in said and len(said.splitlines()) == 1
    assert run(["site", "profile", "atlantis"]) == 3
    assert "frontier, lumi, snellius" in capsys.readouterr().err
