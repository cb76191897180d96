"""A process with TensorFlow says what it reads from the newest checkpoint of a directory.

Usage: tensorflow_dump.py FOLDER OUT. OUT, an .npz, gets each variable's bytes as `v0`, `v1`, ..., and in the array of
texts `names` the name, dtype and shape of each.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf


def main(folder: str, out: str) -> None:
    """Read all variables."""
    prefix = tf.train.latest_checkpoint(folder)
    reader = tf.train.load_checkpoint(folder)
    dtypes = reader.get_variable_to_dtype_map()
    listed = tf.train.list_variables(prefix)
    octets: Any = {
        f"v{k}": np.frombuffer(np.asarray(reader.get_tensor(name)).tobytes(), np.uint8)
        for k, (name, _) in enumerate(listed)
    }
    lines = [f"{name}\t{dtypes[name].name}\t{','.join(map(str, shape))}" for name, shape in listed]
    np.savez(out, **octets, names=np.array(lines, dtype=np.str_))


main(sys.argv[1], sys.argv[2])
