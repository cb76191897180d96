"""A new version from arrays in files of other tools, or from a checkpoint, placed for N servers.

As in a reshard: the survey counts ids, the plan has the offset of each row, and the execution streams values once. The
source and the version that is read back must have the same fingerprint, or nothing becomes visible. A source that is a
checkpoint is resharded to a version of another number, perhaps in another location. Which arrays become which variables
and tables: a map of names says it, else the source's own notes, else their names.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from shlex import quote
from typing import Any, Final

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import CorruptError, NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, meant
from edl_ckpt.core.catalog.files import directory_alone
from edl_ckpt.core.catalog.listing import (
    VersionLike,
    as_version,
    list_versions,
    parse_ref,
    resolve,
    split_version_dir,
)
from edl_ckpt.core.catalog.single_file import named_file
from edl_ckpt.core.catalog.target import free_target
from edl_ckpt.core.cluster.choice import ExecutorLike, check_source, check_target, job_of
from edl_ckpt.core.converting.changes import FLOATS
from edl_ckpt.core.converting.name_map import ROWS, NameMap, check_table, read_map, tables_of
from edl_ckpt.core.converting.names import new_names
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.source_proof import SourceProof
from edl_ckpt.core.operations.importing.archives import check_members
from edl_ckpt.core.operations.importing.arrays import ARRAY_ENDINGS, ArraySource
from edl_ckpt.core.operations.importing.bundle_arrays import SYSTEM
from edl_ckpt.core.operations.importing.columns import IDS_NAME, VECTORS_NAME
from edl_ckpt.core.operations.importing.source import (
    ArrayData,
    ArraysPlan,
    ImportedTable,
    NamedArrays,
    execute_import,
    prepare_import,
    row_numbers,
    value_of,
)
from edl_ckpt.core.operations.reshard.execute import ReshardPlan, prepare_reshard, reshard_version
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.sources.elasticdl.target import check_ps_num
from edl_ckpt.core.sources.registry import completes, directory_named, is_uuid
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import Location, LocationLike, open_objects
from edl_ckpt.core.storage.user_files import is_directory, is_file

__all__ = [
    "ArraysPlan",
    "NameMap",
    "as_checkpoint",
    "import_arrays",
    "import_checkpoint",
    "plan_arrays",
    "plan_checkpoint",
    "read_map",
    "tables_of",
]


def import_arrays(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    names: NameMap | None = None,
    layout: LayoutName | None = None,
    force: bool = False,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> WriteResult:
    """Write a new version of a location from a safetensors file, an .npz, a directory of .npy, or a framework's files.

    Without a map, the notes in the source name its tables; without notes, each pair X.ids and X.vectors is the table X.
    All other arrays are dense variables. Memory is a few batches, and at most about 80 MiB where ids that do not ascend
    are looked through for repeated ones. An `executor` on a cluster reads .safetensors, .npy and stored .npz, and
    writes to S3, or to a file system that its workers share; anything else is UnsupportedError. The location is locked
    while the version is written. Raises RefusedError for a version that exists, CorruptError for damaged files (with
    `force` not for values that differ from the checksums of a bundle: the new seal records it),
    UsageError for arrays that cannot be a table, UnsupportedError for a dtype that a checkpoint cannot contain,
    LockedError when another command holds the lock.

    >>> import numpy as np
    >>> np.savez("model.npz", **{"user.ids": np.arange(6), "user.vectors": np.ones((6, 4)), "bias": np.zeros(8)})
    >>> result = import_arrays("model.npz", "imported", 1, ps_num=2)
    >>> [shard.rows for shard in result.shards]
    [3, 3]
    """
    planned = _planned(
        source,
        location,
        version,
        ps_num,
        names=names,
        layout=layout,
        force=force,
        executor=executor,
        reporter=reporter,
        writes=True,
    )
    with planned as (plan, settings, job):
        for warning in (*plan.warnings, *settings.warnings):
            reporter.warn(warning)
        return execute_import(plan, settings, job, wait_seconds=wait_seconds)


def plan_arrays(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    names: NameMap | None = None,
    layout: LayoutName | None = None,
    force: bool = False,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> tuple[ArraysPlan, ReshardSettings]:
    """Return what `import_arrays` would do, from all ids of the source; nothing is written, and no lock is taken."""
    planned = _planned(
        source,
        location,
        version,
        ps_num,
        names=names,
        layout=layout,
        force=force,
        executor=executor,
        reporter=reporter,
        writes=False,
    )
    with planned as (plan, settings, _):
        return plan, settings


@contextmanager
def _planned(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    names: NameMap | None,
    layout: LayoutName | None,
    force: bool,
    executor: ExecutorLike | None,
    reporter: Reporter,
    writes: bool,
) -> Iterator[tuple[ArraysPlan, ReshardSettings, Job]]:
    """Yield the plan of an import, its settings and the job, with the source open, for which the job `writes` or not.

    The other arguments are those of `import_arrays`.
    """
    check_ps_num(ps_num)
    target = free_target(Location.of(location), version, layout=layout)
    job = job_of(executor, [], reporter=reporter)
    work = job.executor
    place = Location.of(source)
    trust = Trust(None, None, force, reporter=reporter, source=place.url)
    with ArraySource(place, names, shared=work.is_cluster, trust=trust) as opened:
        arrays, read_before = assign_names(opened), work.bytes_read()
        for warning in opened.warnings:
            reporter.warn(warning)
        for file in [value_of(opened.location, reader) for reader in arrays.readers[:1] if opened.shared]:
            check_source(work, file.place, file.path, reporter=reporter)
        if writes:
            check_target(work, target.location, arrays.size_bytes, reporter=reporter)
        arrays.proof = SourceProof(trust, opened.sums, opened.compared)
        arrays.leave_out(opened.left_out)
        if opened.members:
            archive = value_of(opened.location, opened.members[0].base)
            arrays.proof.compared += check_members(opened.members, archive, job, trust)
        if opened.sums is not None:
            trust.version = opened.sums.checkpoint.version
        plan, settings = prepare_import(arrays, target, ps_num, job)
        survey = replace(plan.survey, bytes_read=arrays.bytes_read + work.bytes_read() - read_before)
        yield replace(plan, survey=survey), settings, job


def as_checkpoint(source: LocationLike, *, reporter: Reporter = WARNINGS) -> Version | None:
    """Return a source as a version: a reference, a checkpoint_dir or one file; None for files of other tools.

    A tensor bundle of TensorFlow is imported as arrays, since a map or the notes of an export may name its tables.
    """
    version = _as_version(Location.of(source), reporter)
    return None if version is not None and version.layout.system == SYSTEM else version


def _as_version(place: Location, reporter: Reporter) -> Version | None:
    path, ending = place.local_path, place.url.lower()
    if path is not None and is_file(path) and completes(place.split()[1]):
        return resolve(parse_ref(place.url, options=place.options), reporter=reporter)
    if ending.endswith(ARRAY_ENDINGS) and (path is None or is_file(path)):
        return None
    ref = parse_ref(place.url, options=place.options)
    try:
        alone = named_file(ref)
    except (CorruptError, UnsupportedError):
        if ending.endswith((".ckpt", ".chkpt")):
            raise
        return None  # perhaps arrays in a format that this module does not know
    if alone is not None:
        return alone
    by_name = "@" in place.url or split_version_dir(place) is not None or is_uuid(place.split()[1])
    if by_name or _is_checkpoint_dir(place):
        return resolve(ref, reporter=reporter)
    return None


def _is_checkpoint_dir(place: Location) -> bool:
    """Return True for a location with versions rather than files of another tool."""
    path = place.local_path
    if path is None:
        return any(directory_named(name) is not None or is_uuid(name) for name in open_objects(place).names(""))
    if not is_directory(path) or list_versions(place).versions:
        return is_directory(path)
    alone = directory_alone(place)
    return alone is not None and alone.layout.system != "safetensors"  # arrays, which a map may name


def import_checkpoint(
    source: VersionLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    layout: LayoutName | None = None,
    force: bool = False,
    executor: ExecutorLike | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> WriteResult:
    """Write a source as version `version` of a location, for `ps_num` servers; `force` and errors as for a reshard."""
    where = Location.of(location)
    return reshard_version(
        source,
        ps_num,
        output=where,
        layout=layout,
        number=version,
        executor=executor,
        force=force,
        wait_seconds=wait_seconds,
        reporter=reporter,
    )


def plan_checkpoint(
    source: VersionLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    layout: LayoutName | None = None,
    force: bool = False,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> tuple[ReshardPlan, ReshardSettings]:
    """Return what `import_checkpoint` would do; nothing is written, and no lock is taken."""
    return prepare_reshard(
        as_version(source),
        ps_num,
        output=Location.of(location),
        layout=layout,
        number=version,
        executor=executor,
        force=force,
        reporter=reporter,
    )


_INTEGERS: Final = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}


def assign_names(source: ArraySource) -> NamedArrays:
    """Return the variables and tables that the arrays of a source become.

    Raises NotFoundError for an array that is named and is not there, UsageError for two of one name and for arrays that
    cannot be a table.
    """
    names = source.names
    sections = _table_sections(source)

    def matching(glob: str) -> list[str]:
        """Return the arrays and the tables that a glob matches: a map names tables as an export's template does."""
        gone = (one.name for one in source.left_out)  # a map of the source names them, too
        known = list(dict.fromkeys([*source.arrays, *sections, *gone]))
        matches = [glob] if glob in known else fnmatch.filter(known, glob)
        if not matches:
            raise _no_array(source, glob)
        return matches

    renamed = new_names(names.rename.items(), matching)
    tables = _imported_tables(source, sections, renamed)
    if len({table.name for table in tables}) != len(tables):
        raise UsageError("two tables would have the same name", path=source.path)
    for table in tables:
        check_table(table.name, table.ids, table.vectors, table.ids.reader.path, _INTEGERS)
    in_tables = {array.name for table in tables for array in (table.ids, table.vectors)}
    variables: dict[str, ArrayData] = {}
    for array in source.arrays.values():
        name = renamed.get(array.name, array.name)
        if array.name not in in_tables and variables.setdefault(name, array) is not array:
            raise UsageError(f"two arrays would be named {name!r}", path=source.path)
    return NamedArrays(variables, tuple(tables), source.location)


