"""Values of a report: histograms of the newest version, and how much values moved from one version to the next.

All of them are samples by a seed. So memory and reads are bounded, and the same seed gives the same report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.diff.measures import Sums, compare
from edl_ckpt.core.operations.report.results import Drift, ReportLimits, SampledTensor
from edl_ckpt.core.operations.stats import Moments
from edl_ckpt.core.operations.summary import CheckpointSummary, TableSummary, VariableSummary
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.sampling import RowSample, sample_table, sample_values, sample_variable

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
        variables = [v.name for v in largest((v for v in newest.variables if v.size_bytes), most)]
        self.reporter.start("sampling values", size * (len(tables) + len(variables)))
        with self._opened(versions[-1], "values of {}") as checkpoint:
            for name in tables:
                view = checkpoint.table(name)
                batches = sample_values(checkpoint, name, size, seed=self.seed)
                self._measure(name, "table", batches, view.rows * view.dim)
            for name in variables:
                batches = sample_variable(checkpoint, name, size, seed=self.seed)
                self._measure(name, "variable", batches, checkpoint.find_variable(name)[1].elements)
        compared = versions[max(len(versions) - self.limits.compared, 0) :]
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
        limits, seed = self.limits, self.seed
        count = limits.remote_rows if checkpoint.is_far else limits.rows
        tables = {}
        for name in filter(checkpoint.has_table, names):
            sample = sample_table(
                checkpoint, name, count, seed=seed, id_bytes=limits.id_bytes, most_bytes=limits.sample_bytes
            )
            if sample is None:
                why = f"a shard has more than {limits.id_bytes} bytes of its ids"
                self.left_out.append(f"table {name} is not compared: {why}")
            else:
                tables[name] = sample
        variables = {
            name: (
                checkpoint.find_variable(name)[1].shape,
                list(sample_variable(checkpoint, name, limits.sample_bytes, seed=seed)),
            )
            for name in variable_names
            if name in checkpoint
        }
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
    sums, changed, comparable = Sums(), len(left), x.shape == y.shape
    if comparable:
        changed = int(np.count_nonzero(compare(x, y, 0.0, sums).differ.any(axis=1)))
    added, removed = len(other) - len(right), len(ids) - len(left)
    sampled = len(left) + added + removed
    return Drift("table", name, a, b, sampled, added, removed, changed, *_measures(sums, comparable and len(left) > 0))


def _variable_drift(name: str, a: str, b: str, before: Elements, after: Elements) -> Drift:
    sums, changed, sampled = Sums(), 0, 0
    comparable = [len(x) for x in before] == [len(y) for y in after]  # else the dtype has another size
    for x, y in zip(before, after, strict=False) if comparable else ():
        changed += int(np.count_nonzero(compare(x, y, 0.0, sums).differ))
        sampled += len(x)
    return Drift("variable", name, a, b, sampled, 0, 0, changed, *_measures(sums, comparable))


def _measures(sums: Sums, comparable: bool) -> tuple[float | None, float | None, float | None]:  # noqa: FBT001
    """Return the relative change, the cosine and the largest change."""
    if not comparable:
        return None, None, None
    return 0.0 if sums.change == 0 else sums.relative, sums.cosine, sums.max_abs
