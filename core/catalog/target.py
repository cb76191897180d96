"""The target of a version to be written: its location, its layout, its number, its directory, and its shards there.

Every writer chooses the layout here. It follows the version directories that are at the location, because one
`version_200` beside `version-100` makes ElasticDL's scan raise an exception.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.catalog.entries import grouped
from edl_ckpt.core.catalog.interest import Interest
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.elasticdl.target import (
    DESIGN,
    ELASTICDL,
    WRITABLE,
    CountedTable,
    PlacedVariable,
    VersionLayout,
    check_version,
    lay_out_shards,
    numbers_among,
    restore_warnings,
    writable_layout,
)
from edl_ckpt.core.sources.registry import is_uuid, is_version_dir, layouts_among, version_named
from edl_ckpt.core.state.metadata import read_layout
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, ObjectStore, Store, open_store
from edl_ckpt.core.storage.local import is_there
from edl_ckpt.core.storage.user_files import is_directory


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a version to be written, in an opened location; `directory` is its path or URL."""

    store: LocalStore | ObjectStore = field(repr=False, compare=False)
    layout: Layout
    number: int
    directory: str
    replaces: Version | None = None
    """The version whose place it takes; None where nothing is yet."""
    beside: frozenset[Layout] = frozenset()
    """The layouts that were at the location when the target was chosen."""
    warnings: tuple[str, ...] = ()
    """What people should know of the layout."""

    @property
    def location(self) -> Location:
        """Return the location."""
        return self.store.location

    @property
    def in_place(self) -> bool:
        """Return True when it takes the place of an existing version."""
        return self.replaces is not None


def free_target(
    location: LocationLike, version: int, *, layout: LayoutName | None = None, empty: Layout = DESIGN
) -> Target:
    """Return the place of a new version, in the layout that `choose_layout` chooses.

    Raises UsageError for a number that no version can have, RefusedError when the location has a version of this number
    already, or anything else in its directory's place, or when the layout is not clear; NotFoundError when the location
    is a file.
    """
    check_version(version)
    store = open_store(location)
    location, path = store.location, store.location.local_path
    if path is not None and is_there(path) and not is_directory(path):
        raise NotFoundError("not a directory", path=location.url)
    names = store.names("")
    beside = _layouts_among(store, names)
    chosen, warnings = choose_layout(location, beside, layout or chosen_layout(store, beside), empty=empty)
    directory = store.path(chosen.version_dir(version))
    if version in numbers_among(names) or (path is not None and is_there(directory)):
        raise RefusedError(f"version {version} exists there already", path=location.url, hint="nothing was changed")
    if chosen.prefix == ELASTICDL.prefix and any(map(is_uuid, names)):
        warnings = (*warnings, f"{location}: has directories named by UUIDs: next to them, ElasticDL's scan crashes")
    return Target(store, chosen, version, directory, None, beside, warnings)


def check_number(version: Version, number: int | None) -> None:
    """Raise UsageError where a version that is written in its own place would get another number."""
    if number is not None and number != version.number:
        raise UsageError(
            f"a version in its own place keeps its number, and does not become {number}",
            path=version.path,
            hint="write it to another location with an output",
        )


def check_outside(version: Version, output: Location, *, replaces: bool = False) -> None:
    """Raise RefusedError for an output in the directory of a version, or for one that replaces what has the version."""
    path = output.local_path
    if path is None or version.location.local_path is None:
        return
    here, there = os.path.realpath(path), os.path.realpath(version.path)
    if f"{here}/".startswith(f"{there}/") or (replaces and there.startswith(f"{here}/")):
        raise RefusedError("the version to read is there", path=output.url, hint="write to another location")


def choose_layout(
    location: Location, beside: Iterable[Layout], asked: str | None = None, *, empty: Layout = DESIGN
) -> tuple[Layout, tuple[str, ...]]:
    """Return the layout of a new version beside versions of these layouts, and warnings about it.

    It is the layout that is asked for, else the one that is there, else `empty`. Raises RefusedError when several are
    there and none is asked for, UsageError for a layout that cannot be written.
    """
    if systems := {layout.system for layout in beside} - {DESIGN.system}:
        raise RefusedError(
            f"has versions of {' and '.join(sorted(systems))}: next to them, ElasticDL's scan crashes",
            path=location.url,
            hint="write to another location",
        )
    there = sorted(set(beside), key=lambda layout: layout.name)
    if asked is not None:
        chosen = writable_layout(asked)
        others = " and ".join(layout.name for layout in there if layout != chosen)
        warning = (
            f"{location}: has versions in the {others} layout; with the {chosen.name} layout next to it,"
            " ElasticDL's scan for the latest version crashes there"
        )
        return chosen, (warning,) if others else ()
    if len(there) > 1:
        raise RefusedError(
            f"versions in several layouts are there: {', '.join(layout.name for layout in there)}",
            path=location.url,
            hint=f"choose one with reshard or import: {' or '.join(f'--layout {name}' for name in WRITABLE)}",
        )
    if there:
        return there[0], ()
    if empty.prefix == ELASTICDL.prefix:
        return empty, ()
    warning = (
        f"{location}: written in the {empty.name} layout: ElasticDL restores such a version by its directory, but its"
        " scan for the latest one fails here; the layout elasticdl serves both"
    )
    return empty, (warning,)


