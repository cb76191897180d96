"""Draw the JSON Schemas of all documents as one page: a row for each key, with what its value is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edl_ckpt.cli.render.schemas import OF_COMMANDS

_HEAD = """# JSON documents

The keys of every document that `--json` prints, made from its [JSON Schema](../schemas). `[]` stands for each item of a
list, `{}` for each name of an object. A key in parentheses is not always there. A number may be the text `NaN`,
`Infinity` or `-Infinity`.
[JSON and exit codes](../json-and-exit-codes.md) explains the documents.
"""
_WORDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}


def draw(schemas: Mapping[str, Any]) -> str:
    """Return the page, with a section for each document."""
    lines = [_HEAD]
    for name, schema in schemas.items():
        commands = [command for command, names in OF_COMMANDS.items() if name in names]
        lines += [f"## {name}", "", f"Printed by {', '.join(f'`{one}`' for one in commands or [name])}.", ""]
        lines += ["| key | value |", "|---|---|", *_rows(schema, "", schema.get("$defs", {})), ""]
    return "\n".join(lines).replace("Printed by `error`", "The last line on stderr of a command that fails")


def _rows(schema: Any, path: str, definitions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of an object's keys, those of the objects in it behind each."""
    for key, value in schema.get("properties", {}).items():
        full = f"{path}.{key}" if path else key
        shown = f"`{full}`" if key in schema.get("required", ()) else f"(`{full}`)"
        yield f"| {shown} | {_value(value, definitions)} |"
        yield from _inside(value, full, definitions)


def _inside(value: Any, path: str, definitions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of the objects in a value."""
    yield from _rows(value, path, definitions)
    for choice in value.get("anyOf", ()):
        yield from _inside(choice, path, definitions)
    if "items" in value:
        yield from _inside(value["items"], f"{path}[]", definitions)
    if isinstance(values := value.get("additionalProperties"), dict):
        yield from _inside(values, f"{path}{{}}", definitions)


def _value(value: Any, definitions: Mapping[str, Any]) -> str:
    """Return in words what a value may be."""
    if "const" in value or "enum" in value:
        return ", ".join(f"`{one}`" if one else "empty" for one in value.get("enum", [value.get("const")]))
    if "anyOf" in value and value["anyOf"][-1] == {"enum": ["NaN", "Infinity", "-Infinity"]}:
        return "number"
    if "anyOf" in value:
        return " or ".join(_value(choice, definitions) for choice in value["anyOf"])
    if "$ref" in value:
        return "numbers or flags, in lists as deep as the shape"
    if value.get("type") == "array":
        return f"list of {_value(value['items'], definitions)}"
    if value.get("type") == "object":
        return "object"
    if isinstance(value.get("type"), list):
        return " or ".join(_WORDS[one] for one in value["type"])
    return {"date-time": "time"}.get(value.get("format"), _WORDS.get(value.get("type"), "any value"))
