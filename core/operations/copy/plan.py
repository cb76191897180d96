"""The plan of a copy: which versions go to a location, which are there already, and which are refused.

Planning reads listings and seals only. A version whose files are at the target, by what both seals say of their bytes,
or that was copied from these very files, is skipped. Another version under the same number is refused. So is a version
whose layout is not that of the versions at the target: a copy keeps names, and ElasticDL's scan crashes where layouts
are mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import base_name, command, counted, describe, escaped, size
from edl_ckpt.core.catalog.listing import VersionLike, as_version, list_versions
from edl_ckpt.core.catalog.target import apart
from edl_ckpt.core.catalog.uuids import has_no_number
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.seals import Chunk, Seal
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.proof.sealing import sums_of
from edl_ckpt.core.sources.elasticdl.target import copied_layouts
from edl_ckpt.core.sources.registry import layouts_among
from edl_ckpt.core.state.paths import JOURNAL, resumable_stage
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import Location, LocationLike, Store, open_store
from edl_ckpt.core.storage.inside import is_inside
from edl_ckpt.core.storage.local import is_there
from edl_ckpt.core.storage.user_files import is_directory


@dataclass(frozen=True, slots=True)
class CopyEntry:
    """A version in a plan; `why` says why it is skipped or refused, '' where it is copied."""

    version: Version
    to: str
    skipped: bool = False
    refused: bool = False
    why: str = ""
    hint: str = "nothing was changed"
    beside: frozenset[Layout] = frozenset()
    """The layouts of the versions at the target, and of those that are copied before."""
    there: Version | None = None
    """An unsealed version at the target with the same names and sizes: sealed if its bytes are equal, else refused."""
    doubtful: Version | None = None
    """A refused version whose seal is damaged or does not match: the source, or the version at the target."""

    @property
    def verb(self) -> str:
        """Return what the copy does with the version: skip, refuse or copy."""
        if self.skipped:
            return "skip"
        return "refuse" if self.refused else "copy"


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy to a location does with each version."""

    target: Location
    entries: tuple[CopyEntry, ...]
    warnings: tuple[str, ...] = ()
    force: bool = False
    """True to copy versions that do not match their seals; the seal of the copy records it."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes to be copied."""
        return sum(e.version.size_bytes for e in self.entries if not (e.skipped or e.refused))

    def __repr__(self) -> str:
        return describe(
            "CopyPlan", f"to {escaped(self.target.url)}", counted(len(self.entries), "version"), size(self.size_bytes)
        )

    def _repr_html_(self) -> str:
        rows = ((e.version.ref, e.verb, Bytes(e.version.size_bytes), e.why) for e in self.entries)
        tables = [table(("version", "action", "size", "why"), rows, len(self.entries), "version")]
        return card("CopyPlan", self.target.url, (counted(len(self.entries), "version"), size(self.size_bytes)), tables)


def plan_copy(versions: Sequence[VersionLike], target: LocationLike, *, force: bool = False) -> CopyPlan:
    """Return what copying versions to a location does; of several versions only the complete ones are copied.

    An unreadable version is in the plan, and fails when the plan is executed. So does a version with a seal that is
    damaged or does not match, at the source or at the target, unless `force` is set.

    Raises UsageError when the target is the location of a version, NotFoundError when it is not a directory.
    """
    where = Location.of(target)
    given = [as_version(version) for version in several(versions, "versions")]
    for version in given:
        if version.location.is_same_place(where):
            raise UsageError("a copy goes to another location", path=where.url)
    existing = _list_target(where).versions
    store = open_store(where)
    # An unreadable one may be complete: it fails, so that nobody takes the copy for a whole backup.
    is_wanted = {State.COMPLETE, State.UNREADABLE}
    wanted = [version for version in given if version.state in is_wanted or len(given) == 1]
    warnings = [f"{version.ref}: {version.state}, so not copied" for version in given if version not in wanted]
    warnings += [f"{version.ref}: {version.damage}; it is copied as it is" for version in wanted if version.damage]
    entries: list[CopyEntry] = []
    beside = _layouts_at(existing)
    for version in wanted:
        there = [other for other in existing if other.key == version.key_of_copies]
        entry = _doubtful(version, where, there, force=force) or _entry(version, where, there, store, beside)
        entries.append(entry)
        if not entry.refused:
            beside |= layouts_of_copy(version)
    return CopyPlan(where, tuple(entries), tuple(warnings), force)


def _layouts_at(existing: Iterable[Version]) -> frozenset[Layout]:
    """Return the layouts that a location has: where there are only shards, all that their names may be of."""
    names: list[str] = []
    layouts: set[Layout] = set()
    for version in existing:
        if version.has_only_shards:
            names.append(base_name(version.path))
        else:
            layouts.add(version.layout)
    return layouts_among(names) | layouts


def layouts_of_copy(version: Version) -> frozenset[Layout]:
    """Return the layout that a copy of a version has; none for a version that cannot be copied."""
    if not version.has_only_shards:
        return frozenset([version.layout])
    return copied_layouts(base_name(version.path), version.layout)


def _list_target(where: Location) -> Listing:
    """List what is at the target; nothing where there is no such location yet.

    Another command may make the location after it was found missing: then there is one to list.
    """
    try:
        return list_versions(where)
    except NotFoundError:
        path = where.local_path
        if path is None or not is_there(path):
            return Listing(where, ())
    if not is_directory(path):
        raise NotFoundError("not a directory", path=where.url)
    return list_versions(where)


