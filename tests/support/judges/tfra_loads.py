"""What real TFRA holds after loading files: tfra_loads.py OUT FIRST COUNT BUILD.

It runs under a Python that has TFRA, as a program. Case K is `OUT/step_K`, with `OUT/K.json`: the name, the dim, and
how many processes load it. What each of them has is in `OUT/K.npz`; one that fails is not in it. TFRA asks whether its
TensorFlow was built with CUDA, as that of PyPI is, wherever it runs; with BUILD 'cpu' the answer is no.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de
from tensorflow_recommenders_addons.dynamic_embedding.python.ops import dynamic_embedding_variable as variables

OUT = sys.argv[1]


def load(number: int) -> None:
    """Let each process of a case load it, one after the other."""
    with open(f"{OUT}/{number}.json") as file:
        case = json.load(file)
    found: dict[str, Any] = {}
    for rank in range(case["ranks"]):
        table = de.get_variable(
            case["name"],
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=case["dim"],
            devices=["/CPU:0"],
        )
        table.clear()
        try:
            variables.load_de_variable_from_file_system(
                table, f"{OUT}/step_{number}/TFRADynamicEmbedding", case["ranks"], rank, 1 << 20
            )
        except Exception as error:  # noqa: BLE001 - TensorFlow raises many kinds
            print(number, rank, type(error).__name__, str(error)[:200])
            continue
        keys, values = (part.numpy() for part in table.export())
        order = np.argsort(keys)
        found |= {f"keys_{rank}": keys[order], f"values_{rank}": values[order]}
    np.savez(f"{OUT}/{number}.npz", **found)


assert tf.test.is_built_with_cuda()
if sys.argv[4] == "cpu":
    variables.pywrap = types.SimpleNamespace(IsGoogleCudaEnabled=lambda: False)
for each in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
    load(each)
