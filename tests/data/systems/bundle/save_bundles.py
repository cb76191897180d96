"""Real TensorFlow writes the bundles beside this file: `save_bundles.py OUT`."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de

out = sys.argv[1]
rng = np.random.default_rng(7)
expected: dict[str, Any] = {}


def save(prefix: str, tensors: dict[str, Any], slices: dict[str, str] | None = None) -> None:
    """Write one bundle; `slices` has "FULL SHAPE START,LENGTH:..." of some tensors."""
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    specs = [(slices or {}).get(name, "") for name in tensors]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[name.partition("#")[0] for name in tensors],
        shape_and_slices=specs,
        tensors=list(tensors.values()),
    )


def partitioned() -> None:
    """Write variables that a partitioner of tf.compat.v1 has cut, along the first and the second dimension."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {}
        for name, shape, axis, parts in (("rows", (10, 4), 0, 3), ("columns", (6, 10), 1, 4), ("bias", (7,), 0, 2)):
            whole = tf.compat.v1.get_variable(
                name,
                shape,
                initializer=tf.compat.v1.random_normal_initializer(seed=7),
                partitioner=tf.compat.v1.fixed_size_partitioner(parts, axis),
            )
            variables[name] = tf.convert_to_tensor(whole)
        expected["partitioned.step"] = np.int64(30)
        tf.compat.v1.get_variable("step", initializer=expected["partitioned.step"])
        session.run(tf.compat.v1.global_variables_initializer())
        expected.update({f"partitioned.{name}": values for name, values in session.run(variables).items()})
        tf.compat.v1.train.Saver().save(
            session, f"{out}/partitioned/model.ckpt", global_step=30, write_meta_graph=False
        )


def saved_model() -> None:
    """Write a SavedModel with variables of several dtypes."""
    module = tf.Module()
    module.w = tf.Variable(rng.standard_normal((3, 5)))
    module.b = tf.Variable(np.arange(4, dtype=np.int32))
    module.flag = tf.Variable(np.array([True, False]))
    module.half = tf.Variable(tf.cast(rng.standard_normal((2, 3)), tf.bfloat16))
    module.z = tf.Variable(np.array([1 + 2j], np.complex64))
    tf.saved_model.save(module, f"{out}/saved_model/1")
    for name in ("w", "b", "flag"):
        expected[f"saved_model.{name}/.ATTRIBUTES/VARIABLE_VALUE"] = getattr(module, name).numpy()
    expected["saved_model.half/.ATTRIBUTES/VARIABLE_VALUE"] = tf.cast(module.half, tf.float32).numpy()


def sharded() -> None:
    """Write the data files of two servers, and let TensorFlow merge them: slices, and tables as DeepRec names them."""
    ids = np.sort(rng.choice(1 << 50, 300, replace=False)).astype(np.int64)
    vectors, freqs = rng.standard_normal((300, 4)).astype(np.float32), rng.integers(1, 9, 300).astype(np.int64)
    grid = rng.standard_normal((6, 8, 3)).astype(np.float32)
    expected.update({"sharded.item.ids": ids, "sharded.item.vectors": vectors, "sharded.item-freqs": freqs})
    expected["sharded.grid"] = grid
    prefixes = []
    for part in (0, 1):
        chosen = np.flatnonzero(ids % 1000 % 2 == part)
        chosen = chosen[np.argsort(ids[chosen] % 1000, kind="stable")]
        stem = f"item/part_{part}"
        tensors = {
            f"{stem}-keys": ids[chosen],
            f"{stem}-values": vectors[chosen],
            f"{stem}-freqs": freqs[chosen],
            f"{stem}-partition_offset": np.searchsorted(ids[chosen] % 1000, np.arange(1001)).astype(np.int32),
            f"{stem}-keys_filtered": np.arange(part, dtype=np.int64),
            f"{stem}/Adagrad-keys": ids[chosen],
            f"{stem}/Adagrad-values": np.abs(vectors[chosen]),
            f"empty/part_{part}-keys": np.zeros(0, np.int64),
            f"empty/part_{part}-values": np.zeros((0, 6), np.float16),
            "grid#0": grid[part * 2 : part * 2 + 2, :4],
            "grid#1": grid[part * 2 : part * 2 + 2, 4:],
        }
        slices = {f"grid#{k}": f"6 8 3 {part * 2},2:{k * 4},4:-" for k in (0, 1)}
        if part:
            tensors |= {"grid#2": grid[4:], "names": np.array([b"a", b"", b"long " * 40])}
            slices["grid#2"] = "6 8 3 4,2:-:-"
        else:
            tensors |= {"far-keys": np.arange(5, dtype=np.int32), "step": np.int64(40)}
        tensors |= {"far-values": np.arange(10.0).reshape(5, 2)} if part else {}
        prefixes.append(f"{out}/sharded_temp/part-{part:05}-of-00002")
        save(prefixes[-1], tensors, slices)
    expected["sharded.step"], expected["sharded.far.ids"] = np.int64(40), np.arange(5)
    expected["sharded.far.vectors"] = np.arange(10.0).reshape(5, 2)
    os.makedirs(f"{out}/sharded")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=f"{out}/sharded/model.ckpt-40")


def tfra() -> None:
    """Write tables of TFRA on three devices: in a checkpoint of objects, and by a saver of a graph."""
    ids = np.sort(rng.choice(1 << 40, 60, replace=False)).astype(np.int64) - (1 << 30)
    vectors = rng.standard_normal((60, 4)).astype(np.float32)

    def made(name: str) -> Any:
        return de.get_variable(name, key_dtype=tf.int64, value_dtype=tf.float32, dim=4, devices=["/CPU:0"] * 3)

    for name in ("tfra.v/tables_of_user", "tfra_graph.item/item"):
        expected.update({f"{name}.ids": ids, f"{name}.vectors": vectors})
    user = made("user")
    user.upsert(tf.constant(ids), tf.constant(vectors))
    tf.train.Checkpoint(v=user).save(f"{out}/tfra/ckpt")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        item = made("item")
        filled = item.upsert(tf.constant(ids), tf.constant(vectors))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(filled)
        saver = tf.compat.v1.train.Saver()
        saver.save(session, f"{out}/tfra_graph/model.ckpt", global_step=3, write_meta_graph=False)


partitioned()
saved_model()
sharded()
tfra()
np.savez_compressed(f"{out}/expected.npz", **expected)
