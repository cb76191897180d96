"""Notes on shards: what a server knows of the shard that it saved, until the version is sealed.

Each server saves its own shard, and none of them reads the shards of the others. So each writes a note below
`.edl-ckpt-0/shards-0/{version}/` before its shard becomes visible: the name of the run, the checksums of the shard's
chunks, and its part of the sums behind the fingerprint. The last server combines the notes into the seal of the
version, and removes them. The name of a note identifies the file that it is about: on a disk by inode, size and time,
on object storage by the write id. So a note that was written for a file that never became visible, or that was
replaced, fits nothing. A digest covers every byte of a note: what goes into a seal is what the server wrote.

The notes also tell which run each shard is from. A restarted job that reaches a version again replaces one shard after
the other. Until the last one is replaced, the version has all its files and yet is a mixture. A version with a seal has
one run: the servers seal no mixture, and take the seal away before the first shard is replaced. Servers may have no
name for their run. The note of such a server then names the notes that were there before its saver was made. A shard
with one of those is of an earlier run, whatever the clocks of the machines say.

A caller that removes notes holds the lock of the location.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError, UnsupportedError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import abridged, base_name
from edl_ckpt.core.model.seals import Chunk, Seal
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.sources.registry import number_named
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, is_newer, parse_document, schema_at_head
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.metadata import sealed_versions
from edl_ckpt.core.state.paths import META_DIR, NOTES_DIR, noted_version, notes_dir, seal_file
from edl_ckpt.core.state.seal import number_chunks, parse_seal
from edl_ckpt.core.storage import Store, open_store
from edl_ckpt.core.storage.beneath import ForeignError

NOTE_SCHEMA: Final = "edl-ckpt/shard/2"
_WITHOUT_DIGEST: Final = "edl-ckpt/shard/1"
"""The sums in such a note are never used: a changed bit would give the version a wrong fingerprint."""
EARLIER: Final = "earlier.json"
"""Among the notes: the seal that a version had until a shard of it was replaced."""
MAX_NOTE_BYTES: Final = MAX_SUMS_BYTES // 2
"""A note with larger sums is written without them; then the version is not sealed by its servers."""
_ENDING_BYTES: Final = len(', "digest": "') + 32 + len('"}\n')
_NAME = LatePattern(r"(0|[1-9][0-9]{0,17})-of-([1-9][0-9]{0,17})\.([0-9a-f]{16})\.([A-Za-z0-9_-]+)\.json", re.ASCII)


class NoteName(NamedTuple):
    """The name of a note: the shard, a digest of its run, and the mark of the file that it is about."""

    ps_id: int
    ps_num: int
    run: str
    mark: str

    def __str__(self) -> str:
        return f"{self.ps_id}-of-{self.ps_num}.{self.run}.{self.mark}.json"


@dataclass(frozen=True, slots=True)
class ShardNote:
    """What a server knows of a shard that it saved: its run, its chunks, and its sums for the fingerprint.

    `variables` and `tables` have the sketch of each, uint32 [8, columns] in C order, little-endian. Both and `chunks`
    are empty in a note without sums.
    """

    run: str
    chunks: tuple[Chunk, ...] = ()
    variables: Mapping[str, memoryview] = field(default_factory=dict)
    tables: Mapping[str, memoryview] = field(default_factory=dict)
    has_sums: bool = True
    older: tuple[str, ...] = ()
    """Of a run without a name: the notes on shards of the version that were there when the saver was made."""


def run_digest(run: str, older: Iterable[str] = ()) -> str:
    """Return the digest of a run's name, and of the notes that are older than it, that the names of its notes contain.

    >>> run_digest("")
    'e4a6a0577479b2b4'
    """
    import hashlib  # few versions have notes

    return hashlib.blake2b(name_bytes("\0".join([run, *older])), digest_size=8).hexdigest()


def parse_note_name(name: str) -> NoteName | None:
    """Return what the name of a note says, None for any other name.

    >>> parse_note_name(str(NoteName(1, 4, run_digest(""), "7_10_ff"))).mark
    '7_10_ff'
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return NoteName(int(match[1]), int(match[2]), match[3], match[4])


