"""An export to object storage: one object, whose parts are sent while its file is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.sources.registry import completes
from edl_ckpt.core.storage.interface import ObjectStore, ObjectWriter, has_parts
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.parts import PartMemory, least_part

_UPLOADS: Final = 16
"""Small files that are uploaded, and objects that are completed, at a time."""
_READERS: Final = 4
"""Threads that read a local file to be uploaded."""
UPLOAD_BYTES: Final = 5 << 20
"""How many bytes of a local file are read and uploaded at a time: the smallest part, so that none stays open."""


class FileUpload:
    """A local file of known size, of which parts are uploaded as soon as all of their bytes are final."""

    def __init__(self, item: ObjectWriter, path: str, part_bytes: int) -> None:
        self.item = item
        self._part_bytes = part_bytes
        self._reader = LocalReader(path)
        self._final: dict[int, list[tuple[int, int]]] = {}
        self._sent: set[int] = set()
        self._lock = threading.Lock()

    def final(self, offset: int, size_bytes: int) -> None:
        """Know that some bytes do not change any more; several threads call it."""
        end, due = offset + size_bytes, list[int]()
        with self._lock:
            for number in range(offset // self._part_bytes, -(-end // self._part_bytes)):
                first, last = self._extent(number)
                found = self._final.setdefault(number, [])
                found.append((max(offset, first), min(end, last)))
                if number not in self._sent and _cover(found, first, last):
                    self._sent.add(number)
                    due.append(number)
        for number in due:
            self._send(number)

    def finish(self) -> None:
        """Upload the other parts, now that the whole file is final."""
        count = -(-self.item.size_bytes // self._part_bytes) or 1
        run_all(self._send, sorted(set(range(count)) - self._sent), _READERS)
        self.item.finish()
        self.close()

    def close(self) -> None:
        """Close the local file."""
        self._reader.close()

    def _extent(self, number: int) -> tuple[int, int]:
        first = number * self._part_bytes
        return first, min(first + self._part_bytes, self.item.size_bytes)

    def _send(self, number: int) -> None:
        first, last = self._extent(number)
        self.item.write(first, self._reader.read(first, last - first))


def _cover(ranges: list[tuple[int, int]], first: int, last: int) -> bool:
    """Say whether ranges have all bytes in [first, last) together."""
    for start, end in sorted(ranges):
        if start > first:
            break
        first = max(first, end)
    return first >= last


class Ahead:
    """Uploads of local files, some of which begin while the files are still written; they are visible at the end."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._memory = PartMemory()
        self._files: dict[str, FileUpload] = {}
        self.others: dict[str, ObjectWriter] = {}
        """The objects whose parts other processes send, by their names."""

    def begin(self, relative: str, path: str, size_bytes: int) -> Callable[[int, int], None] | None:
        """Begin with a file that has its size; return what is called with each (offset, bytes) that is final.

        None where a storage takes no parts, and for a small file: it is uploaded at the end.
        """
        if not has_parts(self._store) or size_bytes <= UPLOAD_BYTES:
            return None
        return self._begin(relative, path, size_bytes, least_part(size_bytes, self._store.properties.part_bytes)).final

    def _begin(self, relative: str, path: str, size_bytes: int, part_bytes: int) -> FileUpload:
        sent = FileUpload(self._store.new_object(relative, size_bytes, self._memory), path, part_bytes)
        self._files[relative] = sent  # before anything can fail, so that `close` closes it
        sent.item.begin()
        return sent

    def by_others(self, relative: str) -> ObjectWriter:
        """Return an object of at least a byte whose parts another process sends; the caller begins it, and joins them.

        Its size is that of the parts.
        """
        self.others[relative] = item = self._store.new_object(relative, 1, self._memory)
        return item

    def publish(self, files: Mapping[str, str], *, replace: bool) -> None:
        """Upload what is left of local files, given by their paths below the location, and make all files visible.

        Names must be free unless `replace` is True. A failure before the first file is visible changes nothing; a later
        one leaves the files that are complete. Large files go part by part, small ones several at a time. Files that
        other processes have sent become visible with them.
        """
        sizes = {relative: os.path.getsize(path) for relative, path in files.items()}

        def send(relative: str) -> None:
            begun = self._files.get(relative)
            (begun or self._begin(relative, files[relative], sizes[relative], UPLOAD_BYTES)).finish()

        for item in self.others.values():
            item.finish()
        for relative, size_bytes in sizes.items():
            if size_bytes > UPLOAD_BYTES:
                send(relative)
        run_all(send, sorted(name for name, size_bytes in sizes.items() if size_bytes <= UPLOAD_BYTES), _UPLOADS)
        objects = dict(self.others) | {relative: self._files[relative].item for relative in files}
        indexes = [item for name, item in objects.items() if completes(name)]
        others = [item for name, item in objects.items() if not completes(name)]
        with COMMIT:
            for group in (others, indexes):  # after a kill in between no reader takes it for whole
                run_all(lambda item: item.complete(replace=replace), group, _UPLOADS)

    def close(self) -> None:
        """Stop what is still being sent, and abort what was not made visible."""
        self._memory.close()
        for sent in self._files.values():
            sent.close()
        run_all(_abort, [*self.others.values(), *(sent.item for sent in self._files.values())], _UPLOADS)


def _abort(item: ObjectWriter) -> None:
    with suppress(EdlCkptError):
        item.abort()