def chosen_layout(store: Store, beside: Iterable[Layout]) -> str | None:
    """Return the layout that was stored with a location, where no version decides it; None without a choice."""
    return None if any(beside) else read_layout(store)


def layouts_at(store: Store) -> frozenset[Layout]:
    """Return the layouts of the version directories at a location, whatever is in them, from a listing of names."""
    return _layouts_among(store, store.names(""))


def step_numbers(store: Store) -> frozenset[int]:
    """Return the numbers of the versions at a location that have files, however they are spelled."""
    entries = store.entries(Interest(store)) if store.names("") else []
    return frozenset(version.version for version in grouped(store, entries, math.inf).versions if version.files)


def _layouts_among(store: Store, names: Collection[str]) -> frozenset[Layout]:
    """Return the layouts of these names in a location; names that others use count only if they are versions."""
    layouts = set(layouts_among(names))
    for layout in [layout for layout in layouts if layout.needs_shards]:
        mine = (name for name in names if layout in layouts_among([name]))
        if not any(is_version_dir(name, store.names(name)) for name in mine):
            layouts.remove(layout)
    if any(named.layout.system != DESIGN.system for named in filter(None, map(version_named, names))):
        versions = grouped(store, store.entries(Interest(store)), math.inf).versions
        layouts |= {version.layout for version in versions if version.files and not version.has_only_shards}
    return frozenset(layouts)


def apart(layout: Layout, beside: Iterable[Layout]) -> frozenset[Layout]:
    """Return those of the layouts in a location beside which no version may have another one: ElasticDL's scan crashes.

    Versions of other systems may lie beside each other.
    """
    return frozenset(one for one in beside if one != layout and DESIGN.system in {one.system, layout.system})


def check_beside(store: Store, layout: Layout, beside: Iterable[Layout]) -> None:
    """Raise RefusedError if versions of another layout appeared at a location since `beside` was looked up.

    The caller holds the lock of the location, so the answer stays true.
    """
    appeared = apart(layout, layouts_at(store) - set(beside))
    if appeared:
        names = " and ".join(sorted(each.name for each in appeared))
        raise RefusedError(
            f"another command wrote versions in the {names} layout meanwhile; nothing was changed",
            path=store.location.url,
            hint="try again: the command then follows that layout",
        )


@dataclass(frozen=True, slots=True, eq=False)
class WritePlan:
    """All shards that will be written, and the offset of everything in them."""

    target: Target
    layouts: VersionLayout
    shards: tuple[ShardSummary, ...]
    warnings: tuple[str, ...]

    @property
    def ref(self) -> str:
        """Return the reference of the version that is written."""
        return f"{self.target.location}@{self.target.number}"

    @property
    def source_ref(self) -> str:
        """Return what is read: the reference of a version, or a file; '' for arrays in memory."""
        return ""

    @property
    def from_ps(self) -> int | None:
        """Return the number of parameter servers of a source that is a checkpoint."""
        return None

    @property
    def to_ps(self) -> int:
        """Return the number of parameter servers of the target."""
        return len(self.shards)

    @property
    def rows(self) -> int:
        """Return the rows of all tables."""
        return sum(shard.rows for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all shards."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def skew(self) -> float:
        """Return the size of the largest shard over the mean: 1.0 is balanced."""
        return max(shard.size_bytes for shard in self.shards) * self.to_ps / max(self.size_bytes, 1)


def lay_out(
    target: Target, number: int, variables: Sequence[PlacedVariable], tables: Sequence[CountedTable], to_ps: int
) -> tuple[VersionLayout, tuple[ShardSummary, ...], tuple[str, ...]]:
    """Return the layouts of shards that contain a version `number`, the shards of the target, and all warnings."""
    layouts = lay_out_shards(number, variables, tables, to_ps)
    sizes = layouts.size_bytes.tolist()
    rows = sum((table.rows for table in tables), np.zeros(to_ps, np.int64)).tolist()
    shards = tuple(
        ShardSummary(
            ps_id,
            os.path.join(target.directory, target.layout.shard_file(ps_id, to_ps)),
            size,
            variables_of,
            rows[ps_id],
        )
        for ps_id, (size, variables_of) in enumerate(zip(sizes, layouts.variables, strict=True))
    )
    dtypes = [*(variable.dtype for variable in variables), *(table.dtype for table in tables)]
    warnings = restore_warnings(sizes, len(variables), dtypes, [table.info for table in tables])
    return layouts, shards, (*target.warnings, *warnings)
