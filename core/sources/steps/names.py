"""How the neighbours spell steps: directories with a number at the end, and files with one prefix side by side."""

from __future__ import annotations

import re
from typing import Final

from edl_ckpt.core.model.layouts import Layout, VersionName

_NUMBER: Final = r"0*([0-9]{1,18})"
_DIRECTORY: Final = re.compile(
    rf"(?:(?:global_?)?steps?|checkpoint|ckpt|model\.ckpt|iter(?:ation)?|epoch[-_=]?[0-9]+[-_]step)?[-_=]?{_NUMBER}"
    r"(?:\.ckpt)?",
    re.ASCII | re.IGNORECASE,
)
_PREFIX: Final = re.compile(r"(.+)\.(?:index|meta|data-[0-9]{5}-of-[0-9]{5})", re.ASCII | re.DOTALL)
_LAST_NUMBER: Final = re.compile(rf".*?{_NUMBER}", re.ASCII | re.DOTALL)
_DEEPEST: Final = 6
"""No system has more directories in one another; so a listing does not go through other trees."""
STEPS: Final = Layout("steps", "steps", "", "", needs_shards=True)
"""The layout of a name alone, before anything is known of the files."""
PREFIX: Final = Layout("steps", "prefix", "", "", needs_shards=True, loose=True)
"""Of files side by side in a location, which share what is before their endings."""


def number_of_directory(name: str) -> int | None:
    """Return the number in the name of a step's directory; None for a name of another kind.

    >>> [number_of_directory(name) for name in ("step_30", "iter_0000100", "epoch=3-step=200.ckpt", "7", "-7", "notes")]
    [30, 100, 200, 7, None, None]
    """
    match = _DIRECTORY.fullmatch(name)
    return int(match[1]) if match and name[0] not in "-_=" else None


def version_named(name: str) -> VersionName | None:
    """Return what the name of a directory, or of the index of a bundle, says of a step; None for another name."""
    if name.endswith(".index"):
        number = last_number(name.removesuffix(".index"))
        return None if number is None else VersionName(number, PREFIX, is_file=True)
    number = number_of_directory(name)
    return None if number is None else VersionName(number, STEPS)


def prefix_of(name: str) -> str | None:
    """Return what files of one bundle begin with, for the name of one of them; None for a name of another kind.

    >>> prefix_of("model.ckpt-7.index"), prefix_of("model.ckpt-7.data-00000-of-00002"), prefix_of("checkpoint")
    ('model.ckpt-7', 'model.ckpt-7', None)
    """
    match = _PREFIX.fullmatch(name)
    return match and match[1]


def last_number(name: str) -> int | None:
    """Return the number at the end of a name; None without one.

    >>> last_number("model.ckpt-100"), last_number("final")
    (100, None)
    """
    match = _LAST_NUMBER.fullmatch(name)
    return int(match[1]) if match else None


def completes(name: str) -> bool:
    """Say whether a file is an index, which its system writes last: without it no step is whole.

    >>> completes("model/.metadata"), completes("w.index"), completes("__0_0.distcp")
    (True, True, False)
    """
    return name.rpartition("/")[2] == ".metadata" or name.endswith((".index", ".safetensors.index.json"))


def looks_into(directory: str) -> bool:
    """Say whether a directory of a location may be that of a step, or lie in one; hidden ones do not.

    >>> looks_into("step_3/model"), looks_into("step_3/.cache"), looks_into("src/step_3")
    (True, False, False)
    """
    first, *inner = directory.split("/")
    return (
        len(inner) < _DEEPEST and number_of_directory(first) is not None and not any(n.startswith(".") for n in inner)
    )


def may_be_file(name: str) -> bool:
    """Say whether a name is that of a file which can be a checkpoint by itself, or stands for one."""
    return name.endswith((".safetensors", ".safetensors.index.json", ".index", ".metadata"))


def is_with(file: str, name: str) -> bool:
    """Say whether a file belongs to the checkpoint that one file, or a prefix, in its directory names.

    >>> is_with("w.data-00000-of-00001", "w.index"), is_with("m-1.safetensors", "m.safetensors.index.json")
    (True, True)
    >>> is_with("n.safetensors", "m.safetensors"), is_with("__0_0.distcp", ".metadata")
    (False, True)
    """
    if name == ".metadata":
        return True
    if name.endswith(".safetensors.index.json"):
        return file == name or file.startswith(name.removesuffix(".safetensors.index.json"))
    return file == name or prefix_of(file) == (prefix_of(name) or name)
