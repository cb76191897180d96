"""Where a new version goes: staged, proved, and made visible whole, on a local disk or on storage without rename.

Locally that is one rename of a staged directory. Remote files appear one by one, each whole, so all of them are first
uploaded to the last byte, then completed back to back, read back and proved, and sealed last. To replace a version
there, objects that are no shards stand in its directory as long as both sets are in it: ElasticDL takes a directory for
whole when it has as many entries as the first name says, whatever the order, and with these there are always more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

from edl_ckpt.core.errors import EdlCkptError, RefusedError
from edl_ckpt.core.fingerprint import ContentSketch, Fingerprint, fingerprint_checkpoint, fingerprint_of
from edl_ckpt.core.layout import JOURNAL, STAGE_DIR, Layout
from edl_ckpt.core.model import ShardFile, State, Version
from edl_ckpt.core.owner import describe, new_id
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import SILENT, Progress
from edl_ckpt.core.publish import JOURNAL_SCHEMA, Flusher, StagedFile, Staging
from edl_ckpt.core.reader import open_checkpoint
from edl_ckpt.core.scan import PIECE_BYTES, VALUE_BATCH_BYTES
from edl_ckpt.core.seal import Seal, file_name, make_seal, seal_bytes, seal_file
from edl_ckpt.core.store import LocalReader, NewObject, RemoteStore, is_local, local_path, open_remote

OPEN_PARTS: Final = 5
"""Parts of an object that are open beside those being filled: its ids, and the edges between values and ids."""
OUTPUT_MEMORY_BYTES: Final = 512 << 20
"""What open parts may take together when nothing else is said; with more, a version is spooled to the local disk."""
_COMPLETIONS: Final = 16
ACTIVE: Final[set[str]] = set()
"""The remote stages that this process is at work in: its other journals are of work that failed."""
_UPLOAD_BYTES: Final = 8 << 20

Prove = Callable[[Version, bool], Seal]
"""Reads back a version that was written, raises when it is not what it must be, and returns its seal.

