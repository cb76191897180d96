"""The initializers that ElasticDL can restore a table with.

Its Python code passes the name in a table's info to `tf.keras.initializers.get`, which raises ValueError for a name
that it does not know, even when no row is missing. Its Go servers know "uniform" and take every other name for zeros.
"""

from __future__ import annotations

from typing import Final

_CLASSES: Final = (
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
)
_FUNCTIONS: Final = (
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "one",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "zero",
    "zeros",
)
KERAS_INITIALIZERS: Final = frozenset(
    {"Initializer", "initializer", *_CLASSES, *_FUNCTIONS, *(f"{name}V2" for name in _CLASSES)}
    | {f"{kind}_{shape}V2" for kind in ("glorot", "he", "lecun") for shape in ("normal", "uniform")}
)
"""The names that some TensorFlow 2 knows, with this spelling: `keras/initializers` and `ops/init_ops_v2.py`.

Releases differ a little (2.0 to 2.2 lack HeNormal and its like), and a checkpoint does not show which one will read it.
"""
