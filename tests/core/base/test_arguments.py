"""The check of arguments by annotations: what passes, and what is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest

from edl_ckpt.core.base.arguments import checked
from edl_ckpt.core.base.errors import UsageError


class Duck(Protocol):
    """What can be left out of the check."""


def sample(
    number: int = 1,
    factor: float = 1.0,
    path: str | os.PathLike[str] = "",
    names: Sequence[str] = (),
    pairs: Mapping[str, int] | None = None,
    kind: Literal["a", "b"] = "a",
    call: Callable[[], None] | None = None,
    duck: Duck | None = None,
    unknown: Missing = None,  # type: ignore[name-defined]  # noqa: F821
) -> tuple[Any, ...]:
    """Return the arguments."""
    return number, factor, path, names, pairs, kind, call, duck, unknown


SAMPLE = checked(sample, __name__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", np.int64(3)),
        ("number", True),
        ("factor", 3),
        ("factor", Fraction(1, 3)),
        ("factor", np.float32(1)),
        ("path", Path("a")),
        ("names", "one"),
        ("names", ["a", "b"]),
        ("names", iter(["a"])),
        ("pairs", {}),
        ("pairs", None),
        ("kind", "another text has a message of its own"),
        ("call", print),
        ("duck", object()),
        ("unknown", object()),
    ],
)
def test_what_can_be_taken_passes(name: str, value: Any) -> None:
    """Numbers of numpy, one text for several, and what no annotation tells pass."""
    assert value in SAMPLE(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", 1.5),
        ("number", "3"),
        ("factor", "1"),
        ("factor", None),
        ("path", 3),
        ("names", 3),
        ("names", [3]),
        ("names", None),
        ("pairs", [("a", 1)]),
        ("kind", 3),
        ("call", "print"),
    ],
)
def test_what_cannot_be_taken_is_named(name: str, value: Any) -> None:
    """The error names the function, the parameter, the value and the annotation."""
    with pytest.raises(UsageError, match=rf"sample: {name} must be .*, got "):
        SAMPLE(**{name: value})


def test_positional_arguments_are_checked() -> None:
    """Positional arguments are checked, and too many are a TypeError of Python."""
    with pytest.raises(UsageError, match="factor must be a number, got 'x'"):
        SAMPLE(1, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        SAMPLE(*range(20))