It is told whether the version is still staged: then nobody else touches it.
"""


class Sink(Protocol):
    """A file of known size that is written at any offset, from several threads."""

    path: str

    @property
    def bytes_written(self) -> int:
        """Return how many bytes were written so far."""
        ...

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        ...


class VersionOutput(Protocol):
    """A version being written; a context manager that leaves nothing of what was not published."""

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all shards, of these sizes; NoSpaceError when there is no room for them."""
        ...

    def publish(self, prove: Prove) -> None:
        """Make what was written visible, once it is proved."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_output(
    location: str,
    layout: Layout,
    number: int,
    *,
    purpose: str,
    replaces: Version | None = None,
    keep_old: bool = False,
    spool: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> VersionOutput:
    """Return where to write a version of a location; `replaces` is the one whose place it takes, if any.

    The caller holds the lock of a location in which a version is replaced. `spool` has a remote version written to the
    local disk first, where its parts would take too much memory (`open_memory`).
    """
    if is_local(location):
        return LocalOutput(local_path(location), layout, number, purpose, replaces, keep_old=keep_old)
    store = open_remote(location, storage_options)
    return RemoteOutput(store, layout, number, purpose, replaces, spool=spool)


def open_memory(store: RemoteStore, sizes: Sequence[int], workers: int) -> int:
    """Return the most memory that the open parts of objects of these sizes take; 0 for what is spooled anyway.

    Each worker fills a part of its own in each object; besides, some are open at the edges of tables.
    """
    if not store.part_bytes:
        return 0
    parts = OPEN_PARTS + workers
    return sum(min(size, parts * max(store.part_bytes, size // 10_000)) for size in sizes)


class LocalOutput:
    """A version staged on a local disk."""

    def __init__(
        self, root: str, layout: Layout, number: int, purpose: str, replaces: Version | None, *, keep_old: bool
    ) -> None:
        self._root = root
        self._layout = layout
        self._number = number
        self._replaces = replaces
        self._keep_old = keep_old
        self._staging = Staging(root, purpose)
        self._stack = ExitStack()
        self._directory = ""
        self._files: list[StagedFile] = []
        self._flusher: Flusher | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(self._staging)
        return self

    def create(self, sizes: Sequence[int]) -> Sequence[StagedFile]:
        """Begin all shards, of these sizes."""
        self._staging.check_space(sum(sizes))
        replaced = os.path.basename(self._replaces.path) if self._replaces else ""
        self._directory = self._staging.directory(replaced or self._layout.version_dir(self._number))
        for ps_id, size in enumerate(sizes):
            path = os.path.join(self._directory, self._layout.shard_file(ps_id, len(sizes)))
            file = StagedFile(path, size)
            self._stack.callback(file.close)
            self._files.append(file)
        self._flusher = self._stack.enter_context(Flusher(self._files))
        return self._files

    def publish(self, prove: Prove) -> None:
        """Flush while the proof is made, then rename."""
        assert self._flusher is not None  # noqa: S101 - `create` comes first
        self._flusher.all_written()
        sizes = [file.size_bytes for file in self._files]
        staged = written_version(self._root, self._directory, self._layout, self._number, sizes)
        seal = seal_bytes(prove(staged, True))
        self._flusher.wait()
        for file in self._files:
            file.close()
        if self._replaces is None:
            self._staging.publish(self._directory, self._number, seal)
        else:
            names = [os.path.basename(shard.path) for shard in self._replaces.shards]
            self._staging.replace(
                self._directory, self._replaces.path, self._number, seal, keep_old=self._keep_old, old_names=names
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def written_version(location: str, directory: str, layout: Layout, number: int, sizes: Sequence[int]) -> Version:
    """Return a version that we wrote, as a listing would show it."""
    shards = tuple(
        ShardFile(i, len(sizes), f"{directory}/{layout.shard_file(i, len(sizes))}", size, 0.0)
        for i, size in enumerate(sizes)
    )
    return Version(location, number, directory, layout, State.COMPLETE, len(sizes), shards)


class RemoteOutput:
    """A version that appears file by file, after everything was uploaded."""

    def __init__(
        self, store: RemoteStore, layout: Layout, number: int, purpose: str, replaces: Version | None, *, spool: bool
    ) -> None:
        self._store = store
        self._layout = layout
        self._number = number
        self._purpose = purpose
        self._replaces = replaces
        self._spool = spool
        self._stage = f"{STAGE_DIR}/{new_id()}"
        self._directory = file_name(replaces.path) if replaces else layout.version_dir(number)
        self._objects: list[NewObject] = []
        self._sinks: list[Sink] = []
        self._journal: dict[str, Any] = {}
        self._decided = False

    def __enter__(self) -> Self:
        ACTIVE.add(self._stage)
        return self

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all uploads, and write down which they are."""
        names = [self._layout.shard_file(i, len(sizes)) for i in range(len(sizes))]
        old = [file_name(shard.path) for shard in self._replaces.shards] if self._replaces else []
        if set(names) & set(old):
            raise RefusedError(
                "on storage without rename a version cannot be replaced by one of as many shards",
                path=f"{self._store.location}/{self._directory}",
                hint="try: --output LOCATION",
            )
        for name, size in zip(names, sizes, strict=True):
            self._objects.append(self._store.new_object(f"{self._directory}/{name}", size))
        self._sinks = [_Spooled(o) for o in self._objects] if self._spool else list(self._objects)
        uploads = list(run_parallel(lambda o: o.begin(), self._objects, _COMPLETIONS))
        self._journal = {
            "schema": JOURNAL_SCHEMA,
            "owner": describe(self._purpose),
            "version": self._number,
            "directory": self._directory,
            "new": dict(zip(names, sizes, strict=True)),
            "uploads": {n: u for n, u in zip(names, uploads, strict=True) if u},
            "write_ids": {n: o.write_id for n, o in zip(names, self._objects, strict=True)},
            "old": old,
            "markers": marker_names(len(old), len(names)) if old else [],
            "seal": None,
        }
        self._write_journal()
        return self._sinks

    def _write_journal(self) -> None:
        self._store.write_small(f"{self._stage}/{JOURNAL}", json.dumps(self._journal).encode())

    def publish(self, prove: Prove) -> None:
        """Complete all, read them back, and only then let the old ones go."""
        for sink in self._sinks:
            if isinstance(sink, _Spooled):
                sink.drain()
        for item in self._objects:
            item.finish()
        if not self._replaces:
            self._store.remove(seal_file(self._number))  # of a version that had this number once
        for name in self._journal["markers"]:
            self._store.write_small(f"{self._directory}/{name}", b"")
        for _ in run_parallel(lambda o: o.complete(), self._objects, _COMPLETIONS):
            pass
        sizes = [item.size_bytes for item in self._objects]
        directory = f"{self._store.location}/{self._directory}"
        seal = prove(written_version(self._store.location, directory, self._layout, self._number, sizes), False)
        self._journal["seal"] = json.loads(seal_bytes(seal))
        self._decided = True  # from here on only what the journal on the storage says is done, by us or by `recover`
        if self._replaces:
            self._write_journal()
        settle_remote(self._store, self._stage, self._journal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            if isinstance(sink, _Spooled):
                sink.close()
        ACTIVE.discard(self._stage)
        if self._decided or not self._objects:
            return
        for _ in run_parallel(self._drop, self._objects, _COMPLETIONS):
            pass
        with suppress(EdlCkptError):
            if self._journal:
                settle_remote(self._store, self._stage, self._journal)

    def _drop(self, item: NewObject) -> None:
        with suppress(EdlCkptError):
            if item.completed:
                self._store.remove(item.path.removeprefix(f"{self._store.location}/"))
            else:
                item.abort()


def marker_names(old: int, new: int) -> list[str]:
    """Return names that ElasticDL reads as "of 0", so many that a directory with both sets has more than either wants.

    >>> marker_names(4, 8)
    ['resharding-0.0', 'resharding-0.1', 'resharding-0.2', 'resharding-0.3', 'resharding-0.4']
    """
    return [f"resharding-0.{k}" for k in range(max(new - old, 0) + 1)]


def settle_remote(store: RemoteStore, stage: str, journal: Mapping[str, Any]) -> str:
    """Finish what the journal of a remote stage began, or undo it; return what was done. Each step may be done again.

    What was proved is finished: the old shards go, the seal comes, the markers go last. What was not proved is undone:
    its uploads are aborted, and of its objects those removed that are known to be its own. Neither set is touched
    unless the other one is seen to be whole: then RefusedError, and nothing is done. A new version all of whose shards
    appeared stays: somebody may count on it by now.
    """
    directory, version = str(journal["directory"]), int(journal["version"])
    if not journal["old"] and not journal.get("seal") and _all_there(store, directory, journal):
        store.remove(f"{stage}/{JOURNAL}")
        return f"version {version} is there whole, and was not sealed any more: verify --seal does that"
    other = journal["new"] if journal.get("seal") else dict.fromkeys(journal["old"])
    for name, size in other.items():
        found = store.stat(f"{directory}/{name}")
        if found is None or size not in {None, found.size_bytes}:
            raise RefusedError(
                f"{name} is not as the journal says: nothing was changed",
                path=f"{store.location}/{directory}",
                hint=f"look at {store.location}/{stage}/{JOURNAL}",
            )
    if journal.get("seal"):
        store.remove_many([f"{directory}/{name}" for name in journal["old"]])
        store.write_small(seal_file(version), (json.dumps(journal["seal"], ensure_ascii=False) + "\n").encode())
        done = f"version {version} is the new one, whole: what was left to do for it is done"
    else:
        for name, upload_id in journal["uploads"].items():
            store.abort_upload(f"{directory}/{name}", upload_id)
        for name, write_id in journal["write_ids"].items():
            found = store.stat(f"{directory}/{name}") if write_id or journal["old"] else None
            # Where a version was to be replaced the lock was held: what has the new names is what we put there.
            if found is not None and (found.write_id == write_id or (journal["old"] and not write_id)):
                store.remove(f"{directory}/{name}")
        old = "is the old one, whole" if journal["old"] else "was not finished"
        done = f"version {version} {old}: what was to be written is dropped"
    store.remove_many([f"{directory}/{name}" for name in journal["markers"]])
    store.remove(f"{stage}/{JOURNAL}")
    return done


def _all_there(store: RemoteStore, directory: str, journal: Mapping[str, Any]) -> bool:
    """Say whether all shards that a journal names are visible, each the one that was uploaded."""
    for name, size in journal["new"].items():
        found = store.stat(f"{directory}/{name}")
        if found is None or found.size_bytes != size or found.write_id not in {None, journal["write_ids"][name]}:
            return False
    return True


class _Spooled:
    """A shard that is written to the local disk first, and uploaded from its first byte to its last."""

    def __init__(self, item: NewObject) -> None:
        from edl_ckpt.core.remote import SpoolFile

        self.path = item.path
        self._item = item
        self._file = SpoolFile(item.size_bytes)

    @property
    def bytes_written(self) -> int:
        return self._file.bytes_written

    def write(self, offset: int, data: memoryview | bytes) -> None:
        self._file.write(offset, data)

    def drain(self) -> None:
        for offset in range(0, self._item.size_bytes, _UPLOAD_BYTES):
            size = min(_UPLOAD_BYTES, self._item.size_bytes - offset)
            self._item.write(offset, self._file.read(offset, size))
        self.close()

    def close(self) -> None:
        self._file.close()


def prove_version(
    written: Version,
    read: Fingerprint | ContentSketch,
    *,
    staged: bool,
    workers: int,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = SILENT,
) -> Seal:
    """Read back what was written and return its seal; EdlCkptError when its fingerprint is not that of what was read.

    What was read is told by its fingerprint, or, where it was no checkpoint, by the sketch of its values.
    """
    with open_checkpoint(written, staged=staged, storage_options=storage_options) as checkpoint:
        progress.start("proving", written.size_bytes)
        proof = fingerprint_checkpoint(
            checkpoint, workers=workers, batch_bytes=batch_bytes, piece_bytes=piece_bytes, progress=progress
        )
        expected = fingerprint_of(checkpoint, read) if isinstance(read, ContentSketch) else read
        if proof.text != expected.text:
            names = ", ".join(map(repr, proof.differing(expected)[:5]))
            raise EdlCkptError(
                f"what was written is not what was read ({names}); nothing was published",
                path=written.path,
                hint="suspect the memory or the disk of this machine",
            )
        return make_seal(checkpoint, proof.text, workers=workers, progress=progress)


def put_files(store: RemoteStore, files: Mapping[str, str], *, replace: bool) -> None:
    """Upload local files, their paths by where they go below the location, and make them visible back to back.

    Names must be free unless `replace` is said. A failure leaves what was there, or, once the first file is visible,
    what could be completed.
    """
    objects: list[NewObject] = []
    try:
        for relative, path in files.items():
            with LocalReader(path) as reader:
                item = store.new_object(relative, reader.size_bytes)
                objects.append(item)
                item.begin()
                for start in range(0, reader.size_bytes, _UPLOAD_BYTES):
                    item.write(start, reader.read(start, min(_UPLOAD_BYTES, reader.size_bytes - start)))
                item.finish()
        for item in objects:
            item.complete(replace=replace)
    except BaseException:
        for item in objects:
            with suppress(EdlCkptError):
                item.abort()
        raise
