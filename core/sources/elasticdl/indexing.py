"""One index for the shards of a version: the generation and the dtypes are decided over all of them together.

A shard of one version may say too little by itself. `generations.py` reads each shard into a draft; here all drafts
become indexes of one kind. A shard that is planned is indexed in the same way, from what will stand besides values and
ids: so one reader decides what a layout says, and a file that was written needs no second look at its headers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError, NotFoundError
from edl_ckpt.core.base.parallel import run_all, run_parallel
from edl_ckpt.core.model.dtypes import DTYPES, TF_DTYPES, DType
from edl_ckpt.core.model.tables import DenseEntry, Problem, ShardIndex, TableEntry
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.sources.elasticdl.generations import (
    Draft,
    RawTensor,
    bytes_of_shape,
    draft_shard,
    fill_draft,
    fill_early,
    short_shape,
)
from edl_ckpt.core.sources.elasticdl.literals import Literals
from edl_ckpt.core.sources.elasticdl.wire import Cursor
from edl_ckpt.core.sources.interface import OnFault
from edl_ckpt.core.storage.interface import RangeReader

OLD_DTYPES: Final = {
    number: DTYPES[name]
    for number, name in enumerate(("int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"), start=1)
}
"""ElasticDL's own TensorDtype, in use until 2020-02-14."""


def index_version(
    version: Version, readers: Mapping[str, RangeReader], *, workers: int = 1, on_fault: OnFault | None = None
) -> list[ShardIndex]:
    """Index the shards of a version that have a reader, as `Source.index` says."""

    def draft(file: ShardFile) -> Draft | None:
        reader = readers.get(file.path)  # this opens it, and brings its first bytes
        if reader is None:
            return None
        cursor = Cursor(reader)
        try:
            return fill_early(draft_shard(file, cursor))
        except (CorruptError, NotFoundError) as error:
            if on_fault is None:
                raise
            if on_fault(file, error) and error.code == "truncated":
                cursor.size_bytes = error.offset or 0  # where the field begins that is cut
                with suppress(CorruptError):
                    return draft_shard(file, cursor)
            return None

    files = [file for file in version.shards if file.path in readers]
    drafts = [draft for draft in run_parallel(draft, files, workers) if draft is not None]
    if on_fault is None:
        return index_shards(drafts, version.version, workers=workers)
    return _index_most(drafts, version.version, workers, on_fault)


def _index_most(drafts: list[Draft], number: int, workers: int, on_fault: OnFault) -> list[ShardIndex]:
    """Index the shards that agree, without those that spoil it for the others."""
    while drafts:
        try:
            return index_shards([_fresh(draft) for draft in drafts], number, workers=workers)
        except CorruptError as error:
            bad = [d for d in drafts if d.file.path == error.path] or drafts[:1]
            if error.code == "empty-file":  # the same holds for every empty one: thousands take one turn
                bad = [d for d in drafts if d.cursor.size_bytes == 0]
            for one in bad:
                on_fault(one.file, error)
            gone = set(map(id, bad))
            drafts = [d for d in drafts if id(d) not in gone]
    return []


def _fresh(draft: Draft) -> Draft:
    """Return a draft in its first state, for another attempt with fewer shards."""
    return replace(draft, family="", infos=[], dense=[], tables=[], unknown=[u for u in draft.unknown if u[0] > 5])


