"""The one reader of JSON in files of our state, which other people may have written or damaged.

A document names its schema, such as `edl-ckpt/seal/2`. One of a higher number than this program knows was written by a
newer edl-ckpt. It is neither damaged nor ours to change, so every reader ends with UnsupportedError.

What it returns is bounded: its bytes and its depth, and its numbers are finite. So nothing that is done with a document
later recurses without end or takes minutes, and a document that is read can always be written again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import chain, compress
from typing import Any, Final, NoReturn

from edl_ckpt.core.base.errors import UnsupportedError, UsageError

MAX_BYTES: Final = 1 << 22
"""No file of our state is larger, except those that list the checksums of shards."""
MAX_SUMS_BYTES: Final = 1 << 26
"""The bound for seals and journals: 90 bytes for each chunk of a version, of which there are about 300,000 at most."""
MAX_DEPTH: Final = 32
MAX_VALUE_DEPTH: Final = 24
"""A value that a user gives is in a document, so it may be less deep."""
_NESTED: Final = frozenset({dict, list})
NEWEST: Final[Mapping[str, int]] = {"seal": 2, "shard": 2}
"""The number of the newest schema that this program writes, of each kind that is no longer at 1."""
_SCHEMA = re.compile(r"edl-ckpt/([a-z-]{1,40})/([1-9][0-9]{0,8})", re.ASCII)
_HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*"([!#-~]{1,60})"')
"""The begin of each document that we write. One of a newer schema may be beyond our bounds, or no JSON."""


def schema_at_head(data: bytes | None) -> str:
    """Return the schema that a file of our state begins with, '' when it begins otherwise or is gone."""
    head = _HEAD.match(data or b"")
    return head[1].decode("ascii") if head else ""


def is_newer(schema: object) -> bool:
    """Say whether a schema is one of ours, of a higher number than this program knows."""
    found = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    return found is not None and int(found[2]) > NEWEST.get(found[1], 1)


def check_schema(schema: object, path: str) -> None:
    """Raise UnsupportedError for the schema of a document that a newer edl-ckpt wrote; anything else passes."""
    if is_newer(schema):
        hint = "use the edl-ckpt that wrote it, or a later one; if there is none, the file is damaged: move it away"
        raise UnsupportedError(f"written by a newer edl-ckpt (schema {schema}); upgrade", path=path, hint=hint)


def parse_document(data: bytes, path: str, *, limit: int = MAX_BYTES, foreign: bool = False) -> dict[str, Any]:
    """Return a JSON object; UsageError when it is none, or is beyond a bound. `path` is for the message.

    Raises UnsupportedError for a document that a newer edl-ckpt wrote.
    In a `foreign` document, which Python's own writer may have made, numbers that are not finite become their names.

    >>> parse_document(b'{"version": 7}', "x.json")
    {'version': 7}
    """
    check_schema(schema_at_head(data), path)
    if len(data) > limit:
        raise UsageError(f"damaged: more than {limit} bytes", path=path)
    try:
        document = (_FOREIGN if foreign else _DECODER).decode(data.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise UsageError("damaged: nested too deeply", path=path) from None
    except ValueError as error:
        raise UsageError(f"damaged: not a JSON document ({str(error).partition(':')[0]})", path=path) from None
    if not isinstance(document, dict):
        raise UsageError("damaged: not a JSON object", path=path)
    check_schema(document.get("schema"), path)
    # The text has at least as many brackets as levels, so most documents are not walked.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and is_deep(document, MAX_DEPTH):
        raise UsageError(f"damaged: nested more than {MAX_DEPTH} levels deep", path=path)
    return document


def check_value(value: Any, what: str) -> Any:
    """Return a value as JSON has it: tuples as lists; `what` is for the message.

    Raises UsageError for a value that JSON lacks (NaN, bytes), and for one that is nested
    deeper than a document of ours may be.

    >>> check_value({"lr": (0.1, 0.2)}, "metadata")
    {'lr': [0.1, 0.2]}
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what}: not a JSON value: {error}") from None
    made = _DECODER.decode(text)
    if is_deep([made], MAX_VALUE_DEPTH):
        raise UsageError(f"{what}: nested more than {MAX_VALUE_DEPTH} levels deep")
    return made


def parse_value(text: str) -> Any:
    """Return the JSON value of a text; ValueError for a text that is none, or that Python would read beyond JSON.

    >>> parse_value("0.5"), parse_value('["a"]')
    (0.5, ['a'])
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_deep(document: Any, depth: int) -> bool:
    """Say whether a JSON object or list has more than so many levels; nothing recurses."""
    level: list[Any] = [document]
    for _ in range(depth):
        below = list(chain.from_iterable(each.values() if type(each) is dict else each for each in level))
        level = list(compress(below, map(_NESTED.__contains__, map(type, below))))
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _no_constant(_: str) -> NoReturn:
    raise ValueError("a number is not finite")


def json_number(value: float) -> float | str:
    """Return a number for JSON, where NaN and infinities are strings, as in protobuf's JSON.

    >>> json_number(float("nan")), json_number(0.5)
    ('NaN', 0.5)
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_FOREIGN: Final = json.JSONDecoder(parse_float=lambda text: json_number(float(text)), parse_constant=str)
_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
