"""The sources: a literal table of those that are built in, and those of other packages for what none of them claims.

Other packages register theirs under the entry points `edl_ckpt.sources`. To search for them takes 50 ms, so a location
without a version is the only reason.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.model.layouts import Layout, ShardName, VersionName
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.elasticdl import source as elasticdl
from edl_ckpt.core.sources.interface import FileSource, FlatListing, ReadSmall, Source
from edl_ckpt.core.sources.steps import names
from edl_ckpt.core.sources.steps import source as steps

ALONE: Final[FileSource] = elasticdl
"""The source of checkpoints in files by themselves."""
BUILT_IN: Final[tuple[Source, ...]] = (ALONE, steps)
alone, may_be_file, completes = steps.alone, steps.may_be_file, steps.completes
is_within_step, has_format, is_part, is_whole = names.is_within_step, names.has_format, names.is_part, names.is_whole
is_sign = names.is_sign
ABOUT: Final = (elasticdl.about, *steps.about)
"""What each built-in system says of itself."""
GROUP: Final = "edl_ckpt.sources"


@functools.cache
def others() -> tuple[Source, ...]:
    """Return the sources of other packages."""
    from importlib.metadata import entry_points  # most locations have a version

    return tuple(entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))


def chosen(system: str) -> tuple[Source, ...]:
    """Return the built-in sources that have a system, all of them for ''; UsageError for one that nobody has."""
    sources = tuple(source for source in BUILT_IN if system in {"", *source.systems})
    known = dict.fromkeys(name for source in (*BUILT_IN, *(() if sources else others())) for name in source.systems)
    if not sources and system not in known:
        raise UsageError(f"no system {system!r}", hint=meant(system, known, "systems"))
    return sources


def source_of(version: Version) -> Source:
    """Return the source of a version; UnsupportedError when its package is not installed."""
    for source in BUILT_IN:
        if version.layout.system in source.systems:
            return source
    for source in others():
        if version.layout.system in source.systems:
            return source
    raise UnsupportedError(f"no source {version.layout.system!r} is installed", path=version.path)


def claimed(listing: FlatListing, read_small: ReadSmall, sources: Iterable[Source] = BUILT_IN) -> list[Version]:
    """Return the versions that sources claim, by number; where two claim the same entry, the first one has it.

    Those without a number come first, by time. Beside versions of ElasticDL, what has no number is something else: an
    export, or another job's.
    """
    versions: dict[str, Version] = {}
    for source in sources:
        for version in source.claims(listing, read_small):
            versions.setdefault(version.path, version)
    is_elasticdl = any(version.is_elasticdl for version in versions.values())
    shown = [v for v in versions.values() if v.is_elasticdl or not is_elasticdl or v.number is not None]
    return sorted(shown, key=order)


def order(version: Version) -> tuple[int, float, str]:
    """Return a key that sorts versions: by number, and those without one by time."""
    return version.version, version.modified if version.number is None else 0.0, version.path


def looked_into(directory: str, sources: Iterable[Source] = BUILT_IN) -> bool:
    """Say whether a source wants the entries of a directory of a location."""
    return any(source.looks_into(directory) for source in sources)


def is_step_name(name: str) -> bool:
    """Say whether the name of a directory alone is reason enough to look into it; a bare number may be anything.

    >>> is_step_name("step_3"), is_step_name("version-3"), is_step_name("3"), is_step_name("final")
    (True, True, False, False)
    """
    return not name.isdigit() and looked_into(name)


def version_named(name: str) -> VersionName | None:
    """Return what the name of an entry of a location says of a version; None for a name of another kind.

    >>> version_named("version-30").number, version_named("notes.txt")
    (30, None)
    """
    return next(filter(None, (source.version_named(name) for source in BUILT_IN)), None)


def directory_named(name: str) -> int | None:
    """Return the number in the name of a version's directory; None for a name of another kind."""
    named = version_named(name)
    return None if named is None or named.is_file else named.number


def is_own_name(name: str) -> bool:
    """Say whether a name is that of a version's directory and of nothing else, so that nobody has to look into it.

    >>> is_own_name("version-3"), is_own_name("step_3"), is_own_name("3")
    (True, False, False)
    """
    named = version_named(name)
    return named is not None and not named.is_file and (named.layout.is_numbered or not named.layout.needs_shards)


def number_named(name: str) -> int | None:
    """Return the number in the name of a version's directory or file; None for a name of another kind."""
    named = version_named(name)
    return named and named.number


def is_uuid(name: str) -> bool:
    """Say whether a name is a UUID, as versions without a number have it."""
    named = version_named(name)
    return named is not None and named.number is None


def shard_named(name: str) -> ShardName | None:
    """Return what the name of a file says of a shard; None for a name of another kind."""
    return next(filter(None, (source.shard_named(name) for source in BUILT_IN)), None)


def is_version_dir(name: str, inside: Iterable[str]) -> bool:
    """Say whether a directory with these entries is a version."""
    named = version_named(name)
    if named is None or named.is_file:
        return False
    return not named.layout.needs_shards or any(map(shard_named, inside))


def version_names(number: int) -> list[str]:
    """Return every name that a version of a number can have in a location.

    >>> version_names(3)
    ['version_3', 'version-3', 'model_v3', 'model_v3.chkpt']
    """
    return [name for source in BUILT_IN for name in source.version_names(number)]


def layouts_among(names: Iterable[str]) -> frozenset[Layout]:
    """Return the layouts of the version directories among names, each as a new version next to it is written.

    >>> sorted(layout.name for layout in layouts_among(["version-1", "version_2", "model_v3.chkpt", "tmp-4"]))
    ['design', 'elasticdl']
    """
    named = filter(None, map(version_named, names))
    return frozenset(name.layout for name in named if name.layout.is_numbered)
