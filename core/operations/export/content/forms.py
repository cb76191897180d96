"""Under which names, in which dtypes and in which shapes the variables and tables of a checkpoint are exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.converting.name_map import ROWS
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.operations.export.content.tables import TableIds
from edl_ckpt.core.operations.export.interface import STORED, WEIGHT, Selection, TableNote, Tensor
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.reader import Checkpoint

_INT64: Final = DTYPES["int64"]


@dataclass(frozen=True, slots=True, eq=False)
class ContentForms:
    """The forms of what a selection of a checkpoint has; headers and ids tell."""

    checkpoint: Checkpoint
    selection: Selection
    ids: Mapping[str, TableIds]
    """Of all tables, or of those in the content."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The new names of variables and tables, by the old ones."""
    matrix_ending: str = ""
    keeps_matrices: bool = False
    """True for a format of tensors: a table that is a matrix in its source goes out as that matrix."""
    _matrices: dict[str, bool] = field(default_factory=dict)
    """What is known of tables: whether they are matrices of the source."""

    def title(self, name: str) -> str:
        """Return the name of a table in the output: its new one, or that of one of its parts."""
        return self.names.get(name, self.ids[name].title)

    def keys(self, name: str) -> tuple[str, str]:
        """Return the names of a table's two tensors; with `remap` its vectors have that of a matrix.

        Of a matrix of the source, the first one is ROWS: its ids are the numbers of its rows.
        """
        title = self.title(name)
        if self.is_matrix(name):
            return ROWS, title
        if not self.selection.is_matrix:
            return f"{title}.ids", f"{title}.vectors"
        keeps = name in self.names or title.endswith(self.matrix_ending)
        return f"{title.removesuffix(WEIGHT)}.ids", title if keeps else title + self.matrix_ending

    def is_matrix(self, name: str) -> bool:
        """Say whether a table is a matrix in its source, with all rows from 0 on, and goes out as one."""
        chosen = self.selection
        if not self.keeps_matrices or chosen.is_matrix or chosen.quantize is not None or chosen.order == STORED:
            return False
        if name not in self._matrices:
            runs = [run for _, entry in self.checkpoint.entries(name) for run in entry.ids]
            self._matrices[name] = not any(run.is_stored for run in runs) and self._has_all_rows(name)
        return self._matrices[name]

    def _has_all_rows(self, name: str) -> bool:
        """Say whether ids that are numbers of rows are 0 to n - 1: no two rows of a matrix have one number."""
        rows, high = self.ids[name].rows, -1
        for piece in self.ids[name].pieces:
            high = max(high, int(read_piece(self.checkpoint, piece).ids.max(initial=-1)))
        return 0 < rows == high + 1

    def target(self, dtype: DType | None) -> DType:
        """Return the dtype that is written for a dtype that was read."""
        return self.selection.target_dtype(dtype or DTYPES["float32"])

    def form(self, name: str) -> tuple[DType, int]:
        """Return the dtype and the elements of a row that is written."""
        dtype, dim = self.checkpoint.written_dtype(name), self.dim(name)
        bits = self.selection.quantizes(dtype)
        return (self.target(dtype), dim) if bits is None else (DTYPES["uint8"], bits.width(dim))

    def dim(self, name: str) -> int:
        """Return the elements of a row that is read."""
        info = self.checkpoint.infos.get(name)
        return info.dim if info else max((e.dim for _, e in self.checkpoint.entries(name)), default=0)

    def dense(self, name: str) -> Tensor:
        """Return a variable as it is written."""
        entry = self.checkpoint.find_variable(name)[1]
        return Tensor(self.names.get(name, name), self.target(entry.dtype), entry.shape)

    def note(self, name: str) -> TableNote:
        """Return what an export says of a table."""
        info = self.checkpoint.infos.get(name)
        dtype = self.form(name)[0].name if self.ids[name].rows else ""
        keys, dim = self.keys(name), self.form(name)[1]
        if info is None:
            return TableNote(*keys, "", dim, dtype)
        owner = self.title(info.companion_of) if info.companion_of in self.ids else ""
        return TableNote(*keys, info.initializer, dim, dtype, owner, info.slot if owner else "")

    def pair(self, name: str) -> list[Tensor]:
        """Return the ids and the vectors of a table; of a matrix of the source that alone."""
        rows = self.ids[name].rows
        ids, vectors = self.keys(name)
        dtype, dim = self.form(name)
        tensors = [] if ids == ROWS else [Tensor(ids, _INT64, (rows,))]
        return [*tensors, Tensor(vectors, dtype, (rows, dim))]
