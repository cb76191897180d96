"""The open files of a version by their paths: a file that is not open has a reason, which reading it raises.

With `partial`, files that are gone, that are no regular files, or that cannot be read are left out. A tensor in another
file may still need them; then its reader ends with that reason, as it does where nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from edl_ckpt.core.base.errors import CorruptError, IncompleteError
from edl_ckpt.core.model.tables import LostShard
from edl_ckpt.core.storage.interface import RangeReader

_ABSENT = "missing-shard"


class OpenFiles(dict[str, RangeReader]):
    """Readers by path; the one of a lost file is its error."""

    def __init__(self, readers: Mapping[str, RangeReader], lost: Iterable[LostShard] = ()) -> None:
        super().__init__(readers)
        self._lost = {one.path: one for one in lost}

    def __missing__(self, path: str) -> NoReturn:
        lost = self._lost.get(path)
        if lost is None or lost.code == _ABSENT:
            raise IncompleteError(lost.message if lost else "this file could not be opened", path=path)
        raise CorruptError(lost.message, code=lost.code, path=path, offset=lost.offset)

    def with_readers(self, readers: Mapping[str, RangeReader]) -> OpenFiles:
        """Return other readers of the same files, and the same reasons."""
        return OpenFiles(readers, self._lost.values())
