"""The house rules that no linter knows, over every file of the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
STRICT_ROOMS = ("eventlog", "leases", "outer", "broker")
MAX_LINES = 300

UNFINISHED = re.compile(r"\b(TO" + "DO|FIX" + "ME|X" + "XX|NotImplemented" + r"Error)\b")
REGISTRIES = ("pypi", "org"), ("pythonhosted", "org"), ("pytorch", "org"), ("npmjs", "org")
ROOM_PATH = re.compile(r"`((?:broker|eventlog|leases|ops|outer|sitehub|tests)/[\w/.-]+)`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)[^)]*\)")
HOSTS = re.compile("|".join(rf"\b{name}\.{top}\b" for name, top in REGISTRIES))


def repository_files() -> list[str]:
    """Paths of all files that are tracked or would be, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return sorted({name for name in listed.stdout.split("\0") if (ROOT / name).is_file()})


def python_files(*folders: str) -> Iterator[tuple[str, str]]:
    """(path, text) of the Python files in these top-level folders, or of all."""
    for name in repository_files():
        if name.endswith(".py") and (not folders or name.split("/")[0] in folders):
            yield name, (ROOT / name).read_text()


def matches(pattern: re.Pattern[str]) -> list[str]:
    """`path:line` wherever the pattern stands in a text file."""
    found = []
    for name in repository_files():
        lines = (ROOT / name).read_bytes().decode("utf-8", errors="replace").splitlines()
        found += [f"{name}:{n}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    return found


def paths_named_in(name: str) -> Iterator[Path]:
    """Files and folders that a Markdown page names in backticks or links to."""
    text = (ROOT / name).read_text()
    yield from (ROOT / path for path in ROOM_PATH.findall(text))
    yield from ((ROOT / name).parent / path for path in LINK.findall(text))


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public classes and functions of a module without a docstring."""
    for node in tree.body:
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
            and not says_itself(node)
        ):
            yield node.name


def says_itself(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """An event, whose `type` is its sentence, and the fold's handler of one event, whose rule is
    the module's."""
    if isinstance(node, ast.ClassDef):
        fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
        return "type" in map(ast.unparse, fields)
    return [argument.arg for argument in node.args.args] == ["books", "entry"]


def asserts(test: ast.AST) -> bool:
    """Whether a test can fail by its own words: an assert, `raises`, or a helper called check..
    or assert.."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name.startswith(("check", "assert", "run_state_machine")) or name == "raises":
                return True
    return False


def test_python_files_keep_to_300_lines() -> None:
    too_long = {
        name: lines
        for name, text in python_files()
        if (lines := len(text.splitlines())) > MAX_LINES
    }
    assert too_long == {}


def test_nothing_is_left_unfinished() -> None:
    assert matches(UNFINISHED) == []


def test_the_documents_name_only_files_that_exist() -> None:
    pages = [name for name in repository_files() if name.endswith(".md")]
    assert "docs/architecture.md" in pages
    named = [(page, path) for page in pages for path in paths_named_in(page)]
    assert [f"{page}: {path}" for page, path in named if not path.exists()] == []


def test_no_package_registry_is_named() -> None:
    assert matches(HOSTS) == []


def test_every_module_of_the_rooms_says_what_it_is() -> None:
    rooms = (*STRICT_ROOMS, "sitehub", "ops")
    silent = [name for name, text in python_files(*rooms) if not ast.get_docstring(ast.parse(text))]
    assert silent == []


def test_public_names_of_the_strict_rooms_are_documented() -> None:
    missing = [
        f"{name}: {what}"
        for name, text in python_files(*STRICT_ROOMS)
        for what in undocumented(ast.parse(text))
    ]
    assert missing == []


def test_every_test_asserts_something() -> None:
    idle = [
        f"{name}:{node.lineno} {node.name}"
        for name, text in python_files("tests")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not asserts(node)
    ]
    assert idle == []
