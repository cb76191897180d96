"""Variables of a checkpoint for an adapter: read as they are, or only described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from edl_ckpt.core.base.arrays import as_array, dtype_name, is_of
from edl_ckpt.core.base.errors import NameNotFoundError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.reading.reader import Checkpoint


def read_variable(variables: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    """Return a variable of an open checkpoint or another mapping, bfloat16 bit for bit; NameNotFoundError if absent."""
    if isinstance(variables, Checkpoint):
        return variables.variable(name, bits=True)
    if name not in variables:
        raise NameNotFoundError(f"no variable {name!r}", hint=meant(name, variables, "variables"))
    return as_array(variables[name], f"variable {name!r}")


def array_of(value: Any, name: str) -> npt.NDArray[Any]:
    """Return a value of a program as an array, a tensor of a GPU as a copy in memory."""
    is_far = is_of(value, "torch") and value.device.type not in {"cpu", "meta"}
    return as_array(value.detach().cpu() if is_far else value, name)


def describe_variable(variables: Mapping[str, Any], name: str) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of a variable; those of a checkpoint from its headers."""
    if isinstance(variables, Checkpoint):
        _, entry = variables.find_variable(name)
        return entry.dtype.name, entry.shape
    array = read_variable(variables, name)
    return dtype_name(array), array.shape


def unique(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by their names; UsageError when two have the same name."""
    found: dict[str, Any] = {}
    for name, value in named:
        if found.setdefault(name, value) is not value:
            raise UsageError(f"two values would be the variable {name!r}", hint="give one of them another name")
    return found
