"""Names of values in a checkpoint of objects: the path to a value through the objects that lead to it.

A path is a tuple of attribute names, keys and positions: ('net', 'l1', 'kernel'). Its name joins them with '/', as
TensorFlow's checkpoint keys do: in a key, '.' becomes '..' and '/' becomes '.S'. So two paths never have one name.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str, ...]
"""The names of the edges from the root to an object."""
_ESCAPED: Final = re.compile(r"\.(.)", re.DOTALL)


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
    return tuple(_ESCAPED.sub(_unescape, step) for step in name.split("/"))


def _unescape(match: re.Match[str]) -> str:
    return {".": ".", "S": "/"}.get(match[1], match[0])
