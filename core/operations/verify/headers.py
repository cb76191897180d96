"""The faults that names and headers of a version show, without reading ids or values."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from edl_ckpt.core.checkpoint.reader import Checkpoint, openings
from edl_ckpt.core.checkpoint.runs import mixed_runs
from edl_ckpt.core.errors import CorruptError, EdlCkptError, NotFoundError
from edl_ckpt.core.format import placement
from edl_ckpt.core.format.checks import LARGE_SHARD_BYTES
from edl_ckpt.core.format.consistency import cross_check
from edl_ckpt.core.format.generations import Draft, draft_shard
from edl_ckpt.core.format.indexing import index_shards
from edl_ckpt.core.format.model import (
    MISSING_LISTED,
    DenseEntry,
    DType,
    ShardFile,
    ShardIndex,
    State,
    TableEntry,
    Version,
)
from edl_ckpt.core.format.names import parse_single_file, parse_version_dir, scan_crashes
from edl_ckpt.core.format.wire import Cursor
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.state.seal import base_name
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.words import abridged, missing_shards

_COUNTS: Final = 20


def check_listing(version: Version, report: Report) -> None:
    """Report the faults that names alone show."""
    for name in version.extra:
        report.add("extra-file", f"{name!r} is not a shard of this version", path=version.path, subject=name)
    if version.state is State.MIXED:
        counts: dict[int, set[int]] = {}
        for shard in version.shards:
            counts.setdefault(shard.ps_num, set()).add(shard.ps_id)
        parts = [f"{len(ids)} of {n}" for n, ids in sorted(counts.items())]
        whole = [n for n, ids in counts.items() if len(ids) == n]
        extra = f"; the set of {whole[0]} is complete" if len(whole) == 1 else ""
        message = f"the shards have different ps_num: {abridged(parts, _COUNTS)}{extra}"
        report.add("mixed-ps-num", message, path=version.path)
        return
    if version.ps_num is None:
        report.add("missing-shard", "the version has no shard", path=version.path)
    writing = " (the version changed a moment ago: a job may be writing it)" if version.state is State.WRITING else ""
    for gap in _missing(version):
        first, last = (version.layout.shard_file(i, version.ps_num or 0) for i in (gap.start, gap.stop - 1))
        report.add(
            "missing-shard", missing_shards([gap], version.ps_num) + writing, path=version.path,
            subject=first if first == last else f"{first} to {last}",
        )  # fmt: skip


def check_runs(version: Version, report: Report) -> None:
    """Report a version whose shards are of two runs of a job, as far as the savers left notes."""
    why = mixed_runs(version)
    if why:
        report.add("mixed-runs", why, path=version.path)


def _missing(version: Version) -> Iterable[range]:
    """Return the missing shards one by one; those of a version that lacks very many, by the gaps between its files."""
    if version.missing_count > MISSING_LISTED:
        return version.missing_ranges
    return [range(ps_id, ps_id + 1) for ps_id in version.missing]


def check_location(version: Version, report: Report) -> None:
    """Report the names on which ElasticDL's scan of the whole location raises an exception, whatever the version is."""
    name, store = base_name(version.path), open_store(version.location)
    if parse_version_dir(name) is None and parse_single_file(name) is None and not version.uuid:
        return  # a file by itself: ElasticDL scans nothing there

    def inside(entry: str) -> Collection[str] | None:
        if entry == name and not version.uuid:  # a request less
            return version.names_inside
        with suppress(EdlCkptError):
            found = store.names(entry)
            return None if not found and os.path.isfile(store.path(entry)) else found
        return ()

    for crashing in scan_crashes(store.names(""), inside):
        where = " where a directory lists it first" if "/" in crashing else ""
        message = f"ElasticDL's scan of the whole location raises an exception on this name{where}"
        report.add("scan-crash", message, path=version.location.url, subject=crashing)


