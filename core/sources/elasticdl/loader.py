"""What ElasticDL's own loader does with a location: its scan for the latest version takes every name for a version.

Source: ElasticDL evaluates `int(name.split("-")[-1])` for every entry of checkpoint_dir, and again in a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.determined.record import is_uuid
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL, parse_single_file, parse_version_dir


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


def scan_crashes(names: Iterable[str], inside: Callable[[str], Collection[str] | None] = lambda _: ()) -> list[str]:
    """Return the names in a checkpoint_dir on which ElasticDL's scan for the latest version raises an exception.

    A location wholly in a layout that ElasticDL never reads is not meant for its scan: its versions do not count.
    `inside` returns the names in an entry, None for a file. The scan takes the number of shards from the name that the
    listing of a directory has first, so another file there, as DIRECTORY/NAME, ends it for the whole location.

    >>> scan_crashes(["version_1", "version_2"]), scan_crashes(["version_1", "version-2", "notes.txt"])
    ([], ['notes.txt', 'version_1'])
    >>> scan_crashes(["version-1"], lambda _: ["variables-0-of-1.ckpt", "notes.txt"])
    ['version-1/notes.txt']
    """
    every = sorted(names)
    crashing = [name for name in every if elasticdl_version(name) is None]
    if not any((parse_version_dir(name) or ("",))[0] == ELASTICDL.prefix for name in every):
        every = [name for name in every if not is_uuid(name)]
        crashing = [
            name
            for name in crashing
            if parse_version_dir(name) is None and parse_single_file(name) is None and not is_uuid(name)
        ]
    return crashing + list(_crashes_inside(every, inside))


def _crashes_inside(names: Iterable[str], inside: Callable[[str], Collection[str] | None]) -> Iterator[str]:
    """Yield what the scan may crash on below a location: it goes down from the highest number to a whole version."""
    numbers = ((elasticdl_version(name), name) for name in names)
    for _, name in sorted(((number, name) for number, name in numbers if number is not None), reverse=True):
        entries = inside(name)
        counts = {entry: elasticdl_version(entry.partition(".")[0]) for entry in entries or ()}
        yield from [name] if entries is None else [f"{name}/{each}" for each in sorted(counts) if counts[each] is None]
        if set(counts.values()) == {len(counts)}:
            return


def takes_for_whole(version: Version) -> bool:
    """Say whether ElasticDL's scan may take a version for whole that is not, and restore a part of it.

    The scan compares how many entries the directory has with the number in the name of the entry that is listed first.

    Source: ElasticDL's `check_checkpoint_valid`, `int(name.split(".")[0].split("-")[-1]) == len(os.listdir(path))`.
    """
    if not version.is_elasticdl or version.is_file or version.uuid or version.state is State.COMPLETE:
        return False
    names = version.names_inside
    return any(elasticdl_version(name.partition(".")[0]) == len(names) for name in names)


def listed_crashes(listing: Listing) -> list[str]:
    """Return the names on which ElasticDL's scan for the latest version raises an exception, and DIRECTORY/NAME.

    Of directories that are no versions, what is in them is not known. A location of other systems is not for ElasticDL.
    """
    if listing.versions and not any(version.is_elasticdl for version in listing.versions):
        return []
    inside = {e.name: () for e in listing.foreign if not e.is_file} | names_listed(listing)
    return scan_crashes(inside, inside.__getitem__)


def names_listed(listing: Listing) -> dict[str, Sequence[str] | None]:
    """Return the names in each version of a listing, by the name of its directory; None for a file."""
    inside: dict[str, Sequence[str] | None] = {e.name: None for e in listing.foreign if e.is_file}
    for version in listing.versions:
        for name in version.names_outside:
            inside[name] = None if version.is_file else version.names_inside
    return inside


def mistaken(listing: Listing) -> list[tuple[str, int]]:
    """Return the names that ElasticDL's scan takes for versions, and edl-ckpt does not, with their numbers.

    UUIDs count next to versions that ElasticDL reads: some end in digits alone.
    """
    numbers = [(entry.name, entry.elasticdl_version) for entry in listing.foreign]
    if any(version.layout.prefix == ELASTICDL.prefix for version in listing.versions):
        numbers += [(version.uuid, elasticdl_version(version.uuid)) for version in listing.versions if version.uuid]
    return [(name, number) for name, number in numbers if number is not None]


def mistaken_for_newer(listing: Listing, version: Version) -> list[tuple[str, int]]:
    """Return what ElasticDL takes for versions newer than one that it reads, as `mistaken`; nothing for another one."""
    if version.layout.prefix != ELASTICDL.prefix:
        return []
    return [(name, number) for name, number in mistaken(listing) if number > version.version]
