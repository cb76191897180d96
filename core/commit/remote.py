"""Where a new version goes: staged, proved, and made visible whole, on a local disk or on storage without rename.

Locally that is one rename of a staged directory. Remote files appear one by one, each whole, so all of them are first
uploaded to the last byte, then completed back to back, read back and proved, and sealed last. To replace a version
there, objects that are no shards stand in its directory as long as both sets are in it: ElasticDL takes a directory for
whole when it has as many entries as the first name says, whatever the order, and with these there are always more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from edl_ckpt.core.commit.interface import Prove, Written, written_version
from edl_ckpt.core.commit.local import JOURNAL_SCHEMA
from edl_ckpt.core.errors import EdlCkptError, RefusedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.state.owner import describe
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, seal_file
from edl_ckpt.core.state.seal import base_name, seal_bytes
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter, Sink, Store

OPEN_PARTS: Final = 5
"""Parts of an object that are open beside those being filled: its ids, and the edges between values and ids."""
OUTPUT_MEMORY_BYTES: Final = 512 << 20
"""What open parts may take together when nothing else is said; with more, a version is spooled to the local disk."""
_COMPLETIONS: Final = 16
ACTIVE: Final[set[str]] = set()
"""The remote stages that this process is at work in: its other journals are of work that failed."""
_UPLOAD_BYTES: Final = 8 << 20


def open_memory(store: Store, sizes: Sequence[int], workers: int) -> int:
    """Return the most memory that the open parts of objects of these sizes take; 0 for what is spooled anyway.

    Each worker fills a part of its own in each object; besides, some are open at the edges of tables.
    """
    if not store.properties.part_bytes:
        return 0
    parts = OPEN_PARTS + workers
    return sum(min(size, parts * max(store.properties.part_bytes, size // 10_000)) for size in sizes)


class RemoteOutput:
    """A version that appears file by file, after everything was uploaded."""

    def __init__(
        self, store: ObjectStore, layout: Layout, number: int, purpose: str, replaces: Version | None, *, spool: bool
    ) -> None:
        self._store = store
        self._layout = layout
        self._number = number
        self._purpose = purpose
        self._replaces = replaces
        self._spool = spool
        self._stage = f"{STAGE_DIR}/{new_id()}"
        self._directory = base_name(replaces.path) if replaces else layout.version_dir(number)
        self._objects: list[ObjectWriter] = []
        self._sinks: list[Sink] = []
        self._journal: dict[str, Any] = {}
        self._decided = False

    def __enter__(self) -> Self:
        ACTIVE.add(self._stage)
        return self

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all uploads, and write down which they are."""
        names = [self._layout.shard_file(i, len(sizes)) for i in range(len(sizes))]
        old = [base_name(shard.path) for shard in self._replaces.shards] if self._replaces else []
        if set(names) & set(old):
            raise RefusedError(
                "on storage without rename a version cannot be replaced by one of as many shards",
                path=self._store.path(self._directory),
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
        directory = self._store.path(self._directory)
        version = written_version(self._store.location, directory, self._layout, self._number, sizes)
        seal = prove(Written(version, staged=False, verified=all(item.verified for item in self._objects)))
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

    def _drop(self, item: ObjectWriter) -> None:
        with suppress(EdlCkptError):
            if item.completed:
                self._store.remove(item.path.removeprefix(self._store.path("")))
            else:
                item.abort()


def marker_names(old: int, new: int) -> list[str]:
    """Return names that ElasticDL reads as "of 0", so many that a directory with both sets has more than either wants.

    >>> marker_names(4, 8)
    ['resharding-0.0', 'resharding-0.1', 'resharding-0.2', 'resharding-0.3', 'resharding-0.4']
    """
    return [f"resharding-0.{k}" for k in range(max(new - old, 0) + 1)]


def settle_remote(store: ObjectStore, stage: str, journal: Mapping[str, Any]) -> str:
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
                path=store.path(directory),
                hint=f"look at {store.path(stage)}/{JOURNAL}",
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


def _all_there(store: ObjectStore, directory: str, journal: Mapping[str, Any]) -> bool:
    """Say whether all shards that a journal names are visible, each the one that was uploaded."""
    for name, size in journal["new"].items():
        found = store.stat(f"{directory}/{name}")
        if found is None or found.size_bytes != size or found.write_id not in {None, journal["write_ids"][name]}:
            return False
    return True


class _Spooled:
    """A shard that is written to the local disk first, and uploaded from its first byte to its last."""

    def __init__(self, item: ObjectWriter) -> None:
        from edl_ckpt.core.storage.spool import SpoolFile

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


def drop_uploads(store: ObjectStore, progress: Mapping[str, Any], *, whole: bool) -> None:
    """Abort the uploads that an interrupted copy had not finished; with `whole` those of whole shards too."""
    for name, upload_id in dict(progress.get("open", {})).items():
        store.abort_upload(f"{progress.get('folder', '')}/{name}", upload_id)
    for record in dict(progress.get("shards", {})).values() if whole else ():
        if record.get("upload_id"):
            store.abort_upload(record.get("path", ""), record["upload_id"])


def drop_copy(store: ObjectStore, progress: Mapping[str, Any]) -> None:
    """Drop all that an interrupted copy left, but a version all of whose shards appeared."""
    drop_uploads(store, progress, whole=True)
    records = [record for record in dict(progress.get("shards", {})).values() if record.get("write_id")]
    visible = [r["path"] for r in records if is_visible(store, r)]
    if len(visible) < len(records) or progress.get("open"):
        store.remove_many(visible)


def is_visible(store: ObjectStore, record: Mapping[str, Any]) -> bool:
    """Say whether a shard of an interrupted copy appeared: what is there was written by that copy."""
    found = store.stat(str(record["path"]))
    return found is not None and bool(record.get("write_id")) and found.write_id == record["write_id"]
