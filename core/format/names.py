"""Names of version directories and shard files, both ways, for every layout that real checkpoints have.

A layout is one spelling of versions on storage (`proto/README.md`, section Names). A version that was read is written
back in its own layout; a new version gets the design layout unless the caller names another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edl_ckpt.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spell versions: its name, the separator in `version{separator}N`, the suffix of shard files."""

    name: str
    separator: str
    suffix: str

    def version_dir(self, version: int) -> str:
        """Return the directory name of a version.

        >>> ELASTICDL.version_dir(30)
        'version-30'
        """
        return f"version{self.separator}{version}"

    def shard_file(self, ps_id: int, ps_num: int) -> str:
        """Return the file name of a shard.

        >>> DESIGN.shard_file(0, 2)
        'variables-0-of-2.chkpt'
        """
        return f"variables-{ps_id}-of-{ps_num}{self.suffix}"


DESIGN = Layout("design", "_", ".chkpt")


ELASTICDL = Layout("elasticdl", "-", ".ckpt")


ELASTICDL_2019 = Layout("elasticdl-2019", "-", ".chkpt")


SINGLE_FILE = Layout("single-file", "", ".chkpt")
"""Before sharding: `{checkpoint_dir}/model_v{version}.chkpt`. Read, never written."""


WRITABLE = {layout.name: layout for layout in (DESIGN, ELASTICDL)}


_NUMBER = r"(0|[1-9][0-9]{0,17})"


_VERSION_DIR = re.compile(rf"version([-_]){_NUMBER}", re.ASCII)


_SHARD_FILE = re.compile(rf"variables-{_NUMBER}-of-{_NUMBER}(\.ckpt|\.chkpt)", re.ASCII)


_SINGLE_FILE = re.compile(rf"model_v{_NUMBER}\.chkpt", re.ASCII)


def parse_version_dir(name: str) -> tuple[str, int] | None:
    """Return (separator, version) of a version directory's name, or None for any other name.

    >>> parse_version_dir("version-30"), parse_version_dir("version-030"), parse_version_dir("tmp-30")
    (('-', 30), None, None)
    """
    match = _VERSION_DIR.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def parse_shard_file(name: str) -> tuple[int, int, str] | None:
    """Return (ps_id, ps_num, suffix) of a shard file's name, or None for any other name.

    >>> parse_shard_file("variables-1-of-2.ckpt"), parse_shard_file("variables-2-of-2.ckpt")
    ((1, 2, '.ckpt'), None)
    """
    match = _SHARD_FILE.fullmatch(name)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return int(match[1]), int(match[2]), match[3]


def parse_single_file(name: str) -> int | None:
    """Return the version of an unsharded checkpoint's file name, or None.

    >>> parse_single_file("model_v33.chkpt")
    33
    """
    match = _SINGLE_FILE.fullmatch(name)
    return int(match[1]) if match else None


def layout_of(separator: str, suffix: str) -> Layout | None:
    """Return the layout with this directory separator and shard suffix, or None when no release wrote it."""
    for layout in (DESIGN, ELASTICDL, ELASTICDL_2019):
        if (layout.separator, layout.suffix) == (separator, suffix):
            return layout
    return None


def elasticdl_version(name: str) -> int | None:
    """Return the number that ElasticDL's scan reads from a name in checkpoint_dir, or None where the scan crashes.

    Source: ElasticDL evaluates `int(name.split("-")[-1])` for every entry, whatever it is.

    >>> elasticdl_version("version-30"), elasticdl_version("tmp-30"), elasticdl_version("metrics.json")
    (30, 30, None)
    """
    try:
        return int(name.rsplit("-", maxsplit=1)[-1])
    except ValueError:
        return None


def writable_layout(name: str) -> Layout:
    """Return the layout with this name; UsageError for a name that `--layout` does not accept."""
    if name not in WRITABLE:
        raise UsageError(f"unknown layout {name!r}; expected {' or '.join(WRITABLE)}")
    return WRITABLE[name]
