"""The ids behind findings, in a file for other programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_ckpt.cli.terminal.csv_rows import as_csv
from edl_ckpt.cli.terminal.documents import to_json

if TYPE_CHECKING:
    from edl_ckpt.core.kernel.bulk import I64
    from edl_ckpt.core.operations.verify.findings import Finding


@dataclass(slots=True)
class IdFile:
    """A file of the ids of findings: a line each, of CSV, or of JSON if the file is named so."""

    path: str
    _begun: bool = False

    def take(self, ref: str, findings: Iterable[tuple[Finding, I64]]) -> None:
        """Append the ids of a version's findings; on an error, as of `write_report`, nothing is written."""
        from edl_ckpt.core.storage.faults import storage_errors

        is_json = self.path.endswith((".jsonl", ".ndjson"))
        with storage_errors(self.path), open(self.path, "a" if self._begun else "w", encoding="utf-8") as file:
            start = file.tell()
            file.write("" if self._begun or is_json else "table,id,shard,finding,ref\n")
            try:
                for finding, ids in findings:
                    table, rest = [finding.subject], [finding.shard, finding.code, ref]
                    before, after = f"{as_csv([table])[:-1]},", f",{as_csv([rest])}"
                    if is_json:
                        before = to_json({"table": finding.subject, "id": 0})[:-2]
                        after = f", {to_json(dict(zip(('shard', 'finding', 'ref'), rest, strict=True)))[1:]}\n"
                    file.write(before + (after + before).join(map(str, ids.tolist())) + after)
            except BaseException:  # it may be called again for this version
                file.truncate(start)
                raise
        self._begun = True
