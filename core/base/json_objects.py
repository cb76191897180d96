"""JSON objects in the files of other programs: nothing else passes, and no name occurs twice."""

from __future__ import annotations

import json
from typing import Any

from edl_ckpt.core.base.errors import CorruptError


def parse_object(data: bytes, path: str, *, offset: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a header or in notes; CorruptError for anything else, and for a name twice.

    `offset` is where it begins in the file.

    >>> parse_object(b'{"a": 1, "a": 1}', "m.json")
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.CorruptError: m.json: the header has the name 'a' twice
    """
    try:
        document = json.loads(data, object_pairs_hook=_unique)
    except KeyError as error:
        raise CorruptError(f"the header has the name {error} twice", path=path, offset=offset) from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise CorruptError("the header is not a JSON object", path=path, offset=offset)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of an object; KeyError for a name that occurs twice."""
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise KeyError(name)
        document[name] = value
    return document