def _doubtful(version: Version, target: Location, existing: Sequence[Version], *, force: bool) -> CopyEntry | None:
    """Return the refusal of a version whose seal, or whose twin's seal at the target, does not match its files."""
    if force:
        return None
    for copy in (version, *existing[:1]):
        if (copy.seal_fault or copy.is_newer) and not copy.fault:
            where = "" if copy is version else "is there, and "
            why = f"{where}{copy.seal_warning or copy.metadata_fault}"
            return CopyEntry(version, f"{target}@{version.key_of_copies}", refused=True, why=why, doubtful=copy)
    return None


def _entry(
    version: Version, target: Location, existing: Sequence[Version], store: Store, beside: frozenset[Layout]
) -> CopyEntry:
    to = f"{target}@{version.key_of_copies}"
    refusal = _refusal(version, target, to)
    if refusal is not None:
        return refusal
    if not existing:
        return _beside_others(version, to, beside)
    there = existing[0]
    if there.state is not State.COMPLETE or not there.fingerprint:
        return _unsealed_entry(version, to, there, store)
    return _sealed_entry(version, to, there, store)


def _refusal(version: Version, target: Location, to: str) -> CopyEntry | None:
    """Return the entry of a version that can be copied nowhere, by what it is; None for any other."""
    if version.fault:
        return CopyEntry(version, to, refused=True, why=version.why_unreadable)
    if version.uuid and version.number is None:
        error = has_no_number(version, target)
        return CopyEntry(version, version.ref, refused=True, why=error.message, hint=error.hint or "")
    if version.is_alone or (version.is_file and version.has_only_shards):
        what = "one file without shards" if version.has_only_shards else "a checkpoint by itself, in no location,"
        return CopyEntry(version, to, refused=True, why=f"{what} cannot be copied", hint=_instead(version, target))
    if unsafe := [name for name in version.sizes if not is_inside(name)]:
        return CopyEntry(version, to, refused=True, why=f"no file can have the name {unsafe[0]!r} in a copy")
    return None


def _sealed_entry(version: Version, to: str, there: Version, store: Store) -> CopyEntry:
    """Return the entry of a version that is at the target, complete and sealed."""
    seal = read_seal(store, there.key)
    if seal is not None:
        if version.fingerprint and _has_files_of(there, seal, version, store):
            return CopyEntry(version, to, skipped=True, why="is there, sealed with the same files")
        if not version.fingerprint and seal.origin == version.files_digest:
            return CopyEntry(version, to, skipped=True, why="was copied from these very files")
    same = "the same content in other files" if version.fingerprint == there.fingerprint else "other content"
    return CopyEntry(version, to, refused=True, why=f"exists there already with {same}")


def _has_files_of(there: Version, seal: Seal, version: Version, store: Store) -> bool:
    """Say whether a version has the files of another one, by what both seals say of their bytes.

    Where they cut a file in different chunks, the file that is there is read.
    """
    own = read_seal(open_store(version.location), version.key)
    if own is None or own.sizes != seal.sizes:
        return False
    sums = {shard.name: list(shard.chunks) for shard in seal.shards}
    for shard in own.shards:
        wanted, found = list(shard.chunks), sums[shard.name]
        if _bounds(wanted) != _bounds(found):
            with store.open(there.path_of(shard.name)) as reader:
                found = sums_of(reader, wanted)
        if [chunk.sum for chunk in wanted] != [chunk.sum for chunk in found]:
            return False
    return True


def _bounds(chunks: Sequence[Chunk]) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in chunks]


def _beside_others(version: Version, to: str, beside: frozenset[Layout]) -> CopyEntry:
    """Return the entry of a version that is not at the target: refused beside versions that it must not lie beside."""
    others: set[Layout] = set()
    for layout in layouts_of_copy(version):
        others.update(apart(layout, beside))
    if not others:
        return CopyEntry(version, to, beside=beside)
    names = " and ".join(sorted({layout.name for layout in others}))
    why = f"a copy keeps its {version.layout.name} layout, and the location has versions in the {names} layout"
    if {layout.system for layout in others} != {version.layout.system}:
        why += ": ElasticDL's scan crashes on the names of other systems"
    return CopyEntry(version, to, refused=True, why=why, hint=_instead(version, to.rpartition("@")[0]))


def _instead(version: Version, target: Location | str) -> str:
    """Return the command that writes a version that cannot be copied."""
    return "try: " + command("reshard", version.ref, "--ranks", str(version.ps_num), "--output", str(target))


def _unsealed_entry(version: Version, to: str, there: Version, store: Store) -> CopyEntry:
    """Return the entry of a version that is at the target, unsealed or only in part."""
    if store.read_small(f"{resumable_stage(version.key_of_copies)}/{JOURNAL}") is not None:
        return CopyEntry(version, to)
    if there.state is not State.COMPLETE:
        return CopyEntry(version, to, refused=True, why=f"exists there already, and is {there.state} there")
    if there.sizes == version.sizes:
        return CopyEntry(version, to, why="is there, not sealed: will be compared", there=there)
    return CopyEntry(version, to, refused=True, why="exists there already, and is not sealed there")
