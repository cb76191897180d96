"""The checks of what is written, the same for every writer: library, import, reshard, copy and merged export.

An error stands for what ElasticDL would lose or take for something else; a warning for what its restore refuses, which
edl-ckpt itself can still read. They are pure: `lay_out_shards` and `free_target` call them, and each survey of ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.names import is_unicode
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.sources.elasticdl import placement, wire

MAX_VERSION: Final = (1 << 31) - 1
MAX_TEXT_BYTES: Final = wire.SMALL_BYTES // 2
"""The name and the initializer in the info of a table together are small enough for every reader here."""
READABLE: Final = frozenset({"float32", "float64", "int8", "int16", "int32", "int64", "bool"})
"""The dtypes that ElasticDL's readers of today can read."""
LARGE_SHARD_BYTES: Final = 1 << 31
"""Python's protobuf can neither parse nor write a larger message; ElasticDL's Go servers can."""

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

Python's servers pass the name in a table's info to `tf.keras.initializers.get`, which raises ValueError for a name that
it does not know, even when no row is missing. Go servers know "uniform" and take every other name for zeros.
"""


def check_version(number: int) -> None:
    """Raise UsageError for a number that no version can have.

    `Model.version` is an int32, so ElasticDL restores 2**31 as -2147483648; its scan reads `version--1` as version 1.

    >>> check_version(-1)
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UsageError: a version must be 0 to 2147483647, got -1
    """
    if not 0 <= number <= MAX_VERSION:
        raise UsageError(f"a version must be 0 to {MAX_VERSION}, got {number}")


def check_ps_num(ps_num: int) -> None:
    """Raise UsageError for a number of parameter servers that cannot be.

    >>> check_ps_num(0)
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UsageError: the number of parameter servers must be 1 to 65535, got 0
    """
    if not 1 <= ps_num <= placement.MAX_PS_NUM:
        raise UsageError(f"the number of parameter servers must be 1 to {placement.MAX_PS_NUM}, got {ps_num}")


def check_texts(variables: Iterable[str], infos: Iterable[TableInfo]) -> None:
    r"""Raise UsageError for names and initializers that are not Unicode, or longer than MAX_TEXT_BYTES.

    Protobuf stores them as UTF-8. Every other text is right, also an empty one, or one with NUL: ElasticDL restores it.

    >>> check_texts(["", "a\0b", "w\ud800"], [])
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UsageError: variable 'w\ud800': the name is not valid Unicode, so UTF-8 cannot express it
    """
    for name in variables:
        _check_text(f"variable {name!r}: the name", name)
    for info in infos:
        _check_text(f"table {info.name!r}: the name", info.name)
        _check_text(f"table {info.name!r}: the initializer {info.initializer!r}", info.initializer)


def _check_text(subject: str, text: object) -> None:
    if not isinstance(text, str):
        raise UsageError(f"{subject} is not a text")
    if not is_unicode(text):
        raise UsageError(f"{subject} is not valid Unicode, so UTF-8 cannot express it")
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise UsageError(f"{subject[:80]}... has {size} bytes, the limit is {MAX_TEXT_BYTES}")


def restore_warnings(
    shard_bytes: Sequence[int], variables: int, dtypes: Iterable[DType | None], infos: Iterable[TableInfo]
) -> Iterator[str]:
    """Yield a warning for everything in a version to be written that ElasticDL cannot read or does not use.

    `dtypes` are those of all variables and tables, `shard_bytes` the sizes of all shards.
    """
    ps_num = len(shard_bytes)
    large = [ps_id for ps_id, size in enumerate(shard_bytes) if size > LARGE_SHARD_BYTES]
    if large:
        verb, first = ("is", "") if len(large) == 1 else ("are", "the first is ")
        yield (
            f"{len(large)} of {counted(ps_num, 'target shard')} {verb} larger than 2 GiB ({first}shard {large[0]}):"
            " Python parameter servers and ElasticDL's exporter cannot read such shards"
        )
    usable = placement.crowded_shards(ps_num)
    if usable < ps_num and variables > 1:
        yield f"with {ps_num} servers only {usable} can have dense variables: the hash of a name never gives the others"
    odd = {dtype.name for dtype in dtypes if dtype and dtype.name not in READABLE}
    if odd:
        yield f"ElasticDL cannot read values of {', '.join(sorted(odd))}: its restore fails"
    unknown = [info for info in infos if info.initializer not in KERAS_INITIALIZERS]
    if unknown:
        named = ", ".join(f"{info.name!r} ({info.initializer!r})" for info in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        yield f"ElasticDL does not know the initializer of {named}{more}: its restore fails"
