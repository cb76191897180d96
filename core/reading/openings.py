"""The files of a version while it is opened: each is opened when its reader is first asked for.

What opens an object on far storage also brings its first bytes, with the header of most shards. All objects of a
version may have more of them than memory should keep. So the thread that reads a header opens the file just before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.storage.interface import RangeReader


class Openings(Mapping[str, RangeReader]):
    """Readers by path, of all files that are not lost. Several threads use it, each for other files.

    `begin` opens a file, or returns None for one that is lost. Its errors are raised where the reader is asked for,
    or here when all are opened `at_once`.
    """

    def __init__(
        self,
        files: Iterable[ShardFile],
        begin: Callable[[ShardFile], RangeReader | None],
        *,
        workers: int = 1,
        at_once: bool = False,
    ) -> None:
        self._begin = begin
        self._workers = workers
        self._files = {file.path: file for file in files}
        self.open: dict[str, RangeReader] = {}
        """The readers of the files that were opened."""
        self._lost: set[str] = set()
        if at_once:
            self.open_all()

    def __getitem__(self, path: str) -> RangeReader:
        """Return the reader of a file; KeyError for a file that is lost, or of another version."""
        if path not in self.open:
            self._open(self._files[path])
        return self.open[path]

    def __contains__(self, path: object) -> bool:
        return path in self._files and path not in self._lost

    def __iter__(self) -> Iterator[str]:
        return (path for path in self._files if path not in self._lost)

    def __len__(self) -> int:
        return len(self._files) - len(self._lost)

    def _open(self, file: ShardFile) -> None:
        if file.path in self._lost:
            return
        reader = self._begin(file)
        if reader is None:
            self._lost.add(file.path)
        else:
            self.open[file.path] = reader

    def open_all(self) -> None:
        """Open the files that nobody has asked for yet, `workers` at a time."""
        run_all(self._open, [file for path, file in self._files.items() if path not in self.open], self._workers)
