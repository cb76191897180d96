"""Findings: each is one error or warning, with its file, shard, subject and offset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.notebook import card, table
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.model.versions import DAMAGED, SUSPECT, ShardFile, State, shown_state

if TYPE_CHECKING:  # which needs numpy
    from edl_ckpt.core.proof.fingerprint import Fingerprint

UNFINISHED: Final = frozenset({State.WRITING.value, State.INCOMPLETE.value})
"""The words for a version that is no whole, or not yet: it is neither ok nor damaged, and its verdict is this word."""
LEVELS: Final = ("quick", "default", "deep")
NAMED: Final = 3
"""Ids that a finding has; `ids_of` reads all of them."""
CHECKS: Final = ("names", "headers", "ids", "values", "seal")
"""What verify looks at, in this order; `quick` leaves ids and values out, and `default` values."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One error or warning."""

    severity: str
    code: str
    shard: int | None
    path: str
    subject: str
    offset: int | None
    message: str
    hint: str = ""
    check: str = ""
    """The one of CHECKS that found it."""
    ids: tuple[int, ...] = ()
    """Ids of rows with the fault, at most NAMED; empty for other faults."""
    count: int | None = None
    """The number of rows, ids or values with the fault, where it was counted."""

    @property
    def place(self) -> str:
        """Return the shard, the subject and the byte, as far as they are known: 'shard 3, user, byte 12'."""
        shard = "" if self.shard is None else f"shard {self.shard}"
        offset = "" if self.offset is None else f"byte {self.offset}"
        return ", ".join(filter(None, (shard, self.subject, offset)))


