"""A value that a restore changes in place: a number or an array."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from edl_ckpt.core.base.arrays import as_array
from edl_ckpt.core.base.errors import UsageError

_SHOWN: Final = 10


def _of_the_array(name: str) -> Any:
    """Return the method of a variable that is that of its array."""
    return lambda variable, *args: getattr(variable._array, name)(*args)  # noqa: SLF001 - of this module


class Variable(NDArrayOperatorsMixin):
    """A number or an array that can be changed in place, as `tf.Variable`; numpy's functions and operators take it.

    A Python int becomes int64 and a float becomes float64, as in numpy, unless `dtype` says otherwise. The value is
    copied.

    >>> step = Variable(1)
    >>> step.assign_add(9)
    Variable(10, dtype=int64)
    >>> int(step) % 10, float(step + 0.5)
    (0, 10.5)
    """

    __hash__ = object.__hash__  # equality is that of numpy, element by element; a variable is found by its identity

    def __init__(self, initial_value: object, dtype: npt.DTypeLike | None = None) -> None:
        array = as_array(initial_value, "the initial value")
        self._array: npt.NDArray[Any] = np.array(array, dtype=array.dtype if dtype is None else dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape, () of a number."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return numpy's dtype."""
        return self._array.dtype

    def numpy(self) -> Any:
        """Return a copy of the value: an array, or numpy's scalar for a number."""
        return self._array.copy() if self.shape else self._array[()]

    def assign(self, value: object) -> Variable:
        """Set the value, which must have the same shape; it gets the dtype of the variable. Return the variable."""
        array = as_array(value, "the value")
        if array.shape != self.shape:
            raise UsageError(f"cannot assign shape {list(array.shape)} to a variable of shape {list(self.shape)}")
        try:
            np.copyto(self._array, array, casting="same_kind")
        except TypeError:
            raise UsageError(f"cannot assign {array.dtype.name} to a variable of {self.dtype.name}") from None
        return self

    def assign_add(self, delta: object) -> Variable:
        """Add to the value; return the variable."""
        return self.assign(self._array + as_array(delta, "the value"))

    def assign_sub(self, delta: object) -> Variable:
        """Subtract from the value; return the variable."""
        return self.assign(self._array - as_array(delta, "the value"))

    def __array__(self, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the array itself where no copy is asked for, as numpy's protocol says."""
        if dtype is None or np.dtype(dtype) == self.dtype:
            return self._array.copy() if copy else self._array
        return self._array.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if out:
            options["out"] = tuple(map(_array_of, out))
        result = getattr(ufunc, method)(*map(_array_of, inputs), **options)
        return out[0] if len(out) == 1 else result

    __getitem__, __setitem__, __len__, __bool__, __int__, __index__, __float__ = (
        _of_the_array(f"__{name}__") for name in ("getitem", "setitem", "len", "bool", "int", "index", "float")
    )

    def __repr__(self) -> str:
        value = self._array.tolist() if self._array.size <= _SHOWN else "..."
        shape = f", shape={list(self.shape)}" if self.shape else ""
        return f"Variable({value}, dtype={self.dtype.name}{shape})"


def _array_of(value: Any) -> Any:
    """Return the array of a variable itself; anything else as it is."""
    return np.asarray(value) if isinstance(value, Variable) else value
