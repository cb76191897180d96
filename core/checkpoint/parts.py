"""Rows of a table, and the part of a version that one parameter server has after a restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.arrays import dtype_name
from edl_ckpt.core.format.model import TableInfo
from edl_ckpt.core.words import counted, describe


class Rows(NamedTuple):
    """Rows of one table: int64 [n] ids and [n, dim] vectors."""

    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.generic]

    def __repr__(self) -> str:
        return describe("Rows", f"{' x '.join(map(str, self.vectors.shape))} {dtype_name(self.vectors)}")


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one parameter server after a restore."""

    version: int
    variables: Mapping[str, npt.NDArray[np.generic]]
    tables: Mapping[str, Rows]
    infos: Mapping[str, TableInfo]

    def __repr__(self) -> str:
        rows = sum(len(table.ids) for table in self.tables.values())
        variables, tables = counted(len(self.variables), "variable"), counted(len(self.tables), "table")
        return describe("Part", f"of version {self.version}", variables, tables, counted(rows, "row"))
