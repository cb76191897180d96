"""The plan of a copy: which versions go to a location, which are there already, and which are refused.

Planning reads listings and seals only. A version whose files are at the target, by what both seals say of their bytes,
or that was copied from these very files, is skipped. Another version under the same number is refused. So is a version
whose layout is not that of the versions at the target: a copy keeps names, and ElasticDL's scan crashes where layouts
are mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import base_name, command, counted, describe, escaped, size
from edl_ckpt.core.catalog.listing import VersionLike, as_version, list_versions
from edl_ckpt.core.catalog.target import apart
from edl_ckpt.core.catalog.uuids import has_no_number
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import Chunk, Listing, Seal, State, Version
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

    Raises UsageError when the target is the location of a version, NotFoundError when it is no directory.
    """
    where, given = Location.of(target), [as_version(version) for version in several(versions, "versions")]
    for version in given:
        if version.location.is_same_place(where):
            raise UsageError("a copy goes to another location", path=where.url)
    existing = _list_target(where).versions
    store = open_store(where)
    # An unreadable one may be complete: it fails, so that nobody takes the copy for a whole backup.
    wanted = [v for v in given if v.state in {State.COMPLETE, State.UNREADABLE} or len(given) == 1]
    warnings = [f"{v.ref}: {v.state}, so not copied" for v in given if v not in wanted]
    warnings += [f"{v.ref}: {v.damage}; it is copied as it is" for v in wanted if v.damage]
    entries: list[CopyEntry] = []
    beside = layouts_among([base_name(v.path) for v in existing if v.has_only_shards])
    beside |= {v.layout for v in existing if not v.has_only_shards}
    for version in wanted:
        there = [e for e in existing if e.key == version.key_of_copies]
        entry = _doubtful(version, where, there, force=force) or _entry(version, where, there, store, beside)
        entries.append(entry)
        if not entry.refused:
            beside |= layouts_of_copy(version)
    return CopyPlan(where, tuple(entries), tuple(warnings), force)


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
    wrong = next((v for v in (version, *existing[:1]) if (v.seal_fault or v.is_newer) and not v.fault), None)
    if wrong is None or force:
        return None
    where = "" if wrong is version else "is there, and "
    why = f"{where}{wrong.seal_warning or wrong.metadata_fault}"
    return CopyEntry(version, f"{target}@{version.key_of_copies}", refused=True, why=why, doubtful=wrong)


def _entry(
    version: Version, target: Location, existing: Sequence[Version], store: Store, beside: frozenset[Layout]
) -> CopyEntry:
    to = f"{target}@{version.key_of_copies}"
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
    if not existing:
        return _beside_others(version, to, beside)
    there = existing[0]
    if there.state is not State.COMPLETE or not there.fingerprint:
        return _unsealed_entry(version, to, there, store)
    seal = read_seal(store, there.key)
    if version.fingerprint and seal is not None and _has_files_of(there, seal, version, store):
        return CopyEntry(version, to, skipped=True, why="is there, sealed with the same files")
    if not version.fingerprint and seal is not None and seal.origin == version.files_digest:
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
    others = {other for layout in layouts_of_copy(version) for other in apart(layout, beside)}
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
