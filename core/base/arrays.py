"""Arrays of any library as numpy arrays, without a copy where the library allows it.

An array is anything with `__array__` or `__dlpack__`: of numpy, PyTorch, TensorFlow, JAX, pandas, pyarrow. numpy has no
bfloat16. Values of that type have the dtype of `ml_dtypes` where their library makes such arrays, else `BFLOAT16`: the
same two bytes under a name. `dtype_name` says 'bfloat16' for both, and a checkpoint contains the bytes as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.libraries import library

BFLOAT16: Final = np.dtype([("bfloat16", "<u2")])
"""bfloat16 where no library has a dtype for it: one field of that name, with the bits of the value."""
_MEMORY_DEVICES: Final = {1, 3, 11, 13}
"""The devices of DLPack whose memory this process can read: CPU, and memory that CUDA or ROCm shares with it."""


@runtime_checkable
class SupportsArray(Protocol):
    """Anything that numpy can turn into an array."""

    def __array__(self) -> Any: ...


@runtime_checkable
class SupportsDLPack(Protocol):
    """Anything that exchanges its memory as DLPack describes it."""

    def __dlpack__(self) -> Any: ...


Array: TypeAlias = SupportsArray | SupportsDLPack
"""What the public functions take for an array."""
Ids: TypeAlias = Array | Sequence[int]
"""What the public functions take for ids: whole numbers of 64 bits in one dimension."""


def is_array(value: object) -> bool:
    """Say whether a value is an array by itself: it has `__array__` or `__dlpack__`, and is no class.

    >>> is_array(np.zeros(2)), is_array(np.float32(1)), is_array([1, 2]), is_array(3), is_array(np.float32)
    (True, True, False, False, False)
    """
    return not isinstance(value, type) and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))


def dtype_name(array: npt.NDArray[Any] | np.dtype[Any]) -> str:
    """Return numpy's name of a dtype, and 'bfloat16' for both forms of it.

    >>> dtype_name(np.zeros(2, "f4")), dtype_name(np.zeros(2, BFLOAT16))
    ('float32', 'bfloat16')
    """
    dtype = array if isinstance(array, np.dtype) else array.dtype
    return "bfloat16" if dtype == BFLOAT16 else str(dtype.name)


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array as uint8 [size], C order, little-endian; no copy where they are so already.

    >>> as_bytes(np.array([1, 258], ">u2")).tolist()
    [1, 0, 2, 1]
    """
    little = array.dtype if array.dtype.names else array.dtype.newbyteorder("<")
    return np.ascontiguousarray(array, little).reshape(-1).view(np.uint8)


_ID_BITS: Final = 63
"""An id is an int64: so many bits, and a sign."""


def as_array(value: object, what: str = "the array") -> npt.NDArray[Any]:
    """Return a value as a numpy array of the same shape, dtype and values; `what` names it in an error.

    Memory is shared where the library allows it. A tensor that needs a gradient is detached. Numbers, lists of numbers
    and objects with a buffer are taken as `numpy.asarray` takes them. Raises UsageError for everything else: memory of
    a GPU, symbolic or sparse tensors, nulls, masks, texts and other objects.
    """
    if type(value) is np.ndarray:
        array = value
    elif is_of(value, "torch"):
        array = _from_torch(value, what)
    elif is_of(value, "pyarrow"):
        array = _from_arrow(value, what)
    else:
        array = _from_any(value, what)
    if array.dtype.hasobject:
        raise UsageError(f"{what}: expected numbers of at most 64 bits, got {_kind(value)} of Python objects")
    return array


def as_ids(value: Ids, what: str = "ids") -> npt.NDArray[np.int64]:
    """Return ids as int64 [n], without a copy where they are so already; UsageError for anything else.

    >>> as_ids([3, 1]).tolist(), as_ids(range(2)).tolist(), as_ids([]).dtype.name
    ([3, 1], [0, 1], 'int64')
    """
    listed = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None
    try:
        array = as_array(value if listed is None else listed, what)
    except UsageError:
        _check_width(listed, what)
        raise
    if array.ndim != 1:
        raise UsageError(f"{what}: expected one dimension, got shape {list(array.shape)}")
    if not array.size and isinstance(value, Sequence):
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.size and int(array.max()) >> _ID_BITS):
        _check_width(listed, what)
        raise UsageError(f"{what} must be whole numbers of 64 bits, got {dtype_name(array)}")
    return array.astype(np.int64, copy=False)