class PlannedReader(RangeReader):
    """A shard of which there is only what is neither values nor ids, to be read as the finished file is."""

    def __init__(self, file: ShardFile, literals: Literals) -> None:
        self.path = file.path
        self.size_bytes = file.size_bytes
        self.bytes_read = 0
        self._literals = literals

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes; zeros stand for values and ids, which no index looks at."""
        data = np.zeros(size, np.uint8)
        self._literals.fill(offset, data)
        return data.tobytes()


def planned_shards(files: Sequence[ShardFile], literals: Sequence[Literals], number: int) -> list[ShardIndex]:
    """Return the indexes of shards of version `number` with these literals; raises as `index_shards` does."""
    readers = map(PlannedReader, files, literals)
    drafts = [draft_shard(file, Cursor(reader)) for file, reader in zip(files, readers, strict=True)]
    return index_shards(drafts, number)


def index_shards(drafts: Sequence[Draft], number: int, *, workers: int = 1) -> list[ShardIndex]:
    """Decide the generation of all shards of a version and index each; raises as `draft_shard` does.

    `number` is the version's number by the name of its directory. `workers` shards are read at a time.
    """
    family = decide_family(drafts)
    run_all(lambda draft: fill_draft(draft, family), drafts, workers)
    for draft in drafts:
        if draft.cursor.size_bytes == 0 and not may_be_empty(drafts, number):
            raise draft.cursor.corrupt("the file is empty (0 bytes)", 0, "empty-file")
    dtypes, generation, ambiguous = _dtype_numbers(drafts, family)
    shards = []
    for draft in drafts:
        shards.append(_finish(draft, dtypes, generation, ambiguous=ambiguous))
        draft.fields, draft.dense, draft.tables, draft.edges = [], [], [], []  # of many tables as much as the index
    return shards


def may_be_empty(drafts: Sequence[Draft], number: int) -> bool:
    """Return whether a shard of a version may have no bytes: the version is 0, and no shard has a table or an info.

    Protobuf writes neither a 0 nor an empty list, so a server of such a model without a dense variable saves nothing.
    In any other model every shard has at least its version or its infos, and zero bytes are a lost shard.
    """
    return number == 0 and not any(draft.version or draft.infos or draft.tables for draft in drafts)


def decide_family(drafts: Sequence[Draft]) -> str:
    """Return the family of most shards: 'v0', 'v1' (v1 and v2), 'v3' or 'v4'; 'v4' without evidence."""
    votes: Counter[str] = Counter()
    for draft in drafts:
        votes.update({name: 8 if len(draft.candidates) == 1 else 1 for name in draft.candidates})
    return max(votes, key=lambda name: (votes[name], name), default="v4")


def _dtype_numbers(drafts: Sequence[Draft], family: str) -> tuple[dict[int, DType], str, bool]:
    """Return (meaning of dtype numbers, generation, whether that meaning is ambiguous).

    Only v1 and v2 look alike; the bytes per element of all tensors of the version distinguish them.
    """
    if family in {"v3", "v4"}:
        return TF_DTYPES, family, False
    if family == "v0":
        return OLD_DTYPES, "v0", False
    old = new = True
    empty: set[int | None] = set()  # a table without rows was saved as an empty float64 array: 7 in v1, 2 in v2
    for draft in drafts:
        raw = _raw(draft)
        for tensor in raw:
            if tensor.dtype_number is not None:
                old = old and _agrees(tensor, OLD_DTYPES)
                new = new and _agrees(tensor, TF_DTYPES)
        empty.update(table.dtype_number for table in raw[len(draft.dense) :] if table.shape == (0,))
    if new and (not old or (2 in empty and 7 not in empty)):
        return TF_DTYPES, "v2", False
    if empty & {2, 7}:
        return OLD_DTYPES, "v1", False
    return OLD_DTYPES, "v1", new and old


def _raw(draft: Draft) -> list[RawTensor]:
    """Return the variables of a draft, then its tables, but for those that are entries already, as in v4."""
    return [tensor for tensor in (*draft.dense, *draft.tables) if isinstance(tensor, RawTensor)]


def _agrees(tensor: RawTensor, dtypes: dict[int, DType]) -> bool:
    dtype, elements = dtypes.get(tensor.dtype_number or 0), math.prod(tensor.shape)
    return dtype is not None and (not elements or tensor.values.size_bytes in {0, elements * dtype.itemsize})


def _finish(draft: Draft, dtypes: dict[int, DType], generation: str, *, ambiguous: bool) -> ShardIndex:
    """Turn a draft into the index of its shard; parts that cannot be used become problems."""
    problems: list[Problem] = []
    variables: dict[str, DenseEntry] = {}
    tables: dict[str, TableEntry] = {}
    for tensor in draft.dense:
        dtype = _checked_dtype(tensor, dtypes, draft.family, problems)
        if dtype is None:
            continue
        if tensor.name in variables:
            problems.append(_twice(tensor, "variable"))
        variables[tensor.name] = DenseEntry(tensor.name, dtype, tensor.shape, tensor.values, tensor.offset)
    for part in draft.tables:
        entry = part if isinstance(part, TableEntry) else _table(part, dtypes, draft.family, problems)
        if entry is None:
            continue
        if entry.name in tables:
            problems.append(_twice(part, "table"))
        tables[entry.name] = entry
    if ambiguous:
        problems += _ambiguous(_raw(draft))
    return ShardIndex(
        draft.file,
        draft.version,
        generation if draft.fields else "",
        tuple(draft.infos),
        tuple(variables.values()),
        tuple(tables.values()),
        tuple(problems),
        tuple(draft.unknown),
        tuple(draft.edges),
    )


def _ambiguous(tensors: Iterable[RawTensor]) -> Iterator[Problem]:
    """Yield the tensors whose dtype number means one type in v1 and another in v2."""
    for tensor in tensors:
        number = tensor.dtype_number or 0
        old, new = OLD_DTYPES.get(number), TF_DTYPES.get(number)
        if old is not None and new is not None and old != new:
            meaning = f"{old.name} until 2020-02-14 and {new.name} since then; it is read as {old.name}"
            yield Problem("ambiguous-dtype", tensor.name, tensor.offset, f"dtype number {number} means {meaning}")


def _twice(tensor: RawTensor | TableEntry, kind: str) -> Problem:
    return Problem("duplicate-variable", tensor.name, tensor.offset, f"this shard has the {kind} twice")


def _checked_dtype(tensor: RawTensor, dtypes: dict[int, DType], family: str, problems: list[Problem]) -> DType | None:
    """Return the dtype of a tensor whose values are all there, else append the problem and return None."""
    number = 6 if tensor.dtype_number is None and family == "v0" else tensor.dtype_number or 0
    dtype = dtypes.get(number)
    if tensor.absent:
        message = "the entry has no tensor: ElasticDL's restore raises an exception"
        problems.append(Problem("malformed", tensor.name, tensor.offset, message))
    elif tensor.outside is not None:
        message = "the values are outside of tensor_content, where ElasticDL's readers do not look"
        problems.append(Problem("values-outside-content", tensor.name, tensor.outside, message))
    elif dtype is None:
        message = f"dtype number {number} is not supported in a checkpoint"
        problems.append(Problem("unsupported-dtype", tensor.name, tensor.offset, message))
    elif math.prod(tensor.shape) * dtype.itemsize != tensor.values.size_bytes:
        message = (
            f"{dtype.name} {short_shape(tensor.shape)} needs {bytes_of_shape(tensor.shape, dtype.itemsize)},"
            f" the values have {tensor.values.size_bytes}"
        )
        problems.append(Problem("content-size-mismatch", tensor.name, tensor.offset, message))
    else:
        return dtype
    return None


def _table(tensor: RawTensor, dtypes: dict[int, DType], family: str, problems: list[Problem]) -> TableEntry | None:
    """Return a table's entry; without rows it has no dtype and no dim, whatever the file says."""
    ids = tensor.ids or ()
    if family == "v4" and tensor.shape == (0,):
        message = "the empty table has shape [0], not [0, dim]: ElasticDL's Go parameter server panics on it"
        problems.append(Problem("empty-table-form", tensor.name, tensor.offset, message))
    empty = tensor.values.size_bytes == 0 and 0 in tensor.shape[:1] and tensor.outside is None
    if family == "v1" and (empty or (not tensor.shape and not ids and tensor.outside is None)):
        return TableEntry(tensor.name, None, 0, 0, tensor.values, ids, tensor.offset)
    dtype = _checked_dtype(tensor, dtypes, family, problems)
    if dtype is None:
        return None
    if empty:
        form = (dtype, tensor.shape[1]) if len(tensor.shape) == 2 else (None, 0)
        return TableEntry(tensor.name, None, 0, 0, tensor.values, ids, tensor.offset, *form)
    if len(tensor.shape) != 2:
        message = f"the vectors have shape {short_shape(tensor.shape)}, expected [rows, dim]"
        problems.append(Problem("content-size-mismatch", tensor.name, tensor.offset, message))
        return None
    rows, dim = tensor.shape
    return TableEntry(tensor.name, dtype, dim, rows, tensor.values, ids, tensor.offset)
