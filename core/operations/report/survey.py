"""A report from one listing, the headers of some versions, and samples of the values of a few.

The listing has all versions, and everything else is bounded: by `ReportLimits`, whatever there is. A version that is
damaged, or cannot be read, is in the report as such, and ends nothing.

Values are samples by a seed: histograms of the newest version, and how much values moved from one version to the next.
So memory and reads are bounded, and the same seed gives the same report.

The data of a report: values only. How a page shows them is the business of its caller.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped, size
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.ranking import best_versions
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.diff.tables import DifferenceSums, compare
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, plan_listed, read_policy
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.operations.statistics import Moments, TensorStats
from edl_ckpt.core.operations.summary import CheckpointSummary, TableSummary, VariableSummary, summarize
from edl_ckpt.core.operations.verify.check import Scope, verify_indexed, verify_job
from edl_ckpt.core.operations.verify.findings import Finding
from edl_ckpt.core.reading.element_samples import sample_values, sample_variable
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.sampling import RowSample, sample_table
from edl_ckpt.core.storage.location import Location, LocationLike


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

    def __repr__(self) -> str:
        found = counted(len(self.findings), "finding")
        return describe("OpenedVersion", escaped(self.version.ref), counted(len(self.tables), "table"), found)


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


LIMITS: Final = ReportLimits()
_NEWEST: Final = 8
"""So many of the newest versions are always among those whose headers are read."""


def report_location(
    location: LocationLike,
    policy: Policy | None = None,
    *,
    limits: ReportLimits = LIMITS,
    seed: int = 0,
    values: bool = True,
    reporter: Reporter = WARNINGS,
) -> LocationReport:
    """Return a report on a location; `policy` says what prune would keep, the stored one by default.

    Without `values` only names and headers are read. Raises NotFoundError when there is no such location, UsageError
    for a policy that cannot be judged, UnavailableError, and the error of listing.
    """
    listing = list_versions(Location.of(location))
    problems = list(listing.problems)
    retention, judged = _retention(listing, policy, problems)
    best = best_versions(listing, dict.fromkeys(name for version in listing.versions for name in version.metrics))
    shown = _shown(listing, retention, best, limits)
    opened, newest, notes = _opened(shown, limits, reporter)
    sampled = Samples(limits, seed, reporter)
    if newest is not None and values:
        whole = [each.version for each in opened if each.ok and each.version.is_good]
        sampled.take(newest, whole)
    names = [name for name, _ in Counter(n for v in shown for n in v.metrics).most_common()]
    report = LocationReport(
        location=listing.location,
        made=time.time(),
        seed=seed,
        limits=limits,
        total_versions=len(listing.versions),
        complete_versions=sum(v.shown_state == State.COMPLETE for v in listing.versions),
        size_bytes=sum(v.size_bytes for v in listing.versions),
        layout=listing.layout,
        versions=shown,
        metrics=tuple(names[: limits.metrics]),
        best={name: version for name, version in best.items() if name in names[: limits.metrics]},
        retention=retention,
        opened=tuple(replace(each, tables=largest(each.tables, limits.tensors)) for each in opened),
        newest=None if newest is None else _bounded(newest, limits),
        tensors=tuple(sampled.tensors),
        drift=tuple(sampled.drift),
        problems=tuple(problems),
        left_out=(*notes, *dict.fromkeys(sampled.left_out)),
        bytes_read=sum(each.bytes_read for each in opened) + sampled.bytes_read,
        unread=listing.unread or not judged or any(each.fault for each in opened) or sampled.unread,
    )
    return replace(report, left_out=(*_beyond(report, newest, len(names), values=values), *report.left_out))


def _retention(listing: Listing, policy: Policy | None, problems: list[str]) -> tuple[Retention | None, bool]:
    """Return what prune would keep, None without a rule, and whether everything could be read for it.

    What hinders it is an error for a policy that was given.
    """
    given = policy if policy is not None and not policy.is_empty else None
    try:
        rules = given or read_policy(listing.location)
        if rules.is_empty:
            return None, True
        plan = plan_listed([listing], rules)
    except EdlCkptError as error:
        if given is not None or isinstance(error, UnavailableError):
            raise
        problems.append(f"the stored policy cannot be judged: {error}")
        return None, False
    problems += (warning for warning in plan.warnings if warning not in problems)
    entries = {entry.path: entry for entry in plan.entries}
    found = Retention(plan.policy, given is None, entries, len(plan.deletions), plan.deleted_bytes)
    return found, not plan.unread


def _shown(
    listing: Listing, retention: Retention | None, best: Mapping[str, Version], limits: ReportLimits
) -> tuple[Version, ...]:
    """Return the newest versions, and of the older ones those that prune would keep, and tagged and best ones."""
    newest = _last(listing.versions, limits.versions)
    older = listing.versions[: len(listing.versions) - len(newest)]
    entries = retention.entries if retention else {}
    leading = {version.path for version in best.values()}
    leading |= {path for path, entry in entries.items() if entry.action is Action.KEEP}
    kept = [version for version in older if version.tags or version.path in leading]
    return (*_last(kept, limits.kept), *newest)


def _last(items: Sequence[Version], most: int) -> Sequence[Version]:
    return items[max(len(items) - most, 0) :]


def _opened(
    shown: Sequence[Version], limits: ReportLimits, reporter: Reporter
) -> tuple[list[OpenedVersion], CheckpointSummary | None, list[str]]:
    """Read the headers of some versions; return them, the summary of the newest that is whole, and what was cut."""
    chosen = _spread(shown, limits.opened)
    reporter.start("reading headers", len(chosen))
    opened: list[OpenedVersion] = []
    newest: CheckpointSummary | None = None
    left = limits.findings
    cut = 0
    for version in reversed(chosen):  # the newest findings are those that are kept
        found, summary = _open(version, beside=version is chosen[-1])
        newest = newest or (summary if found.ok and version.is_good else None)
        cut += max(len(found.findings) - left, 0)
        opened.append(replace(found, findings=found.findings[:left]))
        left -= len(opened[-1].findings)
        reporter.advance(1)
    notes = [f"{counted(cut, 'finding')} more, of older versions"] if cut else []
    return opened[::-1], newest, notes


def _spread(versions: Sequence[Version], most: int) -> list[Version]:
    """Return the newest versions, and others at even distances: at most so many, in order.

    >>> _spread(range(100), 12)
    [0, 30, 60, 91, 92, 93, 94, 95, 96, 97, 98, 99]
    """
    if len(versions) <= most:
        return list(versions)
    newest = min(_NEWEST, most)
    older, wanted = len(versions) - newest, most - newest
    places = {k * (older - 1) // max(wanted - 1, 1) for k in range(wanted)}
    return [versions[k] for k in sorted({*places, *range(older, len(versions))})]


def _open(version: Version, *, beside: bool) -> tuple[OpenedVersion, CheckpointSummary | None]:
    try:
        result, shards = verify_indexed(version, verify_job(version), Scope("quick", beside=beside))
    except UnavailableError:
        raise
    except EdlCkptError as error:
        return OpenedVersion(version, 0, (), (), 0, str(error)), None
    summary = summarize(version, shards)
    return OpenedVersion(version, summary.parameters, summary.tables, result.findings, result.bytes_read), summary


def _bounded(summary: CheckpointSummary, limits: ReportLimits) -> CheckpointSummary:
    return replace(
        summary,
        shards=summary.shards[: limits.shards],
        tables=largest(summary.tables, limits.names),
        variables=largest(summary.variables, limits.names),
    )


def _beyond(report: LocationReport, newest: CheckpointSummary | None, metrics: int, *, values: bool) -> Iterator[str]:
    """Yield what the limits of a report leave out, in words."""
    limits = report.limits
    shown = len(report.versions)
    opened = len(report.opened)
    if shown < report.total_versions:
        yield (
            f"{counted(report.total_versions - shown, 'older version')}: the newest {limits.versions} are shown, and"
            f" before them {counted(shown - limits.versions, 'version')} with a tag, the best by a metric, or kept by"
            " prune"
        )
    if opened < shown:
        headers = f"headers of {counted(shown - opened, 'version')}"
        yield f"{headers}: those of {opened} were read, the others are judged by names alone"
    if metrics > limits.metrics:
        yield f"{counted(metrics - limits.metrics, 'metric')} of few versions"
    if newest is not None:
        if len(newest.shards) > limits.shards:
            yield f"{counted(len(newest.shards) - limits.shards, 'shard')}: the first {limits.shards} are shown"
        for number, noun in ((len(newest.tables), "table"), (len(newest.variables), "variable")):
            if number > limits.names:
                yield f"{counted(number - limits.names, noun)}: the {limits.names} largest are listed"
        stored = sum(t.rows > 0 for t in newest.tables), sum(v.size_bytes > 0 for v in newest.variables)
        for number, noun in zip(stored, ("table", "variable"), strict=True):
            if values and number > limits.tensors:
                unread = f"values of {counted(number - limits.tensors, noun)}"
                yield f"{unread}: of each version the {limits.tensors} largest are sampled"
    yield "ids, and the bytes that seals know: verify reads them" if values else "ids and values"


Sized = TypeVar("Sized", TableSummary, VariableSummary)
Elements = list[npt.NDArray[np.generic]]


class _Sample(NamedTuple):
    """What is kept of one version until the next one was read."""

    ref: str
    tables: Mapping[str, RowSample]
    variables: Mapping[str, tuple[tuple[int, ...], Elements]]
    """By name the shape, and the elements at the chosen places."""


def largest(sized: Iterable[Sized], most: int) -> tuple[Sized, ...]:
    """Return the largest tables or variables, by name where sizes are equal."""
    return tuple(sorted(sized, key=lambda each: (-each.size_bytes, each.name))[:most])


@dataclass(slots=True)
class Samples:
    """What samples show: statistics of tensors, and the drift between versions.

    `left_out` says what is not compared or not shown; `unread` is True when some of it could not be read.
    """

    limits: ReportLimits
    seed: int
    reporter: Reporter
    tensors: list[SampledTensor] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bytes_read: int = 0
    unread: bool = False

    def take(self, newest: CheckpointSummary, versions: Sequence[Version]) -> None:
        """Sample the newest of some versions, which has this summary, and compare the versions up to it.

        These are the largest tables and variables of the newest one. What cannot be read is left out, by name.
        """
        most, size = self.limits.tensors, self.limits.sample_bytes
        tables = [t.name for t in largest((t for t in newest.tables if t.rows), most)]
        filled = (v for v in newest.variables if v.size_bytes and v.dtype in DTYPES)
        variables = [v.name for v in largest(filled, most)]
        self.reporter.start("sampling values", size * (len(tables) + len(variables)))
        with self._opened(versions[-1], "values of {}") as checkpoint:
            for name in tables:
                view = checkpoint.table(name)
                batches = sample_values(checkpoint, name, size, seed=self.seed)
                self._measure(name, "table", batches, view.rows * view.dim)
            for name in variables:
                batches = sample_variable(checkpoint, name, size, seed=self.seed)
                self._measure(name, "variable", batches, checkpoint.find_variable(name)[1].elements)
        compared = _last(versions, self.limits.compared)
        self.reporter.start("comparing samples", len(compared))
        before: _Sample | None = None
        for version in compared:
            with self._opened(version, "{} is not compared") as checkpoint:
                sample = self._sample(checkpoint, tables, variables)
                self.drift += _drifts(before, sample) if before else ()
                before = sample
            self.reporter.advance(1)

    @contextmanager
    def _opened(self, version: Version, fault: str) -> Iterator[Checkpoint]:
        """Open a version; an error of reading it ends the block, and says why something of it is left out."""
        try:
            with open_checkpoint(version) as checkpoint:
                yield checkpoint
                self.bytes_read += checkpoint.bytes_read
        except UnavailableError:
            raise
        except EdlCkptError as error:
            self.unread = True
            self.left_out.append(f"{fault.format(version.ref)}: {error}")

    def _measure(self, name: str, kind: str, batches: Iterable[npt.NDArray[np.generic]], elements: int) -> None:
        moments = Moments()
        for batch in batches:
            moments.add(batch)
        self.tensors.append(SampledTensor(moments.result(name, kind), elements))
        self.reporter.advance(self.limits.sample_bytes)

    def _sample(self, checkpoint: Checkpoint, names: Sequence[str], variable_names: Sequence[str]) -> _Sample:
        most, id_bytes, seed = self.limits.sample_bytes, self.limits.id_bytes, self.seed
        count = self.limits.remote_rows if checkpoint.is_far else self.limits.rows
        tables: dict[str, RowSample] = {}
        variables: dict[str, tuple[tuple[int, ...], Elements]] = {}
        for name in filter(checkpoint.has_table, names):
            sample = sample_table(checkpoint, name, count, seed=seed, id_bytes=id_bytes, most_bytes=most)
            if sample is None:
                why = f"a shard has more than {id_bytes} bytes of its ids"
                self.left_out.append(f"table {name} is not compared: {why}")
            else:
                tables[name] = sample
        for name in filter(checkpoint.__contains__, variable_names):
            if not checkpoint.find_variable(name)[1].dtype.is_ours:
                continue
            elements = list(sample_variable(checkpoint, name, most, seed=seed))
            variables[name] = checkpoint.find_variable(name)[1].shape, elements
        return _Sample(checkpoint.version.ref, tables, variables)


def _drifts(before: _Sample, after: _Sample) -> Iterator[Drift]:
    """Yield the changes of what both versions have."""
    for name, sample in after.tables.items():
        if name in before.tables:
            yield _table_drift(name, before.ref, after.ref, before.tables[name], sample)
    for name, (shape, elements) in after.variables.items():
        if name in before.variables and before.variables[name][0] == shape:
            yield _variable_drift(name, before.ref, after.ref, before.variables[name][1], elements)


def _table_drift(name: str, a: str, b: str, before: RowSample, after: RowSample) -> Drift:
    """Compare rows by their ids, within what was looked at on both sides."""
    mine, theirs = before.within(after), after.within(before)
    ids, other = before.ids[mine], after.ids[theirs]
    _, left, right = np.intersect1d(ids, other, assume_unique=True, return_indices=True)
    x, y = before.vectors[mine][left], after.vectors[theirs][right]
    sums = DifferenceSums()
    changed = len(left)
    comparable = x.shape == y.shape
    if comparable:
        changed = int(np.count_nonzero(compare(x, y, 0.0, sums).differ.any(axis=1)))
    added, removed = len(other) - len(right), len(ids) - len(left)
    sampled = len(left) + added + removed
    return Drift("table", name, a, b, sampled, added, removed, changed, *_measures(sums, comparable and len(left) > 0))


def _variable_drift(name: str, a: str, b: str, before: Elements, after: Elements) -> Drift:
    sums = DifferenceSums()
    changed = 0
    sampled = 0
    comparable = [len(x) for x in before] == [len(y) for y in after]  # else the dtype has another size
    for x, y in zip(before, after, strict=False) if comparable else ():
        changed += int(np.count_nonzero(compare(x, y, 0.0, sums).differ))
        sampled += len(x)
    return Drift("variable", name, a, b, sampled, 0, 0, changed, *_measures(sums, comparable))


def _measures(sums: DifferenceSums, comparable: bool) -> tuple[float | None, float | None, float | None]:  # noqa: FBT001
    """Return the relative change, the cosine and the largest change."""
    if not comparable:
        return None, None, None
    return 0.0 if sums.change == 0 else sums.relative, sums.cosine, sums.max_abs