@dataclass(frozen=True, slots=True)
class Check:
    """One of CHECKS that was made, and how long it took; the bytes of a seal are compared while values are checked."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ValueSample:
    """A random part of the values: so many percent of their bytes, chosen by a seed."""

    percent: float
    seed: int


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """What becomes of the rows of a table: those on the rank that looks for them are restored."""

    name: str
    rows: int
    restored: int
    dropped: int
    twice: int
    """Ids that are loaded again, from the files of another save or because the table has them twice."""
    misrouted: int
    """Rows on a rank where nobody looks for them."""
    ids: tuple[int, ...]
    """Some of those that are not restored."""


@dataclass(frozen=True, slots=True)
class LoaderView:
    """What a loader would do, table by table, for so many ranks."""

    system: str
    world_size: int
    tables: tuple[LoadedTable, ...]


@dataclass(frozen=True, slots=True)
class Against:
    """How a version compares with a file of digests; `names` are all that the file has."""

    path: str
    names: int
    equal: int
    """Names whose content is the same."""
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    """Names that the version lacks, or whose digest could not be computed."""
    others: int
    """Names of the version that the file does not have: these were compared with nothing."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The findings of verify; `fingerprint` only when every value was read and every shard is whole."""

    ref: str
    level: Level
    findings: tuple[Finding, ...]
    fingerprint: str | None
    bytes_read: int
    sealed: bool = False
    """True when the version has a seal; at the level `deep` its bytes were compared with the seal."""
    shards: int = 0
    """The shards that the version must have; where its files disagree on that, the files that it has."""
    shards_read: int = 0
    """The shards whose headers were read. Only of these were ids and values read, as far as the level goes."""
    ids_read: bool = True
    """False when ids of these shards could not be read, and so neither the values of their rows."""
    checks: tuple[Check, ...] = ()
    """The checks that were made, in the order of CHECKS."""
    sample: ValueSample | None = None
    """The part of the values that was read at the level `default`; None when no part was asked for."""
    checksums: int = 0
    """The checksums of values in the files themselves that were compared at the level `deep`."""
    uncompared: tuple[str, ...] = ()
    """Items that no checksum is known of, with their kinds: at the level `deep` without a seal."""
    unread_files: tuple[str, ...] = ()
    """Files that were not read at the level `deep`: they have neither values nor a checksum, and no seal names them."""
    loader: LoaderView | None = None
    """What a system's own loader would do with the files, where that was asked for."""
    like: str = ""
    """The version whose tables and variables had to be there too; '' for none."""
    against: Against | None = None
    """How it compares with a file of digests, where that was asked for."""
    content: Fingerprint | None = field(default=None, repr=False, compare=False)
    """The fingerprint with the digest of each name."""
    state: State = State.COMPLETE
    """The state of the version as it was listed."""
    doubts: tuple[str, ...] = ()
    """Why it may not be whole although it has all its files, as it was listed; none of a version with a seal."""
    modified: float = 0.0
    """When the version changed last, in seconds since the epoch."""
    path: str = ""
    """The path of the version."""
    files: str = ""
    """What tells the files that were read from any others (`Version.files_identity`); '' where that is not certain."""
    begun: float = 0.0
    """When the verification began, in seconds since the epoch."""

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the names of the tensors that the index of a version names, and that were not read."""
        return tuple(dict.fromkeys(f.subject for f in self.findings if f.code == UNREAD))

    @property
    def ok(self) -> bool:
        """Return True for a version that is whole and in which no finding is an error; a warning may say more."""
        return self.is_whole and not self.has_errors

    @property
    def has_errors(self) -> bool:
        """Return True when a finding is an error; those of a version that is being written may be warnings."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def is_whole(self) -> bool:
        """Return False for a version that is being written, or whose save never finished."""
        return self.sealed or self.shown_state not in UNFINISHED  # a sealed one was whole once

    @property
    def shown_state(self) -> str:
        """Return the word for the version as `list` has it once this result is remembered."""
        doubts = () if self.sealed else self.doubts
        return shown_state(self.state, is_damaged=bool(self.own_errors), doubts=doubts)

    @property
    def own_errors(self) -> list[Finding]:
        """Return the errors in the version itself, whatever a loader or a comparison with another one says."""
        return [
            f
            for f in self.findings
            if f.severity == "error" and not f.code.startswith(("loader-", "like-", "against-"))
        ]

    @property
    def verdict(self) -> str:
        """Return the one word that every output has: ok, damaged, suspect, or the state if it is not whole."""
        if not self.is_whole:
            return self.shown_state
        if self.has_errors:
            return DAMAGED
        return SUSPECT if self.shown_state == SUSPECT else "ok"

    def __repr__(self) -> str:
        verdict, *facts = self._facts()
        return describe("VerifyResult", escaped(self.ref), verdict, counted(len(self.findings), "finding"), *facts)

    def _facts(self) -> tuple[str, ...]:
        return "ok" if self.ok else "not ok", f"level {self.level}", "sealed" if self.sealed else ""

    def _repr_html_(self) -> str:
        rows = ((f.code, f.severity, f.place, f.message, f.hint) for f in self.findings)
        columns = ("finding", "severity", "place", "message", "what to do")
        return card("VerifyResult", self.ref, self._facts(), [table(columns, rows, len(self.findings), "finding")])