def note_names(store: Store, version: int) -> list[NoteName]:
    """Return the names of the notes on the shards of a version; none where something else has their place."""
    with suppress(ForeignError):
        return [note for note in map(parse_note_name, store.names(notes_dir(version))) if note]
    return []


def has_newer_note(store: Store, version: int) -> bool:
    """Say whether a newer edl-ckpt wrote a note on a shard of a version."""
    notes = (store.read_small(f"{notes_dir(version)}/{name}") for name in note_names(store, version))
    return any(is_newer(schema_at_head(note)) for note in notes)


def note_bytes(note: ShardNote) -> bytes:
    """Return a note as its file contains it: a line of JSON, then the sums one after the other, as they are.

    `read_note` is the inverse. A note with too large sums loses them.
    """
    document: dict[str, Any] = {"schema": NOTE_SCHEMA, "run": note.run}
    if note.older:
        document["older"] = note.older
    sums = [*note.variables.values(), *note.tables.values()] if note.has_sums else []
    if note.has_sums:
        document["chunks"] = [[c.kind, c.name, c.start, c.end, c.sum] for c in note.chunks]
        document["variables"] = {name: len(data) for name, data in note.variables.items()}
        document["tables"] = {name: len(data) for name, data in note.tables.items()}
    head = json.dumps(document).encode("ascii")[:-1]
    if note.has_sums and len(head) + sum(map(len, sums)) > MAX_NOTE_BYTES:
        return note_bytes(ShardNote(note.run, has_sums=False, older=note.older))
    return b"".join([head, _ending(head, sums), *sums])


def _ending(head: bytes, sums: Iterable[bytes | memoryview]) -> bytes:
    """Return the end of a note's line, with the digest of what comes before it and of the sums that follow."""
    import xxhash

    digest = xxhash.xxh3_128(head)
    for data in sums:
        digest.update(data)
    return f', "digest": "{digest.hexdigest()}"}}\n'.encode("ascii")


def read_note(store: Store, version: int, name: NoteName) -> ShardNote | None:
    """Return a note, None when it is gone; CorruptError when it is damaged, UnsupportedError when it is newer."""
    relative = f"{notes_dir(version)}/{name}"
    data = store.read_small(relative)
    if data is None:
        return None
    path = f"{store.location}/{relative}"
    end = data.find(b"\n") + 1
    try:
        return _parsed(data[:end], memoryview(data)[end:], path, name)
    except UnsupportedError:
        raise
    except EdlCkptError as error:
        raise CorruptError(f"damaged note: {error.message}", path=path) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptError(f"damaged note: {error}", path=path) from None


def _parsed(head: bytes, sums: memoryview, path: str, name: NoteName) -> ShardNote:
    document = parse_document(head, path, limit=MAX_SUMS_BYTES)
    schema = document["schema"]
    run = str(document["run"])
    older = tuple(map(str, document.get("older", ())))
    if schema not in {NOTE_SCHEMA, _WITHOUT_DIGEST} or run_digest(run, older) != name.run:
        raise ValueError(f"not {NOTE_SCHEMA}, or of another run than its name says")
    if schema == NOTE_SCHEMA and not head.endswith(_ending(head[:-_ENDING_BYTES], [sums])):
        raise ValueError("its digest does not fit")
    if "chunks" not in document or schema == _WITHOUT_DIGEST:
        return ShardNote(run, has_sums=False, older=older)
    at, found = 0, list[dict[str, memoryview]]()
    for sizes in (document["variables"], document["tables"]):
        found.append({})
        for key, size in sizes.items():
            found[-1][str(key)] = sums[at : at + int(size)]
            at += int(size)
    if at != len(sums):
        raise ValueError(f"it has {len(sums)} bytes of sums, and names {at}")
    return ShardNote(run, tuple(number_chunks(document["chunks"])), found[0], found[1], older=older)


