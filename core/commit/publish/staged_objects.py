"""An output on object storage that is proved before it is visible, and needs no room on the local disk.

Its objects are written and completed below a hidden prefix, where the proof reads them. Then the service itself copies
each of them to a new object under its own name, and those become visible together. A kill leaves hidden objects, which
`sweep_work` removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.commit.sent_parts import SharedUpload, SharedUploads, TargetPart
from edl_ckpt.core.storage.interface import ObjectWriter, PartsStore
from edl_ckpt.core.storage.parts import PartMemory

_AT_ONCE: Final = 16
"""Objects that are begun, completed or copied at a time."""


class StagedObjects:
    """The files of an output, by their names in it, as objects below the prefix `hidden` of a location."""

    def __init__(self, store: PartsStore, hidden: str, sizes: Mapping[str, int]) -> None:
        self._store, self._names = store, list(sizes)
        self._memory, self._memory_of_copies = PartMemory(), PartMemory()
        self._copies: dict[str, ObjectWriter] = {}
        self.place = store.location.with_url(store.path(hidden))
        """Where they are, once they are completed."""
        self.objects: Sequence[ObjectWriter] = [
            store.new_object(f"{hidden}/{name}", size, self._memory) for name, size in sizes.items()
        ]
        """Writers of the files, in the order of their names."""

    def begin(self) -> None:
        """Begin all objects."""
        run_all(lambda item: item.begin(), self.objects, _AT_ONCE)

    def share(self) -> SharedUploads:
        """Return them as a value, for other processes that send their parts."""
        uploads = {
            number: SharedUpload(item.path.removeprefix(self._store.path("")), item.size_bytes, item.upload_id)
            for number, item in enumerate(self.objects)
            if item.upload_id
        }
        return SharedUploads(self._store.location, uploads, self._store.properties.part_bytes)

    def take(self, parts: Iterable[TargetPart]) -> None:
        """Take the parts that other processes have sent."""
        for target, part in parts:
            self.objects[target].take([part])

    def complete(self) -> None:
        """Make sure that every byte was written, and let the proof see the objects."""
        run_all(lambda item: item.finish(), self.objects, _AT_ONCE)
        self._memory.close()
        run_all(lambda item: item.complete(), self.objects, _AT_ONCE)

    def under(self, directory: str) -> dict[str, ObjectWriter]:
        """Return new objects for the files, by their names in the location; `copy` fills them, others complete them."""
        for name, item in zip(self._names, self.objects, strict=True):
            self._copies[f"{directory}/{name}"] = self._store.new_object(
                f"{directory}/{name}", item.size_bytes, self._memory_of_copies
            )
        return self._copies

    def copy(self) -> None:
        """Let the service copy all bytes to the new objects, which do not become visible by that."""
        pairs = zip(self.objects, self._copies.values(), strict=True)
        run_all(lambda pair: self._store.copy_object(*pair), pairs, _AT_ONCE)

    def close(self) -> None:
        """Abort what was not completed, and remove the hidden objects."""
        self._memory.close()
        self._memory_of_copies.close()
        for item in self.objects:
            with suppress(EdlCkptError):
                item.abort()
        hidden = [item.path.removeprefix(self._store.path("")) for item in self.objects if item.completed]
        with suppress(EdlCkptError):
            self._store.remove_many(hidden)
