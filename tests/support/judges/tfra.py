"""Random tables that TFRA saves, and the rows that it says they have: tfra.py OUT FIRST COUNT, or tfra.py OUT slots.

It runs under a Python that has TFRA, as a program. Table K is `OUT/step_K`, its rows as TFRA exports them `OUT/K.npz`.
`slots` makes `OUT/step_900`: a layer and an optimizer, as TFRA's checkpoints of Keras models have them.
"""

from __future__ import annotations

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de

OUT = sys.argv[1]


def save(number: int) -> None:
    """Save one table of some devices, by a seed."""
    rng = np.random.default_rng(number)
    devices, dim, count = number % 5 + 1, int(rng.integers(1, 33)), int(rng.integers(0, 400))
    table = de.get_variable(
        f"scope/user_{number}", key_dtype=tf.int64, value_dtype=tf.float32, dim=dim, devices=["/CPU:0"] * devices
    )
    keys = np.unique(np.concatenate([rng.integers(-(2**63), 2**63, count), rng.integers(-9, 99, count)]))
    values = rng.standard_normal((len(keys), dim)).astype(np.float32)
    table.upsert(tf.constant(keys, tf.int64), tf.constant(values))
    table.save_to_file_system(f"{OUT}/step_{number}/TFRADynamicEmbedding", proc_size=1, proc_rank=0)
    keys, values = (part.numpy() for part in table.export())
    order = np.argsort(keys)
    np.savez(f"{OUT}/{number}.npz", ids=keys[order], vectors=values[order].reshape(-1, dim))


def save_slots() -> None:
    """Save an embedding layer with its optimizer's slots beside a TensorFlow checkpoint."""
    import tf_keras

    creator = de.CuckooHashTableCreator(saver=de.FileSystemSaver())
    layer = de.keras.layers.Embedding(4, name="item", devices=["/CPU:0"] * 2, kv_creator=creator)
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.Adam(0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[1], [5], [-3], [2**40]], tf.int64)) ** 2)
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
    de.train.DECheckpoint(layer=layer, optimizer=optimizer).save(f"{OUT}/step_900/ckpt")


if sys.argv[2] == "slots":
    save_slots()
else:
    for each in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
        save(each)
