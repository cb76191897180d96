"""Names of version directories and shard files, both ways, for every layout that real checkpoints have.

A layout is one spelling of versions on storage (`proto/README.md`, section Names). A version that was read is written
back in its own layout; a new version gets the layout that is at its location (`catalog/target.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.model.layouts import Layout, Placement, ShardName, VersionName
from edl_ckpt.core.sources.determined.record import is_uuid

SYSTEM: Final = "elasticdl"
_layout: Final = partial(Layout, SYSTEM, placement=Placement.MOD, has_only_shards=True)
_SHARD: Final = "variables-{}-of-{}"
DESIGN = _layout("design", "version_", ".chkpt", _SHARD)
ELASTICDL = _layout("elasticdl", "version-", ".ckpt", _SHARD)
ELASTICDL_2019 = _layout("elasticdl-2019", "version-", ".chkpt", _SHARD)
MODEL_V = _layout("model_v", "model_v", ".chkpt", _SHARD, needs_shards=True)
"""The design document spells directories like this too, where it describes the removal of versions."""
SINGLE_FILE = _layout("single-file", "", ".chkpt", loose=True)
"""Before sharding: `{checkpoint_dir}/model_v{version}.chkpt`. Read, never written."""
FREE_FILE = _layout("file", "", "", in_location=False)
"""A checkpoint in one file under any name, which belongs to no location. Read, never written."""
UUID_LAYOUTS = {suffix: _layout("uuid", "", suffix, _SHARD, needs_shards=True) for suffix in (".chkpt", ".ckpt")}
"""Determined's: a directory named by a UUID, and in it the shards of any of the other layouts. Read, never written."""
_OF_PREFIX = {layout.prefix: layout for layout in (DESIGN, ELASTICDL, MODEL_V)}
"""The layout in which new versions beside a directory with this prefix are written."""
OF_SUFFIX: Final = {
    "design": {".chkpt": DESIGN},
    "elasticdl": {".ckpt": ELASTICDL, ".chkpt": ELASTICDL_2019},
    "model_v": {".chkpt": MODEL_V},
    "single-file": {".chkpt": SINGLE_FILE},
    "uuid": UUID_LAYOUTS,
}
"""The layouts of versions whose names are as in the layout with this name, by the suffix of their shards."""
WRITABLE = {layout.name: layout for layout in (DESIGN, ELASTICDL)}
_NUMBER = r"(0|[1-9][0-9]{0,17})"
_VERSION_DIR = re.compile(rf"(version[-_]|model_v){_NUMBER}", re.ASCII)
_SHARD_FILE = re.compile(rf"variables-{_NUMBER}-of-{_NUMBER}(\.ckpt|\.chkpt)", re.ASCII)
_SINGLE_FILE = re.compile(rf"model_v{_NUMBER}\.chkpt", re.ASCII)
_VERSION_LINE = re.compile(rf"^(?:(?:version[-_]|model_v){_NUMBER}|model_v{_NUMBER}\.chkpt)$", re.ASCII | re.MULTILINE)
_NUMBER_IN_NAME = re.compile(rf".*[_-]v{_NUMBER}(\.[a-z]+)?", re.ASCII | re.DOTALL)


def parse_version_dir(name: str) -> tuple[str, int] | None:
    """Return (prefix, version) of a version directory's name, or None for any other name.

    >>> parse_version_dir("version-30"), parse_version_dir("version-030"), parse_version_dir("tmp-30")
    (('version-', 30), None, None)
    """
    match = _VERSION_DIR.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def version_named(name: str) -> VersionName | None:
    """Return what the name of an entry of a location says of a version; None for a name of another kind."""
    if parsed := parse_version_dir(name):
        return VersionName(parsed[1], _OF_PREFIX[parsed[0]])
    if (single := parse_single_file(name)) is not None:
        return VersionName(single, SINGLE_FILE, is_file=True)
    return VersionName(None, UUID_LAYOUTS[".chkpt"]) if is_uuid(name) else None


def shard_named(name: str) -> ShardName | None:
    """Return (ps_id, ps_num, suffix) of a shard file's name, or None for any other name.

    >>> shard_named("variables-1-of-2.ckpt"), shard_named("variables-2-of-2.ckpt")
    (ShardName(ps_id=1, ps_num=2, suffix='.ckpt'), None)
    """
    return _shard(name)


@functools.lru_cache(maxsize=4096)  # each of a thousand versions has the same names
def _shard(name: str) -> ShardName | None:
    match = _SHARD_FILE.fullmatch(name)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return ShardName(int(match[1]), int(match[2]), match[3])


def parse_single_file(name: str) -> int | None:
    """Return the version of an unsharded checkpoint's file name, or None.

    >>> parse_single_file("model_v33.chkpt")
    33
    """
    match = _SINGLE_FILE.fullmatch(name)
    return int(match[1]) if match else None


def numbers_among(names: Iterable[str]) -> set[int]:
    r"""Return the numbers of the versions among many names, in one step for all.

    >>> sorted(numbers_among(["version-30", "version_7", "model_v33.chkpt", "tmp-30", "version-1\nversion-2"]))
    [7, 30, 33]
    """
    lines = "\n".join(name for name in names if "\n" not in name)
    return {int(sharded or single) for sharded, single in _VERSION_LINE.findall(lines)}


def number_in_name(name: str) -> int | None:
    """Return the version at the end of the name of a file, as people name single-file checkpoints; None for others.

    >>> number_in_name("mnist_functional_api_model_v110.chkpt"), number_in_name("model.chkpt")
    (110, None)
    """
    match = _NUMBER_IN_NAME.fullmatch(name)
    return int(match[1]) if match else None


def version_names(version: int) -> list[str]:
    """Return every name that a version has in one layout or another.

    >>> version_names(3)
    ['version_3', 'version-3', 'model_v3', 'model_v3.chkpt']
    """
    directories = [layout.version_dir(version) for layout in (DESIGN, ELASTICDL, MODEL_V)]
    return [*directories, f"{MODEL_V.prefix}{version}{SINGLE_FILE.suffix}"]


def copied_layouts(name: str, layout: Layout) -> frozenset[Layout]:
    """Return the layout that a copy of a version has, as a new version beside it is written; none for one file.

    `name` is that of the version's directory. A directory named by a UUID becomes the one in which its shards keep
    their names.

    >>> [each.name for each in copied_layouts("4f8a0d1e-07b5-4bd5-8f1c-6f3c2a9be001", UUID_LAYOUTS[".ckpt"])]
    ['elasticdl']
    """
    if layout.name == "uuid":
        return frozenset([ELASTICDL if layout.suffix == ELASTICDL.suffix else DESIGN])
    parsed = parse_version_dir(name)
    return frozenset([_OF_PREFIX[parsed[0]]] if parsed else [])


def writable_layout(name: str) -> Layout:
    """Return the layout with this name; UsageError for a name that `--layout` does not accept."""
    if name not in WRITABLE:
        raise UsageError(f"unknown layout {name!r}; expected {' or '.join(WRITABLE)}", hint=meant(name, WRITABLE))
    return WRITABLE[name]
