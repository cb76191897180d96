"""The metadata that users recorded with a version, as JSON and as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import Recorded, document_of
from edl_ckpt.cli.terminal.tables import Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.model.versions import Version

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(version: Version) -> dict[str, Any]:
    """Return `edl-ckpt/metadata/1`."""
    return document_of("metadata", version, "ref version metadata", version=version.number)


def rows(version: Version) -> list[list[Any]]:
    """Return a header and one row for each key, by name; a value is JSON."""
    found = sorted(version.metadata.items())
    return [["ref", "version", "key", "value"], *([version.ref, version.number, k, Recorded(v)] for k, v in found)]


def human(version: Version) -> Lines:
    """Yield the version, and a line for each key."""
    yield head(version.ref)
    if not version.metadata:
        yield styled("no metadata; record some with `edl-ckpt metadata set`", "dim")
        return
    yield lines(version.metadata)


def lines(metadata: Mapping[str, Any]) -> RenderableType:
    """Return a line for each key, by name: the key, and its value as JSON; a text stands without quotes."""
    columns = Column("key", "name", title=""), Column("value", "prose", worth=9, title="")
    return Table(*columns, rows=([Cell(key, "dim"), shown(metadata[key])] for key in sorted(metadata)))


def shown(value: Any) -> str:
    """Return a value of JSON in one line, safe on any terminal.

    >>> shown({"a": [1, None]}), shown("adam"), shown("0.5")
    ('{"a": [1, null]}', 'adam', '"0.5"')
    """
    if not isinstance(value, str):
        return text.escaped(json.dumps(value, ensure_ascii=False))
    return text.escaped(json.dumps(value, ensure_ascii=False) if _reads_as_json(value) else value)


def _reads_as_json(word: str) -> bool:
    """Say whether a text would be another value without its quotes."""
    from edl_ckpt.core.state.document import parse_value

    try:
        parse_value(word)
    except ValueError:
        return not word
    return True
