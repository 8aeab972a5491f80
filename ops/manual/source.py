"""What stands beside the fields of a model: the comments of its source, which explain them."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from typing import Any

from pydantic import BaseModel


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Field -> its comments: the lines above it, then what stands behind it. '' where there is
    none."""
    source = textwrap.dedent(inspect.getsource(model))
    above, behind = _comments(source)
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines: list[str] = []
            line = node.lineno - 1
            while line in above:
                lines.insert(0, above[line])
                line -= 1
            said = [" ".join(lines), behind.get(node.end_lineno or node.lineno, "")]
            found[node.target.id] = "; ".join(filter(None, said))
    return found


def as_written(model: type[BaseModel]) -> dict[str, ast.expr]:
    """Field -> its annotation as it is written."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    return {
        node.target.id: node.annotation
        for node in tree.body[0].body  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def kind(schema: dict[str, Any]) -> str:
    """A field's JSON schema in words: `integer, 1 to 16`, `"keep" or "reset"`."""
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return " or ".join(f'"{one}"' for one in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    name = schema.get("type", "any")
    if name == "array":
        if "prefixItems" in schema:
            return "(" + ", ".join(kind(one) for one in schema["prefixItems"]) + ")"
        return f"list of {kind(schema.get('items', {}))}"
    if name == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"table of {kind(schema['additionalProperties'])}"
    word = {"object": "table", "string": "text"}.get(name, name)
    return ", ".join(filter(None, [word, _bounds(schema)]))


def _bounds(schema: dict[str, Any]) -> str:
    """What a number may be; bounds that only say that it fits 64 bits are left out."""
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if over is not None and (low is None or low <= over):
        low = None
    high, under = (None if end is not None and end >= 2**62 else end for end in (high, under))
    if low is not None and high is not None:
        return f"{_number(low)} to {_number(high)}"
    ends = (("at least", low), ("above", over), ("at most", high), ("below", under))
    return ", ".join(f"{words} {_number(end)}" for words, end in ends if end is not None)


def _number(value: float) -> str:
    return f"{value:,.12g}"


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """(line -> a comment alone on it, line -> one behind code)."""
    above: dict[int, str] = {}
    behind: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            (above if alone else behind)[token.start[0]] = token.string.lstrip("# ")
    return above, behind


def cell(text: str) -> str:
    """Text that fits a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def first_paragraph(model: type[BaseModel]) -> str:
    """Of a model's docstring; '' where it has none of its own."""
    return inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
