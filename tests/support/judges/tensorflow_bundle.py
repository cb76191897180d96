"""A process with TensorFlow writes a random bundle, and says what TensorFlow itself reads from it.

Usage: tensorflow_bundle.py OUT COUNT SEED. OUT gets `model.ckpt-1.*` and `truth.npz`: each variable's bytes, and in the
array of texts `names` the name, dtype and shape of each as `tf.train.list_variables` lists them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

DTYPES = [
    "float32",
    "float64",
    "int32",
    "uint8",
    "int16",
    "int8",
    "int64",
    "bool",
    "bfloat16",
    "uint16",
    "float16",
    "uint32",
    "uint64",
]
WHOLE = {"float16", "uint16", "uint32", "uint64"}
"""TensorFlow saves slices of these, and cannot read them."""


def values_of(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return random bits as a tensor; a bool is one of two bytes."""
    kind = getattr(tf, dtype).as_numpy_dtype
    data = rng.bytes(int(np.prod(shape)) * np.dtype(kind).itemsize)
    if dtype == "bool":
        return (np.frombuffer(data, np.uint8) % 2).astype(bool).reshape(shape)
    return np.frombuffer(data, kind).reshape(shape)


def main(out: str, count: int, seed: int) -> None:
    """Write the bundle as the data files of three servers, some variables in slices, and read it with TensorFlow."""
    rng = np.random.default_rng(seed)
    prefixes = []
    every: dict[str, Any] = {}
    for server in range(3):
        names, specs, tensors = [], [], []
        for number in range(server, count, 3):
            name = f"{'scope/' * int(rng.integers(0, 4))}v{rng.integers(1 << 40)}_{number}/é"
            shape = tuple(int(n) for n in rng.integers(0, 6, rng.integers(0, 4)))
            values = values_of(rng, DTYPES[number % len(DTYPES)], shape)
            every[name] = values
            parts = shape[0] if shape and number % 5 == 0 and 0 not in shape and DTYPES[number % 13] not in WHOLE else 0
            for part in range(parts):
                names.append(name)
                specs.append(f"{' '.join(map(str, shape))} {part},1{':-' * (len(shape) - 1)}")
                tensors.append(values[part : part + 1])
            if not parts:
                names.append(name)
                specs.append("")
                tensors.append(values)
        prefixes.append(f"{out}/parts/{server}")
        os.makedirs(os.path.dirname(prefixes[-1]), exist_ok=True)
        tf.raw_ops.SaveV2(prefix=prefixes[-1], tensor_names=names, shape_and_slices=specs, tensors=tensors)
    prefix = f"{out}/model.ckpt-1"
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=prefix)
    dtypes = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    listed = tf.train.list_variables(prefix)
    names = [name for name, _ in listed]
    read = tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=[dtypes[name] for name in names]
    )
    octets: Any = {f"v{k}": np.frombuffer(tensor.numpy().tobytes(), np.uint8) for k, tensor in enumerate(read)}
    lines = [f"{name}\t{dtypes[name].name}\t{','.join(map(str, shape))}" for name, shape in listed]
    np.savez(f"{out}/truth.npz", **octets, names=np.array(lines))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
