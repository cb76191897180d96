"""Names of version directories and shard files, both ways, for every layout that real checkpoints have.

A layout is one spelling of versions on storage (`proto/README.md`, section Names). A version that was read is written
back in its own layout; a new version gets the layout that is at its location (`checkpoint/target.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.words import meant


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spell versions: its name, what stands before the number of a version, the suffix of shard files."""

    name: str
    prefix: str
    suffix: str

    def version_dir(self, version: int) -> str:
        """Return the directory name of a version.

        >>> ELASTICDL.version_dir(30)
        'version-30'
        """
        return f"{self.prefix}{version}"

    def shard_file(self, ps_id: int, ps_num: int) -> str:
        """Return the file name of a shard.

        >>> DESIGN.shard_file(0, 2)
        'variables-0-of-2.chkpt'
        """
        return f"variables-{ps_id}-of-{ps_num}{self.suffix}"


DESIGN = Layout("design", "version_", ".chkpt")
ELASTICDL = Layout("elasticdl", "version-", ".ckpt")
ELASTICDL_2019 = Layout("elasticdl-2019", "version-", ".chkpt")
MODEL_V = Layout("model_v", "model_v", ".chkpt")
"""The design document spells directories like this too, where it describes the removal of versions."""
SINGLE_FILE = Layout("single-file", "", ".chkpt")
"""Before sharding: `{checkpoint_dir}/model_v{version}.chkpt`. Read, never written."""
FREE_FILE = Layout("file", "", "")
"""A checkpoint in one file under any name, which belongs to no location. Read, never written."""
UUID_LAYOUTS = {suffix: Layout("uuid", "", suffix) for suffix in (".chkpt", ".ckpt")}
"""Determined's: a directory named by a UUID, and in it the shards of any of the other layouts. Read, never written."""
UUID_METADATA = "metadata.json"
"""In a directory named by a UUID: what Determined records with a checkpoint."""
WRITABLE = {layout.name: layout for layout in (DESIGN, ELASTICDL)}
_NUMBER = r"(0|[1-9][0-9]{0,17})"
_VERSION_DIR = re.compile(rf"(version[-_]|model_v){_NUMBER}", re.ASCII)
_SHARD_FILE = re.compile(rf"variables-{_NUMBER}-of-{_NUMBER}(\.ckpt|\.chkpt)", re.ASCII)
_SINGLE_FILE = re.compile(rf"model_v{_NUMBER}\.chkpt", re.ASCII)
_VERSION_LINE = re.compile(rf"^(?:(?:version[-_]|model_v){_NUMBER}|model_v{_NUMBER}\.chkpt)$", re.ASCII | re.MULTILINE)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_NUMBER_IN_NAME = re.compile(rf".*[_-]v{_NUMBER}(\.[a-z]+)?", re.ASCII | re.DOTALL)


def parse_version_dir(name: str) -> tuple[str, int] | None:
    """Return (prefix, version) of a version directory's name, or None for any other name.

    >>> parse_version_dir("version-30"), parse_version_dir("version-030"), parse_version_dir("tmp-30")
    (('version-', 30), None, None)
    """
    match = _VERSION_DIR.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def is_uuid(name: str) -> bool:
    """Say whether a name is a UUID as Determined names its checkpoints: in lower case, with four hyphens.

    >>> is_uuid("4f8a0d1e-07b5-4bd5-8f1c-6f3c2a9be001"), is_uuid("4f8a0d1e"), is_uuid("version-30")
    (True, False, False)
    """
    return len(name) == 36 and _UUID.fullmatch(name) is not None


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


def layout_of(prefix: str, suffix: str) -> Layout | None:
    """Return the layout with this prefix of directories and suffix of shards, or None when nobody wrote it."""
    for layout in (DESIGN, ELASTICDL, ELASTICDL_2019, MODEL_V):
        if (layout.prefix, layout.suffix) == (prefix, suffix):
            return layout
    return None


def directory_layout(prefix: str) -> Layout:
    """Return the layout in which new versions beside a directory with this prefix are written.

    >>> directory_layout("version-").name
    'elasticdl'
    """
    return next(layout for layout in (DESIGN, ELASTICDL, MODEL_V) if layout.prefix == prefix)


def version_names(version: int) -> list[str]:
    """Return every name that a version has in one layout or another.

    >>> version_names(3)
    ['version_3', 'version-3', 'model_v3', 'model_v3.chkpt']
    """
    directories = [layout.version_dir(version) for layout in (DESIGN, ELASTICDL, MODEL_V)]
    return [*directories, f"{MODEL_V.prefix}{version}{SINGLE_FILE.suffix}"]


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


def copied_layouts(name: str, layout: Layout) -> frozenset[Layout]:
    """Return the layout that a copy of a version has, as a new version beside it is written; none for one file.

    `name` is that of the version's directory. A directory named by a UUID becomes the one in which its shards keep
    their names.

    >>> [each.name for each in copied_layouts("4f8a0d1e-07b5-4bd5-8f1c-6f3c2a9be001", UUID_LAYOUTS[".ckpt"])]
    ['elasticdl']
    """
    if layout.name == "uuid":
        return frozenset([ELASTICDL if layout.suffix == ELASTICDL.suffix else DESIGN])
    return layouts_among([name])


def layouts_among(names: Iterable[str]) -> frozenset[Layout]:
    """Return the layouts of the version directories among names, each as a new version beside it is written.

    >>> sorted(layout.name for layout in layouts_among(["version-1", "version_2", "model_v3.chkpt", "tmp-4"]))
    ['design', 'elasticdl']
    """
    return frozenset(directory_layout(parsed[0]) for parsed in map(parse_version_dir, names) if parsed)


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


def writable_layout(name: str) -> Layout:
    """Return the layout with this name; UsageError for a name that `--layout` does not accept."""
    if name not in WRITABLE:
        raise UsageError(f"unknown layout {name!r}; expected {' or '.join(WRITABLE)}", hint=meant(name, WRITABLE))
    return WRITABLE[name]