WARNINGS: Final = frozenset(
    {
        "negative-id",
        "dense-skew",
        "empty-table-form",
        "over-2gib",
        "ambiguous-dtype",
        "old-generation",
        "unknown-field",
        "scan-crash",
        "old-seal",
        "suspect",
    }
)
"""Finding codes that leave a version restorable; all others are errors."""
_OWN_DTYPE: Final = (
    "`edl-ckpt reshard --force` with the same number of servers writes the dtype of the rows everywhere"
    " (on object storage: with --output)"
)
_OTHER_RANKS: Final = (
    "`--ranks` shows what other numbers of ranks would load; `edl-ckpt reshard --ranks N` writes the files anew"
)
_LIKE: Final = "if the model was changed on purpose, compare with a version of the new model"
_DIGESTS: Final = "the files are not the state that the digests were taken of: it is another step, or damage since"
_REWRITTEN: Final = "the bytes changed after the seal; if a job rewrote the version: edl-ckpt verify --seal --force"
UNREAD: Final = "unsupported-item"
"""The code of tensors that are not read."""
HINTS: Final = {
    UNREAD: "edl-ckpt does not read this tensor: its values were not checked, and no command writes them anew",
    "missing-file": "still being written, or the save was interrupted",
    "missing-shard": "still being written, or the save was interrupted",
    "other-format": "put the file itself in its place; nothing says what it should have",
    "two-systems": "move the files of one system away, unless both are of this step",
    "passed-over": "remove the files that are not meant; loaders may read other ones than edl-ckpt",
    "extra-file": "move the file away: ElasticDL refuses a version with more entries than shards",
    "misplaced-row": "ElasticDL moves such rows on restore; `edl-ckpt reshard` writes them to their shards",
    "misplaced-variable": "ElasticDL moves such variables on restore; `edl-ckpt reshard` writes them to their shards",
    "mixed-runs": "a restarted job has not saved all shards again, or is saving now; restore another version",
    "old-generation": "`edl-ckpt reshard` writes the current generation, the only one today's ElasticDL reads",
    "over-2gib": "`edl-ckpt reshard` to more servers makes shards that Python can read",
    "negative-id": "ElasticDL's Go servers drop negative ids that are not multiples of the number of shards",
    "scan-crash": "move other files away; `edl-ckpt reshard --output` writes a version in another location",
    "empty-file": "the save was interrupted, or the disk lost the data",
    "info-dtype-mismatch": _OWN_DTYPE,
    "table-dtype-mismatch": _OWN_DTYPE,
    "unknown-initializer": "ElasticDL cannot restore this version; `edl-ckpt export` and `import --map` write it with"
    " another initializer, or without the table",
    "unsupported-dtype": "ElasticDL cannot restore this version; `edl-ckpt export --dtype float32` and `import` convert"
    " floats that edl-ckpt can read",
    "old-seal": "`edl-ckpt verify --seal` renews it",
    "like-missing-table": _LIKE,
    "like-missing-variable": _LIKE,
    "like-dim": _LIKE,
    "like-shape": _LIKE,
    "like-dtype": _LIKE,
    "against-differs": _DIGESTS,
    "against-missing": _DIGESTS,
    "loader-drops": _OTHER_RANKS,
    "loader-misroutes": _OTHER_RANKS,
    "loader-twice": "remove the files of the other save; its rows may replace those of this one",
    "loader-fails": _OTHER_RANKS,
    "suspect": "no rule and no `latest` counts it; if the version is as it should be: edl-ckpt verify --seal",
    "truncated": "the save, or a copy of the file, was interrupted",
    "checksum-mismatch": _REWRITTEN,
    "fingerprint-mismatch": _REWRITTEN,
}


@dataclass(slots=True)
class Report:
    """Collects findings; several threads may add some, since a list appends at once."""

    findings: list[Finding] = field(default_factory=list)
    check: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def checking(self, check: str) -> Iterator[None]:
        """Name the check that is made in the block, and add its time to that check."""
        before, self.check, begin = self.check, check, time.perf_counter()
        self.seconds.setdefault(check, 0.0)
        try:
            yield
        finally:
            self.seconds[check] += time.perf_counter() - begin
            self.check = before

    def take(self, other: Report) -> None:
        """Add what other checks found, and their times."""
        self.findings += other.findings
        for check, seconds in other.seconds.items():
            self.seconds[check] = self.seconds.get(check, 0.0) + seconds

    def checks(self) -> tuple[Check, ...]:
        """Return the checks that were made."""
        return tuple(Check(name, self.seconds[name]) for name in CHECKS if name in self.seconds)

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
        ids: Sequence[int] = (),
        count: int | None = None,
        hint: str = "",
    ) -> None:
        """Add a finding, with at most NAMED of its ids. Its code gives severity and hint, unless they are set."""
        severity = "warning" if warning or code in WARNINGS else "error"
        ps_id, place = (shard.ps_id, shard.path) if shard else (None, path)
        hint = hint or HINTS.get(code, "")
        few = tuple(ids[:NAMED])
        self.findings.append(
            Finding(severity, code, ps_id, place, subject, offset, message, hint, self.check, few, count)
        )