def open_readable_shards(
    version: Version,
    report: Report,
    stack: ExitStack,
    opened: dict[str, RangeReader],
) -> tuple[Checkpoint, bool]:
    """Open every shard that can be indexed, report the others, and return whether every shard is indexed.

    `opened` gets every reader that could be opened, by file name, even if its shard cannot be indexed.
    """
    store = open_store(version.location)
    readers: dict[int, RangeReader] = {}
    drafts: list[Draft] = []
    files = _one_set(version)

    def begin(file: ShardFile) -> Draft | EdlCkptError:
        try:
            reader = store.open(file.path)
            stack.callback(reader.close)
            opened[base_name(file.path)] = readers[file.ps_id] = reader
            return draft_shard(file, Cursor(reader))
        except (CorruptError, NotFoundError) as error:
            return error

    for file, result in zip(files, run_parallel(begin, files, openings(store)), strict=True):
        if isinstance(result, Draft):
            drafts.append(result)
            continue
        readers.pop(file.ps_id, None)
        if isinstance(result, CorruptError):
            report.add_error(result, file)
        else:
            report.add("missing-shard", f"the shard cannot be opened: {result.message}", shard=file)
    shards: list[ShardIndex] = []
    while drafts:
        try:
            shards = index_shards([_fresh(d) for d in drafts], version.version, workers=openings(store))
            break
        except CorruptError as error:
            bad = [d for d in drafts if d.file.path == error.path] or drafts[:1]
            if error.code == "empty-file":  # the same holds for every empty one: thousands take one turn
                bad = [d for d in drafts if d.cursor.size_bytes == 0]
            for draft in bad:
                report.add_error(error, draft.file)
            gone = set(map(id, bad))
            drafts = [d for d in drafts if id(d) not in gone]
    checkpoint = Checkpoint(version, shards, readers)
    return checkpoint, len(shards) == version.ps_num


def _one_set(version: Version) -> Sequence[ShardFile]:
    """Return the shards to check: of a mixed directory the largest complete set, or else the largest set."""
    if version.state is not State.MIXED:
        return version.shards
    sets: dict[tuple[int, str], list[ShardFile]] = {}
    for shard in version.shards:
        sets.setdefault((shard.ps_num, shard.path.rpartition(".")[2]), []).append(shard)
    return max(sets.values(), key=lambda s: (len(s) == s[0].ps_num, s[0].ps_num))


def _fresh(draft: Draft) -> Draft:
    """Return a draft in its first state, for another attempt with fewer shards."""
    return Draft(
        draft.file,
        draft.cursor,
        fields=draft.fields,
        candidates=draft.candidates,
        version=draft.version,
        unknown=[u for u in draft.unknown if u[0] > 5],
    )


def check_headers(version: Version, checkpoint: Checkpoint, report: Report) -> None:
    """Report the faults that headers show: contradictions, misplaced variables, sizes, generation, unknown fields."""
    for shard in checkpoint.shards:
        for problem in shard.problems:
            report.add_problem(shard, problem)
        for number, offset in _first_of_each(shard.unknown_fields):
            report.add(
                "unknown-field", f"field {number} is unknown: no reader knows it, and no restore keeps it",
                shard=shard.file, subject=str(number), offset=offset,
            )  # fmt: skip
        if shard.file.size_bytes > LARGE_SHARD_BYTES:
            report.add(
                "over-2gib",
                f"the shard has {shard.file.size_bytes} bytes: Python's protobuf cannot parse it",
                shard=shard.file,
            )
        for kind, entry, dtype in _odd_dtypes(shard):
            report.add(
                "unsupported-dtype", f"the {kind} has dtype {dtype.name}: ElasticDL's Python restore raises ValueError",
                shard=shard.file, subject=entry.name, offset=entry.offset,
            )  # fmt: skip
        _check_placed(shard, report)
    for shard, problem in cross_check(version, checkpoint.shards):
        if problem.code != "lost-info":
            report.add_problem(shard, problem)
    generation = checkpoint.generation
    if generation and generation != "v4":
        report.add(
            "old-generation",
            f"the shards have wire generation {generation}; today's ElasticDL reads only v4",
            path=version.path,
        )
    if version.ps_num and placement.crowded_shards(version.ps_num) < version.ps_num:
        usable = placement.crowded_shards(version.ps_num)
        message = f"with {version.ps_num} servers only {usable} can have dense variables"
        report.add("dense-skew", message, path=version.path)


def _first_of_each(fields: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    first: dict[int, int] = {}
    for number, offset in fields:
        first.setdefault(number, offset)
    return sorted(first.items())


def _odd_dtypes(shard: ShardIndex) -> Iterator[tuple[str, DenseEntry | TableEntry, DType]]:
    """Yield the entries that today's ElasticDL cannot read. Only in v4 shards: older ones could have float16."""
    if shard.generation != "v4":
        return
    for variable in shard.variables:
        if not variable.dtype.elasticdl:
            yield "variable", variable, variable.dtype
    for table in shard.tables:
        dtype = table.dtype or table.empty_dtype
        if dtype and not dtype.elasticdl:
            yield "table", table, dtype


def _check_placed(shard: ShardIndex, report: Report) -> None:
    for variable in shard.variables:
        owner = placement.variable_owner(variable.name, shard.file.ps_num)
        if owner != shard.file.ps_id:
            report.add(
                "misplaced-variable", f"the variable belongs to shard {owner}", shard=shard.file, subject=variable.name,
                offset=variable.offset,
            )  # fmt: skip
