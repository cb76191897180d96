"""Values of a report: histograms of the newest version, and how much values moved from one version to the next.

All of them are samples by a seed. So memory and reads are bounded, and the same seed gives the same report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.diff.measures import Sums, compare
from edl_ckpt.core.operations.report.results import Drift, ReportLimits, SampledTensor
from edl_ckpt.core.operations.stats import Moments
from edl_ckpt.core.operations.summary import CheckpointSummary
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.sampling import RowSample, sample_table, sample_values, sample_variable


class Tensors(NamedTuple):
    """The names of the tables and variables whose values are read."""

    tables: tuple[str, ...]
    variables: tuple[str, ...]


Elements = list[npt.NDArray[np.generic]]


class _Sample(NamedTuple):
    """What is kept of one version until the next one was read."""

    ref: str
    tables: Mapping[str, RowSample]
    variables: Mapping[str, tuple[tuple[int, ...], Elements]]
    """By name the shape, and the elements at the chosen places."""


def chosen_tensors(newest: CheckpointSummary, most: int) -> Tensors:
    """Return the largest tables and variables of a version, at most so many of each."""
    tables = sorted((t for t in newest.tables if t.rows), key=lambda t: (-t.size_bytes, t.name))
    variables = sorted((v for v in newest.variables if v.size_bytes), key=lambda v: (-v.size_bytes, v.name))
    return Tensors(tuple(t.name for t in tables[:most]), tuple(v.name for v in variables[:most]))


@dataclass(frozen=True, slots=True)
class Samples:
    """What samples show: statistics of tensors, and the drift between versions.

    `left_out` says what is not compared or not shown; `unread` is True when some of it could not be read.
    """

    tensors: tuple[SampledTensor, ...] = ()
    drift: tuple[Drift, ...] = ()
    left_out: tuple[str, ...] = ()
    bytes_read: int = 0
    unread: bool = False


def histograms(version: Version, tensors: Tensors, *, limits: ReportLimits, seed: int, reporter: Reporter) -> Samples:
    """Return statistics of samples of some tensors; what cannot be read is left out, by name."""
    found: list[SampledTensor] = []
    bytes_read = 0
    reporter.start("sampling values", limits.sample_bytes * (len(tensors.tables) + len(tensors.variables)))
    try:
        with open_checkpoint(version) as checkpoint:
            for name in tensors.tables:
                view = checkpoint.table(name)
                batches = sample_values(checkpoint, name, limits.sample_bytes, seed=seed)
                found.append(_measured(name, "table", batches, view.rows * view.dim))
                reporter.advance(limits.sample_bytes)
            for name in tensors.variables:
                batches = sample_variable(checkpoint, name, limits.sample_bytes, seed=seed)
                found.append(_measured(name, "variable", batches, checkpoint.find_variable(name)[1].elements))
                reporter.advance(limits.sample_bytes)
            bytes_read = checkpoint.bytes_read
    except UnavailableError:
        raise
    except EdlCkptError as error:
        return Samples(tuple(found), left_out=(f"values of {version.ref}: {error}",), unread=True)
    return Samples(tuple(found), bytes_read=bytes_read)


def _measured(name: str, kind: str, batches: Iterator[npt.NDArray[np.generic]], elements: int) -> SampledTensor:
    moments = Moments()
    for batch in batches:
        moments.add(batch)
    return SampledTensor(moments.result(name, kind), elements)


def compare_versions(
    versions: Sequence[Version], tensors: Tensors, *, limits: ReportLimits, seed: int, reporter: Reporter
) -> Samples:
    """Compare samples of each version with those of the one before it; one that cannot be read is left out, by name."""
    before: _Sample | None = None
    drift: list[Drift] = []
    left_out: list[str] = []
    bytes_read, unread = 0, False
    reporter.start("comparing samples", len(versions))
    for version in versions:
        try:
            with open_checkpoint(version) as checkpoint:
                sample = _sample(checkpoint, tensors, limits, seed, left_out)
                bytes_read += checkpoint.bytes_read
        except UnavailableError:
            raise
        except EdlCkptError as error:
            unread = True
            left_out.append(f"{version.ref} is not compared: {error}")
            continue
        finally:
            reporter.advance(1)
        if before is not None:
            drift += _drifts(before, sample)
        before = sample
    left = tuple(dict.fromkeys(left_out))
    return Samples(drift=tuple(drift), left_out=left, bytes_read=bytes_read, unread=unread)


def _sample(checkpoint: Checkpoint, tensors: Tensors, limits: ReportLimits, seed: int, left_out: list[str]) -> _Sample:
    count = limits.remote_rows if checkpoint.is_far else limits.rows
    tables = {}
    for name in filter(checkpoint.has_table, tensors.tables):
        sample = sample_table(
            checkpoint, name, count, seed=seed, id_bytes=limits.id_bytes, most_bytes=limits.sample_bytes
        )
        if sample is None:
            left_out.append(f"table {name} is not compared: a shard has more than {limits.id_bytes} bytes of its ids")
        else:
            tables[name] = sample
    variables = {
        name: (
            checkpoint.find_variable(name)[1].shape,
            list(sample_variable(checkpoint, name, limits.sample_bytes, seed=seed)),
        )
        for name in tensors.variables
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
