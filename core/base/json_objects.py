"""JSON objects in the files of other programs: nothing else passes, and no name occurs twice."""

from __future__ import annotations

import json
from typing import Any, Final

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.names import is_unicode
from edl_ckpt.core.base.patterns import LatePattern

_SURROGATE: Final = LatePattern(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""What a document must have for half of a pair of surrogates to be in it, alone or in a pair."""


def parse_object(data: bytes, path: str, *, offset: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a header or in notes; CorruptError for anything else, and for a name twice.

    Texts must be valid Unicode, as the libraries of these formats demand. `offset` is where it begins in the file.

    >>> parse_object(b'{"a": 1, "a": 1}', "m.json")
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.CorruptError: m.json: the header has the name 'a' twice
    """
    try:
        document = json.loads(data, object_pairs_hook=_unique)
        is_valid = not _SURROGATE.search(data) or is_unicode(json.dumps(document, ensure_ascii=False))
    except KeyError as error:
        raise CorruptError(f"the header has the name {error} twice", path=path, offset=offset) from None
    except (ValueError, RecursionError):
        document, is_valid = None, True
    if not is_valid:
        raise CorruptError("the header has a text that is not valid Unicode", path=path, offset=offset)
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
