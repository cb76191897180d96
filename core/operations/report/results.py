"""The data of a report: values only. How a page shows them is the business of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_ckpt.core.base.words import counted, describe, escaped, size
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.prune.plan import PruneEntry
from edl_ckpt.core.operations.stats import TensorStats
from edl_ckpt.core.operations.summary import CheckpointSummary, TableSummary
from edl_ckpt.core.operations.verify.findings import Finding
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """How much a report looks at and has, at most. Whatever is left out is counted, and named in `left_out`."""

    versions: int = 200
    """The newest versions."""
    kept: int = 50
    """Older versions that have a tag, are the best by a metric, or that prune would keep."""
    opened: int = 24
    """Versions whose headers are read: the newest ones, and others at even distances."""
    compared: int = 6
    """The newest versions whose values are compared, each with the one before it."""
    tensors: int = 12
    """Tables, and as many variables, whose values are read: the largest of the newest version."""
    metrics: int = 12
    """Metrics, those of most versions first."""
    shards: int = 128
    names: int = 100
    """Tables, and as many variables, that are listed: the largest."""
    findings: int = 200
    rows: int = 512
    """Rows of a table that are compared; fewer on remote storage, where each one is a request."""
    remote_rows: int = 64
    sample_bytes: int = 1 << 20
    """Bytes of the values of a tensor that are read for its histogram, and as many of a variable to compare it."""
    id_bytes: int = 16 << 20
    """Bytes of the ids of a table that are read in each version to compare it."""


@dataclass(frozen=True, slots=True)
class OpenedVersion:
    """A version whose headers were read: its tables, and what verify finds at the level `quick`."""

    version: Version
    parameters: int
    tables: tuple[TableSummary, ...]
    findings: tuple[Finding, ...]
    bytes_read: int
    fault: str = ""
    """Why its headers could not be read; '' when they could."""

    @property
    def ok(self) -> bool:
        """Return True when it could be read, and no finding is an error."""
        return not self.fault and all(finding.severity != "error" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class SampledTensor:
    """Statistics of a sample of a tensor, which has `elements` of `of_elements`: all of them, or some by a seed."""

    stats: TensorStats
    of_elements: int


@dataclass(frozen=True, slots=True)
class Drift:
    """The change of a tensor from one version to the next, as far as a sample shows it. Measures as in `DenseDiff`.

    For a table `sampled` counts rows of ids that either version has; `added`, `removed` and `changed` are some of them.
    For a variable it counts elements.
    """

    kind: str
    name: str
    a: str
    b: str
    sampled: int
    added: int
    removed: int
    changed: int
    relative: float | None
    cosine: float | None
    max_abs: float | None


@dataclass(frozen=True, slots=True)
class Retention:
    """What prune would keep: the rules in words, whether they are stored or were given, and its entry by path."""

    rules: tuple[str, ...]
    stored: bool
    entries: Mapping[str, PruneEntry] = field(hash=False)
    deletions: int
    deleted_bytes: int


@dataclass(frozen=True, slots=True)
class LocationReport:
    """A location at one moment. Versions are in the order of their numbers."""

    location: Location
    made: float
    """Seconds since the epoch."""
    seed: int
    limits: ReportLimits
    total_versions: int
    complete_versions: int
    size_bytes: int
    layout: str | None
    versions: tuple[Version, ...]
    metrics: tuple[str, ...]
    """The names of the metrics that are shown."""
    best: Mapping[str, Version] = field(hash=False)
    """The best version by each metric whose better end is known."""
    retention: Retention | None
    """None without any rule."""
    opened: tuple[OpenedVersion, ...]
    newest: CheckpointSummary | None
    """The newest version whose headers show no error, which histograms and shards are of."""
    tensors: tuple[SampledTensor, ...]
    drift: tuple[Drift, ...]
    problems: tuple[str, ...]
    """Warnings about what cannot be read, and about names on which ElasticDL's scan fails."""
    left_out: tuple[str, ...]
    """What was not read, or is not shown, in words."""
    bytes_read: int
    unread: bool = False
    """True when something that is there could not be read: a version, metadata, the stored policy, values."""

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Return all findings, each with the reference of its version."""
        return tuple((opened.version.ref, finding) for opened in self.opened for finding in opened.findings)

    def __repr__(self) -> str:
        versions = counted(self.total_versions, "version")
        findings = counted(len(self.findings), "finding") if self.findings else ""
        return describe("LocationReport", escaped(self.location.url), versions, size(self.size_bytes), findings)
