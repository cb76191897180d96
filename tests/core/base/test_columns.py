"""Objects from columns are those that the class makes itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import pytest

from edl_ckpt.core.base.columns import objects_of
from edl_ckpt.core.model.tables import Encoding, Extent, IdRun


def test_they_are_equal_to_those_of_calls() -> None:
    """Each object has the values of its place in the columns, also of a field that the class inherits."""
    columns: dict[str, Iterable[Any]] = {
        "start": [0, 8],
        "end": [8, 20],
        "file": [0, 1],
        "encoding": repeat(Encoding.INT64),
        "first": repeat(5),
    }
    made = objects_of(IdRun, 2, columns)
    assert made == [
        IdRun(0, 8, encoding=Encoding.INT64, first=5),
        IdRun(8, 20, file=1, encoding=Encoding.INT64, first=5),
    ]


def test_they_stay_frozen() -> None:
    """A field of such an object cannot be set later."""
    (made,) = objects_of(Extent, 1, {"start": [0], "end": [8], "file": repeat(0)})
    with pytest.raises(AttributeError):
        made.end = 9  # type: ignore[misc]


def test_without_objects_nothing_is_read() -> None:
    """No objects are an empty list, and columns may be without an end."""
    assert objects_of(Extent, 0, {"start": repeat(0), "end": repeat(0), "file": repeat(0)}) == []