def named_shards(shards: Sequence[int], ps_num: int) -> str:
    """Return some shards in words.

    >>> named_shards([0], 4), named_shards([1, 2, 3], 4)
    ('shard 0 of 4', 'shards 1, 2, 3 of 4')
    """
    return f"shard{'' if len(shards) == 1 else 's'} {abridged(shards, 8)} of {ps_num}"


_YOUNG_SECONDS: Final = 600.0
"""A note is there before its shard: without a shard it is left over when it is older than this."""


def remove_notes(store: Store, version: int) -> None:
    """Remove all notes on the shards of a version."""
    for name in store.names(notes_dir(version)):
        prove_lock(store.location)
        store.remove(f"{notes_dir(version)}/{name}")


def forget_notes(store: Store, gone: Iterable[int]) -> list[EdlCkptError]:
    """Remove the notes on versions that the caller has just deleted or replaced; return the errors."""
    try:
        for number in {*gone} & {*noted_versions(store)}:
            remove_notes(store, number)
    except EdlCkptError as error:
        return [error]
    return []


def sweep_notes(store: Store) -> list[str]:
    """Remove the notes on versions that are sealed or gone; return what was done, in words."""
    done: list[str] = []
    numbers = noted_versions(store)
    if not numbers:
        return []
    sealed, present = sealed_versions(store.names(META_DIR)), set(map(number_named, store.names("")))
    for number in numbers:
        ages = {} if number in sealed or number in present else store.ages(notes_dir(number))
        if number in sealed or min(ages.values(), default=0.0) > _YOUNG_SECONDS:
            with suppress(EdlCkptError):
                if not has_newer_note(store, number):
                    remove_notes(store, number)
                    done.append(f"removed the notes on the shards of version {number}")
    return done


def noted_versions(store: Store) -> list[int]:
    """Return the versions that there are notes on."""
    return sorted(number for number in map(noted_version, store.names(NOTES_DIR)) if number is not None)


def note_names_now(store: Store) -> dict[int, tuple[str, ...]]:
    """Return the names of all notes at a location, by version."""
    return {number: tuple(sorted(map(str, note_names(store, number)))) for number in noted_versions(store)}


class NotedShards(NamedTuple):
    """The notes that fit the shards of a version, by ps_id, and the seal that it had before a shard was replaced."""

    notes: Mapping[int, NoteName]
    unknown: tuple[int, ...]
    """The shards that no note fits."""
    earlier: Seal | None = None

    @property
    def runs(self) -> set[str]:
        """Return the digests of the runs that the notes name."""
        return {note.run for note in self.notes.values()}


def find_notes(store: Store, version: Version) -> NotedShards:
    """Return the notes that fit the files of a version now; one look at each file, and none without notes."""
    names = note_names(store, version.version)
    marks = _marks(store, version) if names else {}
    fitting = {
        note.ps_id: note for note in names if note.ps_num == version.ps_num and marks.get(note.ps_id) == note.mark
    }
    unknown = tuple(shard.ps_id for shard in version.shards if shard.ps_id not in fitting)
    return NotedShards(fitting, unknown, _earlier_seal(store, version.version) if fitting and unknown else None)


def mixed_runs(version: Version) -> str:
    """Return why a version is no checkpoint of one run, in words; '' when its shards agree, as far as is known.

    Makes one listing, and looks at the shards only where servers left notes. A version that was sealed, or that other
    programs wrote, costs nothing more. Raises the errors of storage.
    """
    return mixture(open_store(version.location), version)