def _imported_tables(
    source: ArraySource, sections: Mapping[str, Mapping[str, Any]], renamed: Mapping[str, str]
) -> list[ImportedTable]:
    """Return the tables of a map; NotFoundError for an array that is named and is not there."""
    for key in ("ids", "vectors"):
        for section in sections.values():
            if section[key] not in source.arrays and (key, section[key]) != ("ids", ROWS):
                raise _no_array(source, section[key])
    tables: list[ImportedTable] = []
    for name, section in sorted(sections.items()):
        vectors = source.arrays[section["vectors"]]
        ids = row_numbers(vectors) if section["ids"] == ROWS else source.arrays[section["ids"]]
        initializer = str(section.get("initializer", "uniform"))
        tables.append(ImportedTable(renamed.get(name, name), ids, vectors, initializer))
    return tables


def _no_array(source: ArraySource, name: str) -> NotFoundError:
    return NotFoundError(f"no array {name!r}", path=source.path, hint=meant(name, source.arrays, "arrays"))


def _table_sections(source: ArraySource) -> Mapping[str, Mapping[str, Any]]:
    """Return the ids, vectors and initializer of each table: from the map, the source's notes, or names and shapes.

    A guess is a warning, and so is what looks like a table and is none.
    """
    if source.notes and not source.names.tables:
        return source.notes
    pairs, tables = list(_pairs(source)), dict(source.names.tables)
    if not tables:
        tables = _guessed_tables(source, pairs)
    in_tables = {table[key] for table in tables.values() for key in ("ids", "vectors")}
    choices = [f"{stem}={ids},{vectors}" for stem, ids, vectors in pairs if vectors not in in_tables]
    if not tables and not choices:
        choices = _choices_by_shape(source)
    if choices:
        why = "arrays that look like a table stay dense variables"
        if not tables:
            why = "there are 0 rows: no arrays are a table"
        more = f", or {counted(len(choices) - 1, 'other choice')}" if choices[1:] else ""
        source.warnings.append(f"{why}; try: --table {quote(choices[0])}{more}")
    return tables


