"""The initializers that ElasticDL can restore a table with.

Its Python code passes the name in a table's info to `tf.keras.initializers.get`, which raises ValueError for a name
that it does not know, even when no row is missing. Its Go servers know "uniform" and take every other name for zeros.
"""

from __future__ import annotations

import re
from typing import Final

_FAMILIES: Final = ("Glorot", "He", "Lecun", "Random")
_OTHERS: Final = ("Constant", "Identity", "Ones", "Orthogonal", "TruncatedNormal", "VarianceScaling", "Zeros")
_CLASSES: Final = (*_OTHERS, *(f"{family}{shape}" for family in _FAMILIES for shape in ("Normal", "Uniform")))


def function_name(class_name: str) -> str:
    """Return how Keras spells the function that does what an initializer's class does.

    >>> function_name("GlorotNormalV2")
    'glorot_normal'
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", class_name.removesuffix("V2")).lower()


KERAS_INITIALIZERS: Final = frozenset(
    {"Initializer", "initializer", "normal", "one", "uniform", "zero"}
    | {spelled for name in _CLASSES for spelled in (name, f"{name}V2", function_name(name))}
    | {f"{kind}_{shape}V2" for kind in ("glorot", "he", "lecun") for shape in ("normal", "uniform")}
)
"""The names that some TensorFlow 2 knows, with this spelling: `keras/initializers` and `ops/init_ops_v2.py`.

Releases differ a little (2.0 to 2.2 lack HeNormal and its like), and a checkpoint does not show which one will read it.
"""
