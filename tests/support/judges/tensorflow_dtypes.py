"""TensorFlow writes bundles with a tensor of each dtype that it has, and says what it reads.

It runs under a Python that has TensorFlow, as a program. Each line of stdin is a JSON list:

* ["dtypes"] lists the names of the tensors that a bundle can have. `resource` is not among them: SaveV2 of one ends the
  process with a failed check.
* ["save", PREFIX, NAMES] writes them by SaveV2, and beside them the float32 tensor `w`.
* ["read", PREFIX] reads all that is there by `tf.train.load_checkpoint`, and variants by RestoreV2.
* ["latest", DIRECTORY] is what `tf.train.latest_checkpoint` returns.

The answers to `save` and `read` are the tensors by name: the dtype as TensorFlow calls it, the shape, the bytes in hex.
Where TensorFlow refuses, the answer is {"error": its words}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

NAMES = [
    "float32",
    "float64",
    "int32",
    "uint8",
    "int16",
    "int8",
    "string",
    "complex64",
    "int64",
    "bool",
    "qint8",
    "quint8",
    "qint32",
    "bfloat16",
    "qint16",
    "quint16",
    "uint16",
    "complex128",
    "half",
    "variant",
    "uint32",
    "uint64",
    "float8_e5m2",
    "float8_e4m3fn",
    "int4",
    "uint4",
    "scalar_string",
]
FLOATS = frozenset({"half", "bfloat16", "float32", "float64"})
"""Those whose values are looked at: random bits would be too large to be weights."""
TEXTS = [b"a", b"\0\xff", b"", b"x" * 300]


def tensor(name: str) -> Any:
    """Return a tensor of 3 x 4 with random values, other ones for each name."""
    if name == "scalar_string":
        return tf.constant(b"graph")
    if name == "string":
        return tf.constant(np.array(TEXTS, object).reshape(2, 2))
    dtype = getattr(tf, name, None) or tf.as_dtype(name)
    if name == "variant":
        return tf.raw_ops.TensorListReserve(element_shape=[2], num_elements=3, element_dtype=tf.float32)
    rng = np.random.default_rng(sum(name.encode()))
    kind = np.dtype(dtype.as_numpy_dtype)
    limit = 16 if "int4" in name else 2 if name == "bool" else 256
    data = rng.integers(0, limit, (3, 4 * kind.itemsize), np.uint8)
    if name == "bool":
        return tf.constant(data.astype(bool))
    if name in FLOATS:
        return tf.constant(rng.standard_normal((3, 4)), dtype)
    if name.startswith("q"):
        plain = data.view({"qint8": "i1", "quint8": "u1", "qint16": "i2", "quint16": "u2", "qint32": "i4"}[name])
        return tf.bitcast(tf.constant(plain), dtype)
    return tf.constant(data.view(kind), dtype=dtype)


def described(dtype: Any, values: Any) -> list[Any]:
    """Return the dtype, the shape and the bytes of what a reader returned, texts each with their length."""
    array = np.asarray(values)
    if dtype == tf.string:
        texts = [bytes(one) for one in array.flatten()] if array.shape else [bytes(array.item())]
        data = b"".join(len(one).to_bytes(4, "little") + one for one in texts)
    else:
        data = array.tobytes()
    return [dtype.name, list(array.shape), data.hex()]


def variant(handle: Any) -> list[Any]:
    """Return a list of tensors as its elements' shapes and bytes."""
    stacked = tf.raw_ops.TensorListStack(input_handle=handle, element_shape=[2], element_dtype=tf.float32)
    return ["variant", list(stacked.shape), stacked.numpy().tobytes().hex()]


def save(prefix: str, names: list[str]) -> dict[str, Any]:
    """Write tensors and `w`; return what they are."""
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    state = {name: tensor(name) for name in names} | {"w": tensor("float32")}
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=[*state], shape_and_slices=[""] * len(state), tensors=[*state.values()]
    )
    tf.compat.v1.train.update_checkpoint_state(os.path.dirname(prefix), os.path.basename(prefix))
    return {name: variant(one) if name == "variant" else described(one.dtype, one) for name, one in state.items()}


def read(prefix: str) -> dict[str, Any]:
    """Return all that a bundle has."""
    reader = tf.train.load_checkpoint(prefix)
    found = {}
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype == tf.variant:
            (handle,) = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype])
            found[name] = variant(handle)
        else:
            found[name] = described(dtype, reader.get_tensor(name))
    return found


def answer(request: list[Any]) -> Any:
    """Return what a request asks for."""
    what, *rest = request
    try:
        if what == "dtypes":
            return NAMES
        return {"save": save, "read": read, "latest": tf.train.latest_checkpoint}[what](*rest)
    except Exception as error:  # noqa: BLE001 - whatever TensorFlow says
        return {"error": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
