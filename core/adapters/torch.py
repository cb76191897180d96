"""PyTorch: a state_dict as dense variables and back.

The state of a model, of an optimizer (whose keys are numbers, and whose values are also learning rates, flags and None)
and of a scheduler comes back as `load_state_dict` takes it. bfloat16 is saved bit for bit. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from edl_ckpt.core.adapters.nest import array_of, flatten, unflatten
from edl_ckpt.core.base.arrays import as_array, torch_tensor
from edl_ckpt.core.base.libraries import library

__all__ = ["to_state_dict", "to_tensor", "to_variables"]


def to_variables(state: Mapping[Any, Any], *, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
    """Return a state_dict as the variables of a checkpoint: each tensor under `prefix` and its path.

    Tensors in memory are shared, not copied: save before the next step changes them. Tensors of a GPU are copied to
    memory. A state that is more than a flat dict of tensors gets one variable more, `prefix` + '.structure', with its
    keys and plain values. Raises UsageError for anything but tensors, arrays, numbers, texts and None in dicts, lists
    and tuples, and for two tensors with one path.
    """
    library("torch", "torch")
    return flatten(state, prefix, lambda value, name: array_of(value, f"variable {name!r}"))


def to_state_dict(variables: Mapping[str, Any], *, prefix: str = "") -> dict[Any, Any]:
    """Return the state_dict that `to_variables` made into variables with a prefix, for `load_state_dict`.

    `variables` is an open checkpoint, or any mapping of names to arrays; only those with the prefix are read. Raises
    NameNotFoundError when none has it, CorruptError when the structure of the state is damaged.
    """
    library("torch", "torch")
    return unflatten(variables, prefix, to_tensor)


def to_tensor(array: object) -> Any:
    """Return any array as a tensor on the CPU, which shares its memory where it can be written; bfloat16 as such."""
    return torch_tensor(as_array(array))
