"""A step with several indexes, each in a directory of its own: which of them has a name, and how all are laid out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item
from edl_ckpt.core.sources.dcp.names import shown_names
from edl_ckpt.core.sources.dcp.writing import METADATA, DcpLayout, lay_out
from edl_ckpt.core.sources.steps.file_layout import Array


class Home(NamedTuple):
    """The directory of the index that has a tensor, and its key there."""

    folder: str
    key: str


class StepIndexes:
    """The indexes of a step by their directories, '' or with a slash at their end; names are as readers show them."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self.roots = roots
        keys = {folder: [one.name for one in metadata.tensors(root)] for folder, root in roots.items()}
        self._shown = shown_names(keys)

    @property
    def tensors(self) -> Iterator[IndexedTensor]:
        """Return all tensors, and the values that are none."""
        for folder, root in self.roots.items():
            for one in metadata.tensors(root):
                yield replace(one, name=self._shown[folder][one.name])

    @property
    def items(self) -> Iterator[Item]:
        """Return what was saved of them."""
        for folder, root in self.roots.items():
            for one in metadata.items(root):
                yield replace(one, name=self._shown[folder].get(one.name, one.name))

    @cached_property
    def homes(self) -> Mapping[str, Home]:
        """The home of each name."""
        return {name: Home(folder, key) for folder, names in self._shown.items() for key, name in names.items()}

    def renamed(self, old: str, new: str) -> Home:
        """Return the home of a tensor under a new name, in the index that it is in; UsageError where none shows that.

        A name that begins with a directory must go on doing so.
        """
        home = self.homes[old]
        begin = old[: len(old) - len(home.key)]
        if not new.startswith(begin):
            message = f"{old!r} is in an index whose names begin with {begin!r}, and {new!r} does not"
            raise UsageError(message, hint=f"try: --rename '{old}={begin}{new}'")
        return Home(home.folder, new.removeprefix(begin))


@dataclass(frozen=True, slots=True)
class SeveralLayouts:
    """The files of several indexes; each array is in one of them, under a key of its own there."""

    checksum: ClassVar = "crc32"
    layouts: Mapping[str, DcpLayout]
    """By the directories of the indexes."""
    homes: Mapping[str, Home]
    """By the names of arrays."""

    @property
    def files(self) -> Mapping[str, int]:
        """Return the files of all ranks, then the indexes."""
        every = {name: size for layout in self.layouts.values() for name, size in layout.files.items()}
        last = {name: size for name, size in every.items() if name.rpartition("/")[2] == METADATA}
        return {name: size for name, size in every.items() if name not in last} | last

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of a slab, and the offset of its values."""
        home = self.homes[key]
        return self.layouts[home.folder].at(home.key, slab)

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield what stands around values, given the CRC-32 of each slab."""
        by_folder: dict[str, dict[tuple[str, int], int]] = {folder: {} for folder in self.layouts}
        for (key, slab), crc in sums.items():
            home = self.homes[key]
            by_folder[home.folder][home.key, slab] = crc
        for folder, layout in self.layouts.items():
            yield from layout.literals(by_folder[folder])


def lay_out_several(
    indexes: StepIndexes,
    arrays: Sequence[Array],
    sources: Mapping[str, str],
    *,
    items: Mapping[str, IndexedTensor],
    variables: Collection[str],
) -> SeveralLayouts:
    """Lay out arrays, each in the index that has its source; `sources` are the old names by the new ones.

    `items` and `variables` are as for `lay_out`, by the new names. An index whose tensors are all left out is not
    written. Raises UsageError for names that would be others when they are read.
    """
    homes = _homes(indexes, arrays, sources)
    by_folder: dict[str, list[Array]] = {}
    for array in arrays:
        by_folder.setdefault(homes[array.key].folder, []).append(array)
    layouts: dict[str, DcpLayout] = {}
    for folder, root in indexes.roots.items():
        own = by_folder.get(folder, [])
        if own or len(indexes.roots) == 1:
            layouts[folder] = lay_out(
                [replace(array, key=homes[array.key].key) for array in own],
                folder=folder,
                items={homes[array.key].key: items[array.key] for array in own if array.key in items},
                paths=metadata.paths(root),
                variables=[homes[array.key].key for array in own if array.key in variables],
            )
    _check_names(homes, layouts)
    return SeveralLayouts(layouts, homes)


def _homes(indexes: StepIndexes, arrays: Sequence[Array], sources: Mapping[str, str]) -> dict[str, Home]:
    """Return the index of each array, and its name there; names of an index alone are as they are."""
    folders = {indexes.homes[sources[array.key]].folder for array in arrays}
    if len(folders) == 1:
        (folder,) = folders
        return {array.key: Home(folder, array.key) for array in arrays}
    return {array.key: indexes.renamed(sources[array.key], array.key) for array in arrays}


def _check_names(homes: Mapping[str, Home], folders: Iterable[str]) -> None:
    """Raise UsageError for a name that would be another one when it is read from these indexes."""
    keys: dict[str, list[str]] = {folder: [] for folder in folders}
    for home in homes.values():
        keys[home.folder].append(home.key)
    shown = shown_names(keys)
    for name, home in homes.items():
        shown_name = shown[home.folder][home.key]
        if shown_name != name:
            raise UsageError(f"{name!r} would be read as {shown_name!r}", hint="keep or drop it in all directories")
