"""Arrays of other libraries become numpy arrays of the same values, or an error of ours that says what to do."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.base.arrays import BFLOAT16, as_array, dtype_name, is_array
from edl_ckpt.core.base.errors import UsageError
from frameworks import need


class OnlyDLPack:
    """A library's array that numpy reaches through DLPack alone; `device` is where it claims to be."""

    def __init__(self, values: np.ndarray[Any, Any], device: int = 1) -> None:
        self._values, self._device = values, device

    def __dlpack__(self, **settings: Any) -> Any:
        """Hand out the memory, unless a GPU has it."""
        if self._device != 1:
            raise BufferError("not on the CPU")
        return self._values.__dlpack__(**settings)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the type and the number of the device."""
        return self._device, 0


class Failing:
    """An array that cannot become one of numpy: a symbolic tensor raises NotImplementedError."""

    def __array__(self, *args: Any, **settings: Any) -> Any:
        raise NotImplementedError("symbolic")


def test_memory_is_shared() -> None:
    """A numpy array is itself; what exchanges memory through DLPack or a buffer is not copied."""
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    assert as_array(values) is values
    assert np.shares_memory(as_array(OnlyDLPack(values)), values)
    assert np.shares_memory(as_array(values.data), values)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), np.array(1.5, np.float32)),
        (7, np.array(7)),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        (array.array("f", [1, 2]), np.array([1, 2], np.float32)),
        (np.ma.MaskedArray(np.arange(2), mask=False), np.arange(2)),
    ],
)
def test_numbers_keep_their_values(value: object, expected: np.ndarray[Any, Any]) -> None:
    """Numbers, lists and buffers become what numpy makes of them; dtype and shape are numpy's."""
    got = as_array(value)
    assert type(got) is np.ndarray
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "NoneType is no array"),
        ("abc", "str is no array"),
        (b"abc", "bytes is no array"),
        ({"a": 1}, "dict is no array"),
        ([[1], [2, 3]], "cannot become"),
        (["a", None], "Python objects"),
        (np.array([object()]), "Python objects"),
        (np.ma.MaskedArray(np.arange(2), mask=[True, False]), "masked"),
        (OnlyDLPack(np.zeros(2), device=2), "memory of this machine"),
        (Failing(), "symbolic"),
    ],
)
def test_everything_else_is_refused(value: object, words: str) -> None:
    """The error is a UsageError, names the value that was asked for, and never one of the library."""
    with pytest.raises(UsageError, match=words) as caught:
        as_array(value, "variable 'w'")
    assert str(caught.value).startswith("variable 'w': ")


def test_what_is_an_array_by_itself() -> None:
    """Lists and numbers are none, so that nested lists of arrays can be walked; neither is a class."""
    assert [is_array(v) for v in (np.zeros(1), np.int8(1), OnlyDLPack(np.zeros(1)), [1], 1.0, np.int8)] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_bfloat16_has_one_name() -> None:
    """The form that needs no library has the name that a checkpoint uses, and two bytes an element."""
    assert dtype_name(np.zeros(2, BFLOAT16)) == dtype_name(BFLOAT16) == "bfloat16"
    assert BFLOAT16.itemsize == 2
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert dtype_name(np.zeros(2, ml_dtypes.bfloat16)) == "bfloat16"


@pytest.mark.frameworks
def test_torch_tensors() -> None:
    """A tensor shares its memory, also one that needs a gradient or is not contiguous; bfloat16 keeps its bits."""
    torch = need("torch")
    tensor = torch.arange(6.0).reshape(2, 3)
    assert np.shares_memory(as_array(tensor), tensor.numpy())
    assert np.array_equal(as_array(torch.nn.Parameter(tensor).t()), tensor.numpy().T)
    half = torch.tensor([1.0, -2.5, float("nan")], dtype=torch.bfloat16)
    got = as_array(half)
    assert dtype_name(got) == "bfloat16"
    assert np.array_equal(got.view("<u2"), half.view(torch.int16).numpy().view("<u2"))
    assert as_array(half[0]).shape == ()
    assert as_array(torch.zeros((0, 3), dtype=torch.bfloat16)).shape == (0, 3)
    assert np.array_equal(as_array(torch.arange(8, dtype=torch.bfloat16)[::2])["bfloat16"], [0, 0x4000, 0x4080, 0x40C0])


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["meta", "to_dense", "float8_e5m2"])
def test_torch_tensors_without_values_here(kind: str) -> None:
    """The error for a torch tensor that numpy cannot see says why, or what to call."""
    torch = need("torch")
    tensor = {
        "meta": lambda: torch.zeros(2, device="meta"),
        "to_dense": lambda: torch.eye(2).to_sparse(),
        "float8_e5m2": lambda: torch.zeros(2, dtype=torch.float8_e5m2),
    }[kind]()
    with pytest.raises(UsageError) as caught:
        as_array(tensor)
    assert kind in f"{caught.value} {caught.value.hint}"


@pytest.mark.frameworks
def test_tensorflow_tensors() -> None:
    """Eager tensors and variables become arrays; a symbolic tensor and a sparse one are refused."""
    tf = need("tensorflow")
    assert as_array(tf.constant([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert as_array(tf.Variable([1, 2], dtype=tf.int64)).dtype == np.int64
    assert dtype_name(as_array(tf.constant([1.0], tf.bfloat16))) == "bfloat16"
    with pytest.raises(UsageError):
        as_array(tf.keras.Input((3,)))
    with pytest.raises(UsageError):
        as_array(tf.sparse.eye(2))
    with pytest.raises(UsageError):
        as_array(tf.constant(["a"]))


@pytest.mark.frameworks
def test_pyarrow_arrays() -> None:
    """Arrow's arrays, chunks and lists of a fixed size become arrays; nulls are refused."""
    pa = need("pyarrow")
    flat = pa.array([1, 2, 3, 4], pa.int64())
    assert as_array(flat).tolist() == [1, 2, 3, 4]
    assert as_array(pa.chunked_array([flat, flat])).shape == (8,)
    assert as_array(pa.FixedSizeListArray.from_arrays(flat, 2)).tolist() == [[1, 2], [3, 4]]
    assert as_array(pa.Tensor.from_numpy(np.ones((2, 2)))).shape == (2, 2)
    with pytest.raises(UsageError, match="nulls"):
        as_array(pa.array([1, None]))