def _guessed_tables(source: ArraySource, pairs: Sequence[tuple[str, str, str]]) -> dict[str, Mapping[str, Any]]:
    """Return tables of pairs whose arrays are in no other pair; a guess by shapes is a warning."""
    uses = Counter(name for pair in pairs for name in pair[1:])
    tables: dict[str, Mapping[str, Any]] = {}
    for stem, ids, vectors in pairs:
        if uses[ids] == uses[vectors] == 1:
            tables[stem] = {"ids": ids, "vectors": vectors}
            if ids != f"{stem}.ids":
                source.warnings.append(f"by names and shapes, {ids} and {vectors} are the table {stem}")
    return tables


def _choices_by_shape(source: ArraySource) -> list[str]:
    """Return what --table could name, where no names of arrays say it: ids and vectors, or matrices of embeddings."""
    flat = [array for array in source.arrays.values() if len(array.shape) == 1]
    matrices = [array for array in source.arrays.values() if len(array.shape) == 2]
    choices = []
    for vectors in matrices:
        choices += [f"NAME={ids.name},{vectors.name}" for ids in flat if _is_table(ids, vectors)]
    return choices or [f"NAME={vectors.name}" for vectors in matrices if "emb" in vectors.name.lower()]


def _pairs(source: ArraySource) -> Iterator[tuple[str, str, str]]:
    """Yield a name, the ids and the vectors of what could be tables by their names; X.ids and X.vectors always are."""
    alone = os.path.splitext(os.path.basename(source.path.rstrip("/")))[0]

    def stems(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
        for match in filter(None, map(pattern.fullmatch, source.arrays)):
            yield match[0], alone if match[1] is None else match[1]

    by_stem: dict[str, list[str]] = defaultdict(list)
    for name, stem in stems(VECTORS_NAME):
        by_stem[stem].append(name)
    for name, stem in stems(IDS_NAME):
        usual = (f"{stem}.ids", f"{stem}.vectors")
        has_usual = set(usual) <= source.arrays.keys()
        for vectors in by_stem[stem]:
            looks_alike = not has_usual and _is_table(source.arrays[name], source.arrays[vectors])
            if looks_alike or (name, vectors) == usual:
                yield stem, name, vectors


def _is_table(ids: ArrayData, vectors: ArrayData) -> bool:
    """Say whether arrays have the shapes and dtypes of ids and their rows."""
    is_ids = ids.dtype.name in _INTEGERS and len(ids.shape) == 1
    return is_ids and vectors.dtype.name in FLOATS and len(vectors.shape) == 2 and ids.shape[0] == vectors.shape[0]