def _check_width(listed: Sequence[object] | None, what: str) -> None:
    """Raise UsageError that names the first number of a refused list that no int64 can hold."""
    for each in listed or ():
        if isinstance(each, int) and not -1 << _ID_BITS <= each < 1 << _ID_BITS:
            raise UsageError(f"{what}: {each} is no int64, as ids are")


def is_of(value: object, *libraries: str) -> bool:
    """Say whether a class of a value, or one that it inherits from, is of one of these libraries; nothing is imported.

    >>> is_of(np.zeros(2), "torch", "numpy"), is_of(3, "numpy")
    (True, False)
    """
    return any(kind.__module__.partition(".")[0] in libraries for kind in type(value).__mro__)


def _kind(value: object) -> str:
    module = type(value).__module__
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"


def _refuse(value: object, what: str, why: str, hint: str | None = None) -> UsageError:
    return UsageError(f"{what}: {_kind(value)} {why}", hint=hint)


def _from_any(value: Any, what: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise _refuse(value, what, "has masked elements", "call its method filled() first")
    if isinstance(value, str | bytes | type(None)) or not (is_array(value) or _has_items(value)):
        raise _refuse(value, what, "is no array", "an array has `__array__` or `__dlpack__`")
    try:
        if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        return np.asarray(np.from_dlpack(value))
    except MemoryError:
        raise
    except Exception as error:  # libraries raise what they like, and errors of devices
        if not _in_memory(value):
            hint = "copy it to memory first, for instance with `.get()` (CuPy) or `jax.device_get(array)`"
            raise _refuse(value, what, "is not in the memory of this machine's CPU", hint) from error
        raise _refuse(value, what, f"cannot become a numpy array: {str(error)[:200]}") from error


def _has_items(value: object) -> bool:
    """Say whether numpy can take a value without `__array__`: a number, a list of numbers, or a buffer."""
    if isinstance(value, int | float | complex | list | tuple):
        return True
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _in_memory(value: Any) -> bool:
    try:
        return int(value.__dlpack_device__()[0]) in _MEMORY_DEVICES
    except Exception:  # noqa: BLE001 - it has no device, or does not want to name it
        return True


def _from_torch(value: Any, what: str) -> npt.NDArray[Any]:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return _from_any(value, what)
    tensor = value.detach()
    if tensor.device.type == "meta":
        raise _refuse(value, what, "on the device meta has no values")
    if tensor.device.type != "cpu":
        raise _refuse(value, what, f"is on the device {tensor.device}", "call its method cpu() first")
    if tensor.layout is not torch.strided:
        raise _refuse(value, what, f"has the layout {tensor.layout}", "call its method to_dense() first")
    try:
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        if tensor.dtype is torch.bfloat16:
            # A view needs a last dimension: a scalar gets one, and loses it again.
            bits = tensor.reshape(-1) if tensor.dim() == 0 else tensor
            array: npt.NDArray[Any] = bits.view(torch.int16).numpy().view(BFLOAT16)
            return array.reshape(tuple(tensor.shape)) if tensor.dim() == 0 else array
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError, ValueError) as error:  # a quantized tensor, float8, one of another backend
        raise _refuse(value, what, f"of {tensor.dtype} cannot become a numpy array: {str(error)[:200]}") from error


def _from_arrow(value: Any, what: str) -> npt.NDArray[Any]:
    if getattr(value, "null_count", 0):
        raise _refuse(value, what, "contains nulls")
    if hasattr(value, "combine_chunks") and hasattr(value, "num_chunks"):
        return _from_arrow(value.combine_chunks(), what)
    size = getattr(getattr(value, "type", None), "list_size", None)
    if size is not None:
        return _from_arrow(value.flatten(), what).reshape(len(value), size)
    if hasattr(value, "to_numpy_ndarray"):  # a FixedShapeTensorArray
        return np.asarray(value.to_numpy_ndarray())
    return _from_any(value, what)


def torch_tensor(array: npt.NDArray[Any]) -> Any:
    """Return an array as a tensor of PyTorch that shares its memory where it can be written; bfloat16 bit for bit."""
    torch = library("torch", "torch")
    values = array.astype(array.dtype.newbyteorder("="), copy=False)
    values = values if values.flags.writeable else values.copy()
    if values.dtype == BFLOAT16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)
