"""Pages, pictures, man pages and completion that are made of the code say what the code says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import get_args, get_type_hints

import click
import pytest
import yaml

from eventlog.events import EVENTS
from leases.states import MOVES
from ops import docs, exits
from ops.alarm.due import Cause
from ops.cli import root
from ops.manual import configuration, language, pages, picture
from ops.manual.environment import VARIABLES
from ops.manual.source import meanings

ROOT = Path(__file__).parents[2]
RUNBOOKS = (ROOT / "docs" / "operate.md").read_text()


def headings(page: str) -> set[str]:
    """Titles of a page's sections, without their marks."""
    return {line.lstrip("# ").strip("`") for line in page.splitlines() if line.startswith("#")}


def test_what_is_made_of_the_code_is_current() -> None:
    stale = [path.name for path, text in docs.pages().items() if path.read_text() != text]
    assert stale == [], "run `make docs`"


def test_every_key_of_a_configuration_is_explained_where_it_is_declared() -> None:
    found = [key for _, _, model in configuration.FILES for key in configuration.keys(model)]
    assert len(found) > 80
    assert [key for key, model, field in found if not meanings(model)[field]] == []


def test_the_page_of_events_has_every_type_and_the_subject_of_every_role() -> None:
    page = language.page()
    assert set(EVENTS) <= headings(page)
    assert {"`coordinator`", "`operator`", "`site.NAME`", "`agent.NAME`", "`planner`"} <= set(
        re.findall(r"Its subject: (\S+)\.$", page, re.MULTILINE)
    )


def test_the_picture_shows_every_state_and_every_move() -> None:
    tree = ET.fromstring(picture.states())
    space = "{http://www.w3.org/2000/svg}"
    texts = [node.text or "" for node in tree.iter(f"{space}text")]
    assert {state for (old, _), new in MOVES.items() for state in (old, new)} <= set(texts)
    arrows = [node for node in tree.iter(f"{space}path") if node.get("marker-end")]
    assert len(arrows) == len({(old, new) for (old, _), new in MOVES.items()})
    moves = [move for text in texts for move in text.split(", ")]
    assert all(moves.count(move) == sum(m == move for _, m in MOVES) for _, move in MOVES)


def test_every_alarm_has_a_runbook() -> None:
    names = set(get_args(get_type_hints(Cause)["name"]))
    assert {"stall", "broker", "disk"} <= names <= headings(RUNBOOKS)
    groups = yaml.safe_load((ROOT / "ops" / "deploy" / "alerts.yml").read_text())["groups"]
    rules = [rule["alert"] for group in groups for rule in group["rules"]]
    assert [rule for rule in rules if rule not in RUNBOOKS] == []


def test_every_exit_code_has_a_runbook() -> None:
    assert {f"Exit code {code}" for code in exits.MEANING} <= headings(RUNBOOKS)


def test_every_variable_that_is_an_option_too_is_listed() -> None:
    asked = {
        str(option.envvar)
        for command, _ in docs.commands(root, docs.root_context())
        for option in command.params
        if option.envvar
    }
    assert {"ATOLL_BROKER", "ATOLL_CREDS"} <= asked <= VARIABLES.keys()


def test_each_command_has_a_man_page_with_every_option(tmp_path: Path) -> None:
    written = pages.write(tmp_path)
    for command, context in docs.commands(root, docs.root_context()):
        path = tmp_path / f"{context.command_path.replace(' ', '-')}.1"
        assert path in written
        text = path.read_text().replace("\\-", "-")
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert [one.opts for one in options if one.opts[-1] not in text] == []


def test_man_reads_every_page_without_a_complaint(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        (pytest.fail if os.environ.get("ATOLL_CI") else pytest.skip)("needs groff (groff-base)")
    paths = pages.write(tmp_path)
    command = ["groff", "-man", "-ww", "-Tutf8", "-Kutf8", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "do not requeue" in " ".join(done.stdout.split())


def test_bash_completes_commands(tmp_path: Path) -> None:
    program = tmp_path / "atoll"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ops "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(atoll completion bash)"
        COMP_WORDS=(atoll run cr) COMP_CWORD=2 COMPREPLY=()
        _atoll_completion atoll
        echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["create"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_theirs(shell: str) -> None:
    command = [sys.executable, "-m", "ops", "completion", shell]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"_ATOLL_COMPLETE={shell}_complete" in done.stdout


def test_the_site_is_built_without_a_warning_and_asks_nobody_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "docs", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(?:https?:)?//', page) == []
    assert (tmp_path / "site" / "_images" / "states.svg").is_file()
