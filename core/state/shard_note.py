"""Notes on shards: what a server knows of the shard that it saved, until the version is sealed.

Each server saves its own shard, and none of them reads the shards of the others. So each writes a note below
`.edl-ckpt-0/shards-0/{version}/` before its shard becomes visible: the name of the run, the checksums of the shard's
chunks, and its part of the sums behind the fingerprint. The last server combines the notes into the seal of the
version, and removes them. The name of a note identifies the file that it is about: on a disk by inode, size and time,
on object storage by the write id. So a note that was written for a file that never became visible, or that was
replaced, fits nothing. A digest covers every byte of a note: what goes into a seal is what the server wrote.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.model.versions import Chunk
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, is_newer, number_chunks, parse_document, schema_at_head
from edl_ckpt.core.state.paths import notes_dir
from edl_ckpt.core.storage.beneath import ForeignError
from edl_ckpt.core.storage.interface import Store

NOTE_SCHEMA: Final = "edl-ckpt/shard/2"
_WITHOUT_DIGEST: Final = "edl-ckpt/shard/1"
"""The sums in such a note are never used: a changed bit would give the version a wrong fingerprint."""
EARLIER: Final = "earlier.json"
"""Among the notes: the seal that a version had until a shard of it was replaced."""
MAX_NOTE_BYTES: Final = MAX_SUMS_BYTES // 2
"""A note with larger sums is written without them; then the version is not sealed by its servers."""
_ENDING_BYTES: Final = len(', "digest": "') + 32 + len('"}\n')
_NAME = re.compile(r"(0|[1-9][0-9]{0,17})-of-([1-9][0-9]{0,17})\.([0-9a-f]{16})\.([A-Za-z0-9_-]+)\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class NoteName:
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
    return hashlib.blake2b("\0".join([run, *older]).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


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
    try:
        present = store.names(notes_dir(version))
    except ForeignError:
        return []
    return [found for found in map(parse_note_name, present) if found]


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
    schema, run, older = document["schema"], str(document["run"]), tuple(map(str, document.get("older", ())))
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
    some = ", ".join(map(str, shards[:8])) + (f" and {len(shards) - 8} more" if len(shards) > 8 else "")
    return f"shard{'' if len(shards) == 1 else 's'} {some} of {ps_num}"