def mixture(store: Store, version: Version) -> str:
    """Do the work of `mixed_runs` in the opened store of the version."""
    if version.state is not State.COMPLETE or not version.layout.is_numbered:
        return ""
    if not note_names(store, version.version) or store.read_small(seal_file(version.version)) is not None:
        return ""
    found = find_notes(store, version)
    if not found.notes:  # a copy of the files, say: nothing is known
        return ""
    if are_mixed(store, version, found):
        return f"its shards are of several runs: {_described(store, version, found)}"
    before = _of_run(version, found)
    rest = [ps_id for ps_id in found.unknown if ps_id not in before]
    if not rest:
        return ""
    new, count = named_shards(sorted(found.notes), version.ps_num or 0), version.ps_num or 0
    have = "has" if len(found.notes) == 1 else "have"
    return f"{new} {have} been replaced, and {named_shards(rest, count)} may be of an earlier run"


def are_mixed(store: Store, version: Version, found: NotedShards) -> bool:
    """Say whether the notes on a version's shards show several runs, or cannot show that it is one.

    Savers without a name may see different notes when they are made, and yet be of one run: one of them is restarted,
    and saves its own shard again. They are of two where a shard is older than the saver of another one.
    """
    if len(found.runs) < 2:
        return False
    try:
        read = [read_note(store, version.version, name) for name in found.notes.values()]
    except (CorruptError, UnsupportedError):
        return True
    names = {str(name) for name in found.notes.values()}
    return any(note is None or note.run or not names.isdisjoint(note.older) for note in read)


def with_mixture(store: Store, version: Version) -> Version:
    """Return a version with what `mixed_runs` says of it; as it is when it changes just now."""
    with suppress(EdlCkptError):
        return replace(version, mixture=mixture(store, version))
    return version


def _of_run(version: Version, found: NotedShards) -> set[int]:
    """Return the shards without a note that an earlier seal shows to be of the same run, which has a name."""
    if found.earlier is None or not found.earlier.run or {run_digest(found.earlier.run)} != found.runs:
        return set()
    sizes = found.earlier.sizes
    return {
        shard.ps_id
        for shard in version.shards
        if shard.ps_id in found.unknown and sizes.get(base_name(shard.path)) == shard.size_bytes
    }


def _described(store: Store, version: Version, found: NotedShards) -> str:
    """Return which shards are of which run."""
    of: dict[str, list[int]] = {}
    for ps_id, note in sorted(found.notes.items()):
        of.setdefault(note.run, []).append(ps_id)
    parts = [
        f"{named_shards(shards, version.ps_num or 0)} of {_named_run(store, version.version, found.notes[shards[0]])}"
        for shards in of.values()
    ]
    if found.unknown:
        parts.append(f"{named_shards(found.unknown, version.ps_num or 0)} of an earlier one")
    return ", ".join(parts)


def _named_run(store: Store, version: int, name: NoteName) -> str:
    with suppress(EdlCkptError):
        if note := read_note(store, version, name):
            unnamed = "a later run without a name" if note.older else "a run without a name"
            return f"run {note.run!r}" if note.run else unnamed
    return "a run that is not known"


def _marks(store: Store, version: Version) -> dict[int, str]:
    """Return the mark of each shard's file; NotFoundError when one is gone by now."""
    directory = base_name(version.path)

    def mark(shard: ShardFile) -> str:
        found = store.stat(f"{directory}/{base_name(shard.path)}")
        if found is None:
            raise NotFoundError("is gone", path=shard.path)
        return found.mark

    marks = run_parallel(mark, version.shards, store.properties.at_a_time(REMOTE_WORKERS))
    return {shard.ps_id: mark for shard, mark in zip(version.shards, marks, strict=True)}


def _earlier_seal(store: Store, version: int) -> Seal | None:
    """Return the seal that a version had before a shard of it was replaced; None without one, or when it is damaged."""
    with suppress(EdlCkptError):
        data = store.read_small(f"{notes_dir(version)}/{EARLIER}")
        return None if data is None else parse_seal(data)
    return None
