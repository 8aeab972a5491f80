"""What README and the pages tell a person to type is what the commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from ops.cli import root
from ops.configure import load

ROOT = Path(__file__).parent.parent.parent


PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
MADE = "docs/reference.md"  # of the helps themselves: it has usage lines, not commands
FILES = (".atoll", ".creds", ".json", ".toml", ".txt")  # of what a command reads
NAMED = {"V": "1", "N": "1", "E:B": "0:1", "HOST": "localhost"}


def commands(page: str) -> list[list[str]]:
    """The words of every `atoll` line of a page's blocks: comments, what is said behind three
    blanks, where its output goes, a prompt, and variables that are set before it are left out."""
    blocks = re.findall(
        r"^ *```\w*\n(.*?)^ *```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )
    found = []
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*(\$ |[A-Z_]+=\S+ )*", "", line)
        if line.startswith("atoll ") and "…" not in line:
            said = re.split(r"(?<=\S) {3,}(?![- ])| [>|] ", line)[0]
            found.append(shlex.split(said, comments=True)[1:])
    return found


def named(word: str) -> str:
    """A word to replace, replaced by what it stands for: RUN is a run."""
    if re.fullmatch(r"[A-Z][A-Z.:]*[A-Z]|[VN]", word):
        return NAMED.get(word, word.lower())
    return word


@pytest.mark.parametrize(
    "words",
    [words for page in PAGES if page != MADE for words in commands(page)],
    ids=" ".join,
)
def test_every_line_to_type_is_taken(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [named(word) for word in words]
    for folder in ("tokens", "dir"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ops").symlink_to(ROOT / "ops")
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.endswith(FILES) and not word.startswith(("/", "ops/")) and "=" not in word:
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).touch()
    (tmp_path / ".atoll").mkdir(exist_ok=True)
    for name in ("keys", ".atoll/keys", "stolen", "file"):
        (tmp_path / name).touch()
    context = root.make_context("atoll", list(words))  # a command remembers its first one's help
    command: click.Command = root
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    context = command.make_context(command.name, list(words), parent=context)
    if "name=mine" in context.params.get("overrides", ()):
        assert load(context.params["config"], context.params["overrides"]).name == "mine"


def test_the_walk_through_has_the_commands_that_make_a_run() -> None:
    typed = {" ".join(words[:2]) for words in commands("README.md")}
    assert {"broker serve", "data build", "run create", "coordinate mine", "site run"} <= typed


def test_start_leads_from_a_broker_to_a_verified_model() -> None:
    typed = [" ".join(words[:2]) for words in commands("docs/start.md")]
    way = ["broker config", "broker add-site", "broker serve", "run create", "coordinate mine"]
    way += ["site run", "watch mine", "log export", "audit mine.atoll", "report mine.atoll"]
    assert [step for step in typed if step in way] == sorted(
        [step for step in typed if step in way], key=way.index
    )
    assert set(way) <= set(typed)
