"""Writes moto's listings of objects as XML; moto itself takes half a millisecond for each object in one.

Moto chooses what a listing has. Only the text is made here, and `test_s3_listing.py` compares it with moto's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from xml.sax.saxutils import escape

_HEAD: Final = (
    '<?xml version="1.0" encoding="utf-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
)
_TAIL: Final = "</ListBucketResult>"


def listing(result: Mapping[str, Any]) -> str:
    """Return the document of a ListObjectsV2 result."""
    return _HEAD + _members(result) + _TAIL


def write_listings_quickly(responses: type[Any]) -> None:
    """Let moto's class of responses write listings by `listing`; the method of its base class writes all else."""
    before: Callable[[Any, Any], Any] = responses.serialized

    def serialized(self: Any, action_result: Any) -> Any:
        if self.data.get("Action") != "ListObjectsV2":
            return before(self, action_result)
        return 200, {"Content-Type": "application/xml"}, listing(action_result.result)

    responses.serialized = serialized


def _members(values: Mapping[str, Any]) -> str:
    return "".join(_element(name, value) for name, value in values.items())


def _element(name: str, value: Any) -> str:
    if isinstance(value, list):
        return "".join(_element(name, member) for member in value)
    if isinstance(value, Mapping):
        text = _members(value)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = escape(str(value))
    return f"<{name}>{text}</{name}>"
