"""The index of metadata: what the small files of a location contain, in one file beside them.

A listing of a thousand versions needs the metadata of each and a few facts of each seal. On storage where every file is
a request, `.edl-ckpt-0/meta-0/index.json` has them all. An entry counts only while the listing shows the mark of the
file (its size and ETag) that the entry was made from. So an index that is old, from elsewhere or incomplete costs
requests, and never shows what is not there; one that is damaged or too large is ignored. The holder of the lock brings
it up to date at the end (`refresh_index`), and a prune, which deletes, reads the files themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.base.parallel import SMALL_READS, run_parallel
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.document import MAX_DEPTH, is_deep, parse_document
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import INDEX_FILE, META_DIR, STATE_DIR, is_document, metadata_owner, sealed_version
from edl_ckpt.core.state.seal import parse_seal
from edl_ckpt.core.storage.interface import Entry, MarkedStore, Store, lists_marks

INDEX_SCHEMA: Final = "edl-ckpt/index/1"
MAX_INDEX_BYTES: Final = 16 << 20
"""A larger index is neither written nor read: the listing shows its size."""
_TYPICAL_BYTES: Final = 8 << 20
"""Files whose entries would take more are left out, those of the oldest versions first."""
_MAX_DOCUMENT_BYTES: Final = 1 << 17
"""A larger document is left out: it has more than the metadata that users may record."""
_ENTRY_BYTES: Final = 200
FEW: Final = 16
"""So many files are read at a time, in no more time than an index."""
_NESTING: Final = 3
"""An index nests documents so deep."""
_MOST_FILES: Final = 256
_MOST_FILE_BYTES: Final = 16 << 20
"""What one command reads for the index: half a second on a network, beyond the work of the command itself."""


class SealFacts(NamedTuple):
    """What a listing shows of a seal: the fingerprint, and a digest of the names and sizes that it fits."""

    fingerprint: str
    files: str

    @classmethod
    def of(cls, seal: Seal) -> SealFacts:
        """Return the facts of a seal that was read whole."""
        return cls(seal.fingerprint, _digest_of_files(seal.sizes))

    def fits(self, version: Version) -> bool:
        """Say whether the files of a version have the names and sizes in the seal."""
        present = version.sizes
        return len(present) == len(version.files) and _digest_of_files(present) == self.files


class Known:
    """What files of META_DIR contain, by their names; each is valid for the mark that it was read under.

    Several threads may use it. What is kept without a mark ('') is never found. `trusts_index` is for those who show
    metadata; who deletes by it reads the documents, and takes no more than the facts of seals from an index.
    """

    def __init__(self, *, trusts_index: bool = False) -> None:
        self._trusts_index = trusts_index
        self._found: dict[str, tuple[str, dict[str, Any] | SealFacts, str | None]] = {}
        """The mark of each file, its content, and the digest of its bytes if this process read them."""

    def document(self, name: str, mark: str) -> dict[str, Any] | None:
        """Return the document in a file, None when it is not known under this mark."""
        found, _ = self._under(name, mark)
        return found if isinstance(found, dict) else None

    def seal(self, name: str, mark: str) -> SealFacts | None:
        """Return the facts of a seal, None when they are not known under this mark."""
        found, _ = self._under(name, mark)
        return found if isinstance(found, SealFacts) else None

    def digest(self, name: str, mark: str) -> str | None:
        """Return the digest of the bytes of a file that this process read, None when it did not read this one."""
        return self._under(name, mark)[1]

    def _under(self, name: str, mark: str) -> tuple[dict[str, Any] | SealFacts | None, str | None]:
        kept, found, digest = self._found.get(name, ("", None, None))
        return (found, digest) if mark and kept == mark else (None, None)

    def keep(self, name: str, mark: str, found: dict[str, Any] | SealFacts, data: bytes | None = None) -> None:
        """Keep what a file contains; `data` are its bytes when they were read just now."""
        self._found[name] = mark, found, None if data is None else content_digest(data)

    def has(self, name: str, mark: str) -> bool:
        """Say whether a file is known under a mark."""
        return self._under(name, mark)[0] is not None

    def take(self, index: Known, marks: Mapping[str, str]) -> None:
        """Take what an index knows of files with these marks; documents only if the index is trusted."""
        for name, (mark, found, _) in index._found.items():
            is_wanted = marks.get(name) == mark and not self.has(name, mark)
            if is_wanted and (self._trusts_index or isinstance(found, SealFacts)):
                self.keep(name, mark, found)

    def names(self) -> AbstractSet[str]:
        """Return the names of all files that something is kept of."""
        return self._found.keys()


def content_digest(data: bytes) -> str:
    """Return the digest of a file of metadata, as journals of deletions have it."""
    import hashlib  # only object storage has an index

    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _digest_of_files(sizes: Mapping[str, int]) -> str:
    import hashlib  # as above

    text = json.dumps(sorted(sizes.items()))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def take_index(store: Store, known: Known, marks: Mapping[str, str], size_bytes: int | None) -> None:
    """Take from the index of a location what is not known yet of files with these marks.

    `size_bytes` is the size of the index, None without one. A few files are read as fast without it, and on a disk all.
    """
    if not lists_marks(store):
        return
    unknown = (name for name, mark in marks.items() if mark and not known.has(name, mark))
    if sum(is_document(name) or sealed_version(name) is not None for name in unknown) >= FEW:
        known.take(_stored_index(store, size_bytes), marks)


def _stored_index(store: Store, size_bytes: int | None) -> Known:
    """Return what the index of a location says; nothing when there is none that can be used."""
    if size_bytes is not None and size_bytes <= MAX_INDEX_BYTES:
        try:
            return parse_index(store.read_small(f"{META_DIR}/{INDEX_FILE}") or b"")
        except UnavailableError:
            raise
        except EdlCkptError:  # it is no more than a copy
            pass
    return Known()


def parse_index(data: bytes) -> Known:
    """Return what an index says; UsageError when it is damaged. An entry that cannot be used is left out."""
    document = parse_document(data, INDEX_FILE, limit=MAX_INDEX_BYTES)
    known = Known()
    entries = document.get("entries")
    if document.get("schema") != INDEX_SCHEMA or not isinstance(entries, dict):
        return known
    if document.get("digest") != _digest(entries):
        return known
    for name, entry in entries.items():
        match entry:
            case {"mark": str(mark), "document": dict(found)} if is_document(name):
                known.keep(name, mark, found)
            case {"mark": str(mark), "fingerprint": str(fingerprint), "files": str(files)} if (
                sealed_version(name) is not None
            ):
                known.keep(name, mark, SealFacts(fingerprint, files))
    return known


def index_bytes(known: Known, marks: Mapping[str, str]) -> bytes:
    """Return an index of what is known of the files with these marks; `parse_index` is the inverse."""
    entries: dict[str, dict[str, Any]] = {}
    for name, mark in marks.items():
        document, seal = known.document(name, mark), known.seal(name, mark)
        if seal is not None:
            entries[name] = {"mark": mark, "fingerprint": seal.fingerprint, "files": seal.files}
        elif document is not None and not is_deep(document, MAX_DEPTH - _NESTING):
            entries[name] = {"mark": mark, "document": document}
    document = {"schema": INDEX_SCHEMA, "entries": entries, "digest": _digest(entries)}
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _digest(entries: Mapping[str, Any]) -> str:
    """Return the XXH3-128 of the entries of an index, as JSON in ASCII: with a flipped bit none of them counts."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(entries, separators=(",", ":")).encode("ascii"))


