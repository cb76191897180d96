"""Names of values in a checkpoint of objects: the path to a value through the objects that lead to it.

A path is a tuple of attribute names, keys and positions: ('net', 'l1', 'kernel'). Its name joins them with '/', as
TensorFlow's checkpoint keys do: in a key, '.' becomes '..' and '/' becomes '.S'. So two paths never have one name.
An object that several names lead to is saved under one of them. The others are in the variable `ALIASES`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.reading.reader import Checkpoint

ALIASES: Final = ".ALIASES"
"""No path has this name, because a '.' in a path is escaped."""

Path: TypeAlias = tuple[str, ...]
"""The names of the edges from the root to an object."""
_ESCAPED: Final = re.compile(r"\..", re.DOTALL)


def path_name(path: Path) -> str:
    """Return the name of a path, as it is written into a checkpoint.

    >>> path_name(("net", "l1", "kernel")), path_name(("mapped", "a/b.c")), path_name(("listed", "0"))
    ('net/l1/kernel', 'mapped/a.Sb..c', 'listed/0')
    """
    return "/".join(step.replace(".", "..").replace("/", ".S") for step in path)


def parse_name(name: str) -> Path:
    """Return the path that a name stands for; the inverse of `path_name`.

    Checkpoints of others have names such as 'layer.0.weight': a '.' before any other character stands for itself.

    >>> parse_name("mapped/a.Sb..c"), parse_name("layer.0.weight")
    (('mapped', 'a/b.c'), ('layer.0.weight',))
    """
    meant = {"..": ".", ".S": "/"}
    return tuple(_ESCAPED.sub(lambda match: meant.get(match[0], match[0]), step) for step in name.split("/"))


def parse_aliases(data: npt.NDArray[Any], ref: str) -> dict[Path, Path]:
    """Return the aliases in a variable that `Graph.alias_variable` made; CorruptError for any other content."""
    try:
        document = json.loads(data.astype(np.int8).tobytes())
        if not all(isinstance(path, str) for path in document.values()):
            raise TypeError  # noqa: TRY301 - one way out for every kind of damage
        return {parse_name(edge): parse_name(path) if path else () for edge, path in document.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise CorruptError(f"variable {ALIASES!r} is damaged", path=ref) from None


def own_name(checkpoint: Checkpoint, name: str) -> str:
    """Return the name under which a checkpoint has what a name leads to: its own, unless the name is an alias."""
    if name in checkpoint or ALIASES not in checkpoint:
        return name
    aliases = parse_aliases(checkpoint.variable(ALIASES), checkpoint.version.ref)
    there: Path = ()
    for step in parse_name(name):
        there = aliases.get((*there, step), (*there, step))
    return path_name(there)
