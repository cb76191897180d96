"""One reader for the JSON of our state; what it returns can be walked, printed and written again."""

from __future__ import annotations

import json

import pytest

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.state.document import MAX_DEPTH, parse_document
from edl_ckpt.core.state.metadata import MAX_NAMES, parse_version


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"7", b"{", b"\xff", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e400}', b"[" * 100_000,
        b'{"a":' * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        b'{"a": "' + b"x" * (5 << 20) + b'"}',
    ],
    ids=range(13),
)  # fmt: skip
def test_refused(data: bytes) -> None:
    """Nested, endless, huge, not finite, or no object: an error that says so, never RecursionError."""
    with pytest.raises(UsageError, match="damaged"):
        parse_document(data, "x.json")


def test_accepted() -> None:
    """Within the bounds it returns what `json` returns: wide, as deep as allowed, with text that looks like more."""
    deep = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    data = b'{"a": ' + deep + b', "note": "[[[[[[ NaN 1e400", "wide": ' + json.dumps([[]] * 1000).encode() + b"}"
    assert parse_document(data, "x.json") == json.loads(data)


def test_bounds_of_metadata() -> None:
    """More than 10,000 tags or metrics are damage, which protects the version; 200,000 took a minute to list."""
    parse_version({"tags": [str(n) for n in range(MAX_NAMES)]})
    for document in ({"tags": ["x"] * 200_000}, {"metrics": {str(n): 1 for n in range(MAX_NAMES + 1)}}):
        with pytest.raises(UsageError, match="damaged: more than"):
            parse_version(document)
    with pytest.raises(UsageError, match="too large"):
        parse_version({"metrics": {"auc": 10**400}})
