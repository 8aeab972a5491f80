"""A run's configuration from a TOML file and `--set` overrides, or every problem named at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from eventlog.config import RunConfig
from eventlog.errors import AtollError
from ops.toml import read_toml

# fields whose text is not shown again, for it may hold what is nobody's business; and their form
_PRIVATE = {"blobs": 'write "broker" or "s3://bucket/prefix", and credentials nowhere in it'}


class ConfigInvalid(AtollError):
    """A configuration that cannot be used: one line per problem, each naming file and key."""


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The checked configuration in `path`, after `overrides` of the form `key.key=value`.

    A value is read as TOML (`0.5`, `true`, `[1, 2]`), and as text where it is no TOML. A target
    that is given so takes the place of the file's, of whichever kind that is. Raises ConfigInvalid,
    and OSError where the file cannot be read.
    """
    try:
        tree = read_toml(path.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{path}: not UTF-8 text at byte {error.start}") from error
    except ValueError as error:
        raise ConfigInvalid(f"{path}: not TOML: {error}") from error
    return changed(tree, overrides, str(path))


def changed(tree: dict[str, Any], overrides: Sequence[str], where: str) -> RunConfig:
    """The checked configuration of a tree that is read from `where`, after overrides as in `load`;
    the tree changes with them. Raises ConfigInvalid."""
    if any(override.partition(".")[0].strip() == "target" for override in overrides):
        tree.pop("target", None)  # one of three: to name one is to leave the file's
    for override in overrides:
        _apply(tree, override)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        named = {override.partition("=")[0].replace(" ", "") for override in overrides}
        raise ConfigInvalid("\n".join(_problems(where, named, error))) from error


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, leaf = (part.strip() for part in key.split("."))
    if not equals or not all([*tables, leaf]):
        raise ConfigInvalid(f"--set {override}: write it as key.key=value")
    for depth, table in enumerate(tables, start=1):
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise ConfigInvalid(f"--set {override}: {'.'.join(tables[:depth])} is no table")
    tree[leaf] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        parsed = read_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _problems(where: str, overridden: set[str], error: ValidationError) -> Iterable[str]:
    """A line each, which names what is to be changed: the file, or an override of it."""
    for problem in error.errors(include_url=False):
        keys = [str(part) for part in problem["loc"]]
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = "unknown key" + _suggestion(keys)
        elif problem["type"] == "missing":
            what = "missing"
        elif problem["type"] == "string_pattern_mismatch":
            what = f"lower-case letters, digits and hyphens only, not {problem['input']!r}"
            what = _PRIVATE.get(keys[-1], what)
        elif keys and not isinstance(problem["input"], dict):
            what = f"{what[0].lower()}{what[1:]}, not {problem['input']!r}"
        key = ".".join(keys)
        begins = "--set" if key in overridden else f"{where}:"
        yield f"{begins} {key}: {what}" if key else f"{begins} {what}"


def _suggestion(keys: list[str]) -> str:
    """Which key of that table may have been meant."""
    table: type[BaseModel] | None = RunConfig
    for key in keys[:-1]:
        table = _section(table.model_fields[key].annotation) if table else None
    near = difflib.get_close_matches(keys[-1], table.model_fields if table else (), n=1)
    return f"; did you mean {'.'.join([*keys[:-1], near[0]])}?" if near else ""


def _section(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
