"""torch_checkpointing as a destination: tensors cut by rows over ranks, with the metadata that join them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from edl_ckpt.core.converting.changes import Outgoing, OutVariable
from edl_ckpt.core.converting.destinations.dcp import ToDcp
from edl_ckpt.core.sources.dcp.writing import OF_TORCH
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout
from edl_ckpt.core.sources.torch_checkpointing.writing import items_of, lay_out


class ToTorchCheckpointing(ToDcp):
    """A file of each item and rank, and `metadata.pkl`; tables have the keys that TorchRec gives them."""

    system = "torch-checkpointing"
    exports_only = True
    other_dtypes = OF_TORCH
    of_system = re.compile(r"(?:^|/)(?:metadata\.pkl|[^/]+_\d+\.pt)$")

    @property
    def is_own(self) -> bool:
        """Return False: values that are no tensors are in the pickles, which are made anew."""
        return False

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return tensors with the names that they will have: those of their items are in front."""
        found = super().accepted(out)
        names = [*(variable.name for variable in found.variables), *(table.name for table in found.tables)]
        new = {name: ".".join(map(str, (item, *path))) for name, (item, path) in items_of(names).items()}
        infos = (
            replace(table.info, name=new[table.name], companion_of=new.get(table.info.companion_of, ""))
            for table in found.tables
        )
        tables = tuple(replace(table, info=info) for table, info in zip(found.tables, infos, strict=True))
        variables = tuple(replace(variable, name=new[variable.name]) for variable in found.variables)
        return replace(found, tables=tables, variables=variables)

    def dense(self, variable: OutVariable) -> Array:
        """Return the array of a tensor, cut by its rows where it has several."""
        return super().dense(replace(variable, in_slabs=bool(variable.shape and variable.shape[0] > 1)))

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files."""
        return lay_out(arrays, self.ranks)

    @property
    def written_ranks(self) -> int:
        """Return the ranks, all of which have a file of each item."""
        return self.ranks
