"""Findings: one thing each that is wrong or worth a warning, with file, shard, subject and offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from edl_ckpt.core.errors import CorruptError
from edl_ckpt.core.format.consistency import WARNINGS
from edl_ckpt.core.format.model import Problem, ShardFile, ShardIndex

LEVELS: Final = ("quick", "default", "deep")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth a warning."""

    severity: str
    code: str
    shard: int | None
    path: str
    subject: str
    offset: int | None
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What verify found; `fingerprint` only where every value was read and every shard is whole."""

    ref: str
    level: str
    findings: tuple[Finding, ...]
    fingerprint: str | None
    bytes_read: int
    sealed: bool = False
    """True when there is a record of what the bytes must be, and at the level `deep` they were compared with it."""

    @property
    def ok(self) -> bool:
        """Return True when nothing found is an error."""
        return all(finding.severity != "error" for finding in self.findings)


_HINTS: Final = {
    "missing-shard": "a job may still be writing it; else it is an orphan of a save that never finished",
    "extra-file": "move it away: ElasticDL counts the entries and refuses a directory with more than its shards",
    "misplaced-row": "ElasticDL re-places rows on restore; `edl-ckpt reshard` writes them where they belong",
    "misplaced-variable": "ElasticDL re-places variables on restore; `edl-ckpt reshard` puts them right",
    "old-generation": "`edl-ckpt reshard` writes the current generation, the only one today's ElasticDL reads",
    "over-2gib": "`edl-ckpt reshard` to more servers makes shards that Python can read",
    "negative-id": "Go servers drop negative ids that ps_num does not divide",
    "empty-file": "the save was cut short, or the disk lost it; restore another version",
    "truncated": "the save was cut short; restore another version",
    "checksum-mismatch": "restore another version; if a job wrote this one anew: verify --seal --force",
    "fingerprint-mismatch": "restore another version; if a job wrote this one anew: verify --seal --force",
}


@dataclass(slots=True)
class _Report:
    """Collects findings from several threads."""

    findings: list[Finding] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def add(
        self,
        code: str,
        message: str,
        *,
        shard: ShardFile | None = None,
        path: str = "",
        subject: str = "",
        offset: int | None = None,
        warning: bool = False,
    ) -> None:
        """Add a finding; its hint follows from its code, and its severity unless `warning` is said."""
        severity = "warning" if warning or code in WARNINGS else "error"
        found = Finding(
            severity,
            code,
            shard.ps_id if shard else None,
            shard.path if shard else path,
            subject,
            offset,
            message,
            _HINTS.get(code, ""),
        )
        with self.lock:
            self.findings.append(found)

    def add_problem(self, shard: ShardIndex, problem: Problem) -> None:
        """Add a problem that the index of a shard, or the comparison of shards, came with."""
        self.add(problem.code, problem.message, shard=shard.file, subject=problem.subject, offset=problem.offset)

    def add_error(self, error: CorruptError, shard: ShardFile) -> None:
        """Add what stopped the reading of a shard."""
        self.add(error.code, error.message, shard=shard, offset=error.offset)