def refresh_index(store: Store, *, whole: bool = False) -> None:
    """Bring the index of a location up to date; does nothing on storage whose listings show no marks.

    Files that the index lacks are read: of many only some, the newest first, and the next command goes on, unless the
    `whole` index is wanted. The caller holds the lock. No error of the storage is raised: the index is only a copy.
    """
    if lists_marks(store):
        with suppress(EdlCkptError):
            _refresh(store, whole=whole)


def _refresh(store: MarkedStore, *, whole: bool) -> None:
    files = marked_files(store)
    index = files.pop(INDEX_FILE, None)
    marks = {entry.name: entry.mark for entry in _indexable(files.values())}
    if len(marks) < FEW:
        if index is not None:
            store.remove(index.relative)
        return
    known, stored = Known(trusts_index=True), _stored_index(store, None if index is None else index.size_bytes)
    known.take(stored, marks)
    unknown = [name for name, mark in marks.items() if not known.has(name, mark)]
    sizes = accumulate(files[name].size_bytes for name in unknown)
    some = [name for name, size in zip(unknown, sizes, strict=True) if size <= _MOST_FILE_BYTES][:_MOST_FILES]
    read = sum(run_parallel(lambda name: _learn(store, name, known), unknown if whole else some, SMALL_READS))
    if read or stored.names() - marks.keys():
        data = index_bytes(known, marks)
        if len(data) <= MAX_INDEX_BYTES:
            prove_lock(store.location)
            store.write_small(f"{META_DIR}/{INDEX_FILE}", data)


def marked_files(store: MarkedStore) -> dict[str, Entry]:
    """Return the files of META_DIR by their names, as a listing shows them now."""
    entries = store.below(META_DIR, {STATE_DIR, META_DIR}.__contains__)
    return {entry.name: entry for entry in entries if entry.parent == META_DIR}


def _indexable(files: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the files that an index is made of, those of the newest versions first, until it would be too large."""
    room = _TYPICAL_BYTES
    for entry in sorted(files, key=lambda entry: (-(metadata_owner(entry.name) or 0), entry.name)):
        is_seal = sealed_version(entry.name) is not None
        if entry.mark and (is_seal or (is_document(entry.name) and entry.size_bytes <= _MAX_DOCUMENT_BYTES)):
            room -= _ENTRY_BYTES + (0 if is_seal else entry.size_bytes)
            if room < 0:
                return
            yield entry


def _learn(store: MarkedStore, name: str, known: Known) -> bool:
    """Read a file of META_DIR and keep what it contains; False when it is gone or damaged."""
    found = store.read_marked(f"{META_DIR}/{name}")
    if found is None:
        return False
    data, mark = found
    number = sealed_version(name)
    try:
        if number is None:
            known.keep(name, mark, parse_document(data, name))
            return True
        seal = parse_seal(data, with_chunks=False)
    except EdlCkptError:  # each listing says so
        return False
    if seal.version == number:
        known.keep(name, mark, SealFacts.of(seal))
    return seal.version == number
