"""The differences between two versions, across shard counts, generations and locations.

Fingerprints answer first: variables and tables with equal digests are equal, and only the others are compared by value.
`tables.py` says how. Where two systems, or two releases of a model, name the same values differently, the second
version is opened as if it had the names of the first one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.base.progress import WARNINGS, Reporter, expect
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.cluster.choice import ExecutorLike, job_of
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.operations.diff.results import DenseDiff, DiffResult, ItemDiff
from edl_ckpt.core.operations.diff.tables import PART_BYTES, BothOpened, BothValue, RowOptions, diff_dense, diff_tables
from edl_ckpt.core.proof.fingerprint import value_bytes
from edl_ckpt.core.proof.values import fingerprint
from edl_ckpt.core.reading.file_texts import is_of_export
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.storage.user_files import read_toml

_VARIABLES_AT_ONCE: Final = 64
"""The most variables of one task: most are so small that a task of its own would outweigh each."""
_LEAST_TASK_BYTES: Final = 256 << 10


def _diff_variables(both: BothOpened, names: Sequence[str], _: Advance, *, options: RowOptions) -> list[DenseDiff]:
    return [diff_dense(*both, name, options.tolerance) for name in names]


def diff_versions(
    a: VersionLike,
    b: VersionLike,
    *,
    tolerance: float = 0.0,
    top: int = 0,
    rows: bool = False,
    names: NamePairs | None = None,
    workers: int | None = None,
    executor: ExecutorLike | None = None,
    part_bytes: int = PART_BYTES,
    reporter: Reporter = WARNINGS,
) -> DiffResult:
    """Compare two versions by value: elements are equal when they differ by at most `tolerance`, or are both NaN.

    `names` pairs names of b with those of a, and the result has the latter. For each table the result has the `top`
    rows that changed most; with `rows`, every row that differs. Tables that differ need temporary files of their size,
    in the system's directory for them. Raises the errors of reading, CorruptError for an id that occurs twice,
    NoSpaceError when there is no space for the temporary files. With a `distributed.Client` as `executor`, its workers
    read the versions, and have such files; measures may then differ in their last digits. With `rows`, this process
    compares the tables.

    >>> diff = diff_versions("run@100", "run@200")
    >>> diff.equal, [(table.name, table.status) for table in diff.tables]
    (False, [('user', 'changed')])
    """
    a, b = as_version(a), as_version(b)
    options = RowOptions(tolerance, top, rows, part_bytes)
    job = job_of(executor, [a, b], workers=workers, reporter=reporter)
    with open_checkpoint(a) as opened_a, open_checkpoint(b) as opened_b:
        renamed_b = opened_b if names is None else paired(opened_a, opened_b, names)
        both = BothOpened(opened_a, renamed_b)
        total = sum(map(value_bytes, both))
        expect(reporter, 2 * total)  # tables that differ are read again
        reporter.start("fingerprints", total)
        first, second = (fingerprint(checkpoint, job) for checkpoint in both)
        apart = _other_records(*both)
        variables = sorted({*opened_a.variable_names, *renamed_b.variable_names} - apart)
        items = sorted({*opened_a.item_names, *renamed_b.item_names}.difference(variables))
        changed = [name for name in variables if first.variables.get(name) != second.variables.get(name)]
        changed_items = {name for name in items if first.variables.get(name) != second.variables.get(name)}
        found = _diff_changed(both, changed, options, job)
        dense = tuple(found.get(name) or DenseDiff(name, "equal", 0.0, 0.0, 0.0) for name in variables)
        of_items = tuple(diff_item(*both, name, same=name not in changed_items) for name in items)
        same = {name for name, digest in first.tables.items() if second.tables.get(name) == digest}
        tables = diff_tables(both, same, options, job)
        metadata = _differing_notes(*both)
        for checkpoint in both:
            checkpoint.check_unchanged()
    states = [*(diff.status for diff in dense), *(diff.status for diff in tables), *(diff.status for diff in of_items)]
    return DiffResult(
        a.ref,
        b.ref,
        all(state == "equal" for state in states),
        tolerance,
        dense,
        tables,
        first.text,
        second.text,
        of_items,
        metadata,
        tuple(sorted(apart)),
    )


def _diff_changed(both: BothOpened, changed: Sequence[str], options: RowOptions, job: Job) -> dict[str, DenseDiff]:
    """Return the differences of the variables whose digests differ, by name; several small ones make one task."""
    sizes: dict[str, int] = {}
    for checkpoint in both:
        for shard in checkpoint.shards:
            sizes.update((variable.name, variable.size_bytes) for variable in shard.variables)
    task_bytes = job.executor.task_bytes(sum(sizes[name] for name in changed))
    limit = max(task_bytes, _LEAST_TASK_BYTES)
    tasks = together(((name, sizes[name]) for name in changed), limit, most=_VARIABLES_AT_ONCE)
    work = FunctionWork(BothValue.of(both), partial(_diff_variables, options=options))
    found: dict[str, DenseDiff] = {}
    with job.silent().run(work, both, tasks) as results:
        for diffs in results:
            found.update((diff.name, diff) for diff in diffs)
    return found


def _other_records(one: Checkpoint, two: Checkpoint) -> set[str]:
    """Return the records of parts where two versions cut their tables into other parts: they say nothing else."""
    first, second = records_of(one), records_of(two)
    return set() if first.keys() == second.keys() else {*first, *second}


def _differing_notes(one: Checkpoint, two: Checkpoint) -> tuple[str, ...]:
    """Return the keys of metadata that differ, whichever files have them, where both versions have files of a kind.

    What an export of ours says of itself is another one each time.
    """
    both: list[dict[str, set[str]]] = []
    for checkpoint in (one, two):
        notes: dict[str, set[str]] = {}
        for note in (note for shard in checkpoint.shards for note in shard.notes):
            notes.setdefault(note.key, set()).add(note.text)
        schemas = notes.get("schema", set())
        both.append({key: texts for key, texts in notes.items() if not is_of_export(key, schemas)})
    first, second = both
    if one.version.layout.system != two.version.layout.system:
        return ()
    return tuple(sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key)))


def diff_item(one: Checkpoint, two: Checkpoint, name: str, *, same: bool) -> ItemDiff:
    """Return the change of an item, which at least one of the checkpoints has; `same` is what the fingerprints say."""
    if not (one.has_entry(name) and two.has_entry(name)):
        only = one if one.has_entry(name) else two
        return ItemDiff(name, "removed" if only is one else "added", only.find_variable(name)[1].dtype.name)
    kinds = [each.find_variable(name)[1].dtype.name for each in (one, two)]
    kind = kinds[0] if kinds[0] == kinds[1] else " -> ".join(kinds)
    return ItemDiff(name, "equal" if same else "changed", kind)


@dataclass(frozen=True, slots=True)
class NamePairs:
    """The names that tables and variables of the second version have, by those of the first."""

    tables: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


_SECTIONS = ("tables", "variables")


def read_pairs(path: str | os.PathLike[str]) -> NamePairs:
    """Read pairs of names: a TOML file with `"name in the first" = "name in the second"`, in [tables] and [variables].

    Raises UsageError for any other content, and for two names that stand for one.
    """
    path = os.fspath(path)
    document = read_toml(path)
    if unknown := sorted(set(document) - set(_SECTIONS)):
        hint = meant(unknown[0], _SECTIONS)
        raise UsageError(f"no section {unknown[0]!r}; expected [tables] and [variables]", path=path, hint=hint)
    for section, names in document.items():
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UsageError(f'[{section}] takes "name in the first" = "name in the second"', path=path)
        if len(set(names.values())) != len(names):
            raise UsageError(f"[{section}] has the same second name twice", path=path)
    return NamePairs(**document)


def paired(one: Checkpoint, two: Checkpoint, pairs: NamePairs) -> Checkpoint:
    """Return the second checkpoint with the names that the first one has for the same values; it shares the files.

    Raises NameNotFoundError for an unknown name, UsageError for one that the second checkpoint has for something else.
    """
    tables = {two.table_name(second): one.table_name(first) for first, second in pairs.tables.items()}
    variables = {two.variable_name(second): one.variable_name(first) for first, second in pairs.variables.items()}
    for names, known in ((tables, two.table_names), (variables, two.variable_names)):
        if taken := sorted((set(names.values()) & set(known)) - names.keys()):
            raise UsageError(f"{taken[0]!r} is a name there, too", path=two.version.ref, hint="map that name as well")
    shards = [_renamed(shard, tables, variables) for shard in two.shards]
    return Checkpoint(two.version, shards, two.files, two.store)


def _renamed(shard: ShardIndex, tables: Mapping[str, str], variables: Mapping[str, str]) -> ShardIndex:
    def name_of(name: str) -> str:
        return tables.get(name, name)

    return replace(
        shard,
        infos=tuple(replace(i, name=name_of(i.name), companion_of=name_of(i.companion_of)) for i in shard.infos),
        tables=tuple(replace(table, name=name_of(table.name)) for table in shard.tables),
        variables=tuple(replace(v, name=variables.get(v.name, v.name)) for v in shard.variables),
    )
