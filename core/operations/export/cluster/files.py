"""The files that the tasks of a cluster write: each has some variables and tables, or the rows of a range of ids.

Files are about as large as the share of a thread. A table that is larger is cut: by a sample of its ids, so that its
files ascend in them, or in the stored order between its pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import RESULT_BYTES
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.operations.export.content.tables import LookedAt, Name
from edl_ckpt.core.operations.export.interface import ExportContent
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import ranges_of_sample

LEAST_FILE_BYTES: Final = 16 << 20
"""A cluster cuts nothing into smaller files by itself."""
MOST_NAMES: Final = 500
"""The variables and tables of one file: a result has a digest of each."""
_SUMS_BYTES: Final = RESULT_BYTES // 2
_LOWEST, _HIGHEST = (int(limit) for limit in (np.iinfo(np.int64).min, np.iinfo(np.int64).max))


class Span(NamedTuple):
    """Rows of a table that one file has: those of pieces [first, last) with ids from `low` to `high`.

    `number` is that among the spans of its table, of which there are `total`. Tensors have the `title` in their names.
    """

    table: str
    title: str
    first: int
    last: int
    low: int = _LOWEST
    high: int = _HIGHEST
    number: int = 0
    total: int = 1

    @property
    def is_range(self) -> bool:
        """Say whether not all rows of its pieces belong to it."""
        return (self.low, self.high) != (_LOWEST, _HIGHEST)

    def has(self, ids: bulk.I64) -> npt.NDArray[np.bool_]:
        """Return a bool for each id: whether it is in the range."""
        inside: npt.NDArray[np.bool_] = (ids >= self.low) & (ids <= self.high)
        return inside


def numbered(span: Span) -> str:
    """Return which of its table's spans it is, for names.

    >>> numbered(Span("t", "t", 0, 9, number=1, total=12))
    '00002-of-00012'
    """
    return f"{span.number + 1:05}-of-{span.total:05}"


class PartFile(NamedTuple):
    """A file that one task writes, and whose sums it returns: the fingerprint needs them. Others are read once more."""

    path: str
    variables: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    summed: frozenset[Name] = frozenset()

    def unsummed(self) -> list[Name]:
        """Return what is in the file, and whose sums its task does not return."""
        names = [*((name, False) for name in self.variables), *((span.table, True) for span in self.spans)]
        return [name for name in names if name not in self.summed]


def file_bytes(executor: ClusterExecutor, total_bytes: int, most_bytes: int | None) -> int:
    """Return about how large a file is: the share of a thread, unless that is little, or more than is allowed."""
    wanted = max(total_bytes // max(executor.all_threads, 1), LEAST_FILE_BYTES)
    return max(wanted if most_bytes is None else min(wanted, most_bytes), 1)


def cut_tables(content: ExportContent, looked: LookedAt, size_bytes: int, *, stored: bool) -> dict[str, list[Span]]:
    """Return the spans of each table that is exported: one, unless it is larger than a file."""
    spans: dict[str, list[Span]] = {}
    for name, total in ((name, size) for (name, is_table), size in sizes_of(content).items() if is_table):
        pieces, count = looked.places[name], max(-(-total // size_bytes), 1)
        if count == 1:
            spans[name] = [Span(name, name, 0, len(pieces))]
        elif stored:
            rows = sum(piece.rows for piece in pieces)
            sized = ((number, total * piece.rows // max(rows, 1)) for number, piece in enumerate(pieces))
            spans[name] = [Span(name, name, some[0], some[-1] + 1) for some in together(sized, size_bytes)]
        else:
            cuts = ranges_of_sample(looked.samples[name], count).cuts.tolist()
            ends = zip([_LOWEST, *cuts], [*(cut - 1 for cut in cuts), _HIGHEST], strict=True)
            spans[name] = [Span(name, name, *looked.within(name, low, high), low, high) for low, high in ends]
        spans[name] = [span._replace(number=k, total=len(spans[name])) for k, span in enumerate(spans[name])]
    return spans


def with_sums(checkpoint: Checkpoint, files: Sequence[PartFile], sizes: Mapping[Name, int]) -> list[PartFile]:
    """Return files whose tasks sum large tables and variables where they write them, as far as they can be."""
    planned = []
    for file in files:
        names = {(name, False) for name in file.variables} | {(s.table, True) for s in file.spans if s.total == 1}
        chosen = {(span.table, True) for span in file.spans if span.total > 1}
        total = sum(_sums_bytes(checkpoint, name) for name in chosen)
        for name in sorted(names, key=lambda name: (-sizes[name], name)):
            more = _sums_bytes(checkpoint, name)
            if total and total + more > _SUMS_BYTES:
                continue
            chosen.add(name)
            total += more
        planned.append(file._replace(summed=frozenset(chosen)))
    return planned


def _sums_bytes(checkpoint: Checkpoint, name: Name) -> int:
    if name[1]:
        return 4 * sketch_size(max((entry.row_bytes for _, entry in checkpoint.entries(name[0])), default=0))
    width = checkpoint.find_variable(name[0])[1].size_bytes
    return width if width <= bulk.CHUNK_BYTES else 4 * sketch_size(width)  # one chunk is kept as it is


def sizes_of(content: ExportContent) -> dict[Name, int]:
    """Return the bytes of each variable and table that is exported, as they are written."""
    sizes = {tensor.name: tensor.size_bytes for tensor in content.tensors}
    tables = {(name, True): sizes.pop(note.ids) + sizes.pop(note.vectors) for name, note in content.notes.items()}
    return {(name, False): size for name, size in sizes.items()} | tables
