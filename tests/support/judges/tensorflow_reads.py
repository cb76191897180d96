"""A process with TensorFlow reads a bundle, whole and in slices, and writes the same one itself.

Usage: tensorflow_reads.py FOLDER SEED. FOLDER has a bundle `model.*`, its file `checkpoint`, `plan.json`: the name,
dtype, shape and slabs (rank, offsets, sizes) of each array, and `truth.npz`: their bytes as `v0`, `v1`, ... The bundle
that TensorFlow writes, with a data file for each rank, gets the prefix `theirs`. Whatever TensorFlow reads differently
is an error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

UNREAD = {"float16", "uint16", "uint32", "uint64"}
"""TensorFlow saves slices of these, and cannot read them."""


def spec_of(shape: list[int], offsets: list[int], sizes: list[int]) -> str:
    """Return a shape and a slice as savers spell them."""
    bounds = ":".join(f"{start},{size}" for start, size in zip(offsets, sizes, strict=True))
    return f"{' '.join(map(str, shape))} {bounds}"


def restored(prefix: str, name: str, spec: str, kind: Any) -> Any:
    """Return what TensorFlow restores of a variable."""
    (tensor,) = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[spec], dtypes=[kind])
    return tensor.numpy()


def main(folder: str, seed: int) -> None:
    """Read all, compare, and write it again."""
    rng = np.random.default_rng(seed)
    with open(f"{folder}/plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    truth = np.load(f"{folder}/truth.npz")
    prefix = tf.train.latest_checkpoint(folder)
    assert prefix == f"{folder}/model", prefix
    listed = {name: list(shape) for name, shape in tf.train.list_variables(prefix)}
    strings = [name for name in listed if name.startswith("string ")]
    for name in strings:
        assert tf.train.load_checkpoint(prefix).get_tensor(name) == name.encode(), name
    assert {array["name"]: array["shape"] for array in plan} == {
        name: shape for name, shape in listed.items() if name not in strings
    }
    reader = tf.train.load_checkpoint(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    ranks: dict[int, list[tuple[str, str, Any]]] = {}
    partial = 0
    for number, array in enumerate(plan):
        name, shape, kind = array["name"], array["shape"], getattr(tf, array["dtype"])
        values = truth[f"v{number}"].view(kind.as_numpy_dtype).reshape(shape)
        assert dtypes[name] == kind, name
        several = len(array["slabs"]) > 1
        if not several or array["dtype"] not in UNREAD:
            assert np.asarray(reader.get_tensor(name)).tobytes() == values.tobytes(), name
            for _ in range(3 if several else 1):
                if 0 in shape or not shape or array["dtype"] in UNREAD:
                    continue
                offsets = [int(rng.integers(0, dim)) for dim in shape]
                sizes = [int(rng.integers(1, dim - start + 1)) for dim, start in zip(shape, offsets, strict=True)]
                box = values[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))]
                assert restored(prefix, name, spec_of(shape, offsets, sizes), kind).tobytes() == box.tobytes(), name
                partial += 1
        for rank, offsets, sizes in array["slabs"]:
            box = values[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))]
            spec = spec_of(shape, offsets, sizes) if several else ""
            ranks.setdefault(rank, []).append((name, spec, tf.constant(box, kind)))
    parts = []
    for rank in sorted(ranks):
        parts.append(f"{folder}/parts/{rank}")
        os.makedirs(f"{folder}/parts", exist_ok=True)
        names, specs, tensors = zip(*ranks[rank], strict=True)
        tf.raw_ops.SaveV2(prefix=parts[-1], tensor_names=names, shape_and_slices=specs, tensors=tensors)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=f"{folder}/theirs")
    print(f"{len(plan)} arrays, {partial} slices")


main(sys.argv[1], int(sys.argv[2]))
