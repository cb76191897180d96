"""TFRA's FileSystemSaver as a destination: keys and values, without headers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edl_ckpt.core.converting.changes import Outgoing, OutTable
from edl_ckpt.core.converting.destinations.raw import RawDestination, RawLayout, check_floats
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout


class ToTfra(RawDestination):
    """TFRA's FileSystemSaver, one device in each of `ranks` processes, or as many devices in one, as the source has."""

    system = "tfra"
    of_system = re.compile(r"_mht_.*-(?:keys|values)$", re.DOTALL)
    forbidden = re.compile(r"\A\.|/|\0|_mht_", re.DOTALL)  # no hidden file is one of a checkpoint

    def accepted(self, out: Outgoing) -> Outgoing:
        """Leave out companions by name, and refuse rows that are no float32: nothing in the files tells the dtype."""
        out = super().accepted(out)
        companions = [table.source for table in out.tables if table.info.companion_of and not self.is_own]
        out = out.without(companions, "TFRA has no file for it")
        check_floats(self.system, out)
        return out

    def rule(self, table: OutTable) -> Placement:
        """Return the rule of the source, else that of TFRA with the TensorFlow of PyPI."""
        rule = self.source.placement(table.source)
        return rule if rule is Placement.MOD and self.is_own else Placement.MASK31_MOD

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield keys and values."""
        yield self.column(rows, f"{rows.table.name}-keys", ids=True)
        yield self.column(rows, f"{rows.table.name}-values", ids=False)

    def places(self, table: str) -> RowPlaces:
        """Return the files of keys and of values."""
        return self._row_places(f"{table}-keys", f"{table}-values")

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files in the directory and the form that the source has."""
        files = [path for path in self.source.version.sizes if path in self.own_names and path.endswith("-keys")]
        known = files[0] if self.is_own and files else "TFRADynamicEmbedding/"
        folder = known.rpartition("/")[0]
        folder += "/" if folder else ""
        in_devices = "of1_rank" not in known and len(files) > 0

        def path_of(key: str, rank: int) -> str:
            name, _, kind = key.rpartition("-")
            device = f"{rank + 1}of{self.ranks}_rank0_size1" if in_devices else f"1of1_rank{rank}_size{self.ranks}"
            return f"{folder}{name}_mht_{device}-{kind}"

        return RawLayout(arrays, path_of, {})
