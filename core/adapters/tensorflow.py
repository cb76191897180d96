"""TensorFlow and Keras: variables by their names as dense variables, and back into the variables that exist.

A variable of Keras 3 is named by its path ('dense/kernel'), any other one by its name ('dense/kernel:0').
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.adapters.nest import describe_variable, read_variable, unique
from edl_ckpt.core.base.arrays import BFLOAT16, as_array
from edl_ckpt.core.base.errors import MismatchError, UsageError
from edl_ckpt.core.base.libraries import library

__all__ = ["assign_variables", "to_tensor", "to_variables"]


def to_variables(source: Any, *, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
    """Return the values of variables as the variables of a checkpoint, each under `prefix` and its name.

    `source` is a Keras model or layer (its weights), an optimizer or a tf.Module (its variables), or any variables.
    Raises UsageError when two of them have one name.
    """
    found = _by_name(source, prefix)
    return {name: as_array(_value(variable), f"variable {name!r}") for name, variable in found.items()}


def assign_variables(target: Any, variables: Mapping[str, Any], *, prefix: str = "") -> None:
    """Assign the values of a checkpoint to variables that exist; `target` is what `to_variables` takes.

    `variables` is an open checkpoint, or any mapping of names to arrays. All names, shapes and dtypes are compared
    first: MismatchError names every variable that is absent or different, and then nothing was assigned. What the
    checkpoint has beside them is left out.
    """
    found = _by_name(target, prefix)
    problems: list[str] = []
    for name, variable in found.items():
        expected = (_dtype_name(variable), tuple(variable.shape))
        if name not in variables:
            problems.append(f"{name!r} is absent")
        elif (got := describe_variable(variables, name)) != expected:
            problems.append(f"{name!r} is {got[0]} {list(got[1])}, expected {expected[0]} {list(expected[1])}")
    if problems:
        raise MismatchError(
            f"{len(problems)} of {len(found)} variables do not match: {'; '.join(problems)}",
            hint="build the model and its optimizer as when they were saved, with the same names of layers",
        )
    for name, variable in found.items():
        variable.assign(to_tensor(read_variable(variables, name)))


def to_tensor(array: object) -> Any:
    """Return any array as a tensor of TensorFlow; bfloat16 as such."""
    tf = library("tensorflow", "tensorflow")
    values = as_array(array)
    return tf.convert_to_tensor(values.view(tf.bfloat16.as_numpy_dtype) if values.dtype == BFLOAT16 else values)


def iterator_state(iterator: Any, name: str) -> dict[str, npt.NDArray[np.int8]]:
    """Return where an iterator over a dataset is, by the keys of TensorFlow: tensors as bytes, int8 [size].

    Raises UsageError for a dataset whose iterators TensorFlow cannot save, such as one from a generator.
    """
    tf = library("tensorflow", "tensorflow")
    try:
        state = {key: tf.io.serialize_tensor(value).numpy() for key, value in iterator._serialize_to_tensors().items()}  # noqa: SLF001 - what tf.train.Checkpoint calls
    except tf.errors.OpError as error:
        raise UsageError(f"{name}: TensorFlow cannot save this iterator: {error.message}") from None
    return {key: np.frombuffer(data, np.int8) for key, data in state.items()}


def restore_iterator(iterator: Any, state: Mapping[Any, Any]) -> None:
    """Bring an iterator over an equal dataset to where `iterator_state` was called."""
    tf = library("tensorflow", "tensorflow")
    iterator._restore_from_tensors(  # noqa: SLF001 - what tf.train.Checkpoint calls
        {key: tf.io.parse_tensor(np.asarray(data).tobytes(), tf.variant) for key, data in state.items()}
    )


def _by_name(source: Any, prefix: str) -> dict[str, Any]:
    found = getattr(source, "weights", getattr(source, "variables", None))
    found = found() if callable(found) else found  # the method of older optimizers
    if found is None:
        found = [source] if hasattr(source, "assign") else source
    if not isinstance(found, Iterable) or isinstance(found, Mapping | str | bytes):
        raise UsageError(f"expected a model, an optimizer, a module or variables, got a {type(source).__qualname__}")
    return unique((f"{prefix}{getattr(variable, 'path', None) or variable.name}", variable) for variable in found)


def _value(variable: Any) -> Any:
    return variable.value if hasattr(variable, "path") else variable


def _dtype_name(variable: Any) -> str:
    """Return the name of a dtype: Keras names it by a text, TensorFlow by an object."""
    return str(getattr(variable.dtype, "name", variable.dtype))
