"""Wire generations v0 to v4 of the Model message, each read into the same draft of an index.

The numbers of fields changed several times, and a file has neither a magic number nor a version of its format. The
wire types of its fields show its generation (`proto/README.md`, section Generations). An empty shard shows nothing, so
the decision takes all shards of a version into account (`indexing.py`).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from edl_ckpt.core.base.columns import objects_of
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.numbers import MalformedError
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import TF_DTYPES
from edl_ckpt.core.model.tables import Encoding, Extent, IdRun, TableEntry, TableInfo
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.sources.elasticdl import wire
from edl_ckpt.core.sources.elasticdl.small_messages import read_info, read_shape
from edl_ckpt.core.sources.elasticdl.wire import BYTES, VARINT, Cursor, Field

_TAGGED_BLOCK: Final = 1 << 20
_EVIDENCE_FIELDS: Final = 16
_MAX_FIELDS: Final = 1_000_000
_MAX_UNKNOWN: Final = 10_000
_MAX_ID_RUNS: Final = 10_000
"""Limits that only a hostile or a random file exceeds, so that neither time nor memory run away."""
_MAX_DIMENSIONS: Final = 32
"""The limit of an array in the numpy that ElasticDL saved from."""
_MAX_ELEMENTS: Final = 1 << 60
"""The limit of the product of all sizes but zeros: numpy makes no array of 2**63 bytes, not even an empty one."""
MAX_DIM: Final = 1 << 31
"""A protobuf message has fewer bytes, so no row in one has so many elements."""
_NOWHERE: Final = Extent(0, 0)
_KIND, _OFFSET, _END, _NAME, _NAME_END, _DTYPE, _FIRST, _SECOND, _VALUES, _VALUES_END, _IDS, _IDS_END = range(12)
_ENTRY_NUMBERS: Final = 12
"""What the kernel finds of an entry: its kind, and offsets in the file. `walk.c` names the same columns."""
_FOR_COLUMNS: Final = 16
"""From so many entries of a window on, columns are faster than a loop."""
_INFO, _VARIABLE, _TABLE = 2, 3, 4
"""Kinds of entries: the numbers of their fields."""
_ENTRIES_AT_ONCE: Final = 4096
_USUAL_TAGS: Final = frozenset(wire.tag(2, BYTES) + wire.tag(3, BYTES) + wire.tag(4, BYTES))
_V4: Final = frozenset({"v4"})
_Parsed = TypeVar("_Parsed")


@dataclass(slots=True)
class RawTensor:
    """A value message of any generation; the meaning of its dtype number is not known yet."""

    name: str = ""
    offset: int = 0
    dtype_number: int | None = None
    shape: tuple[int, ...] = ()
    values: Extent = _NOWHERE
    ids: tuple[IdRun, ...] | None = None
    outside: int | None = None
    """The offset of values outside of tensor_content."""
    absent: bool = False
    """True where a map entry has no tensor."""


Part: TypeAlias = Field | RawTensor | TableInfo | TableEntry
"""A part of the model. A table that only v4 can have, and in which nothing is missing, is an entry already."""


@dataclass(slots=True)
class Draft:
    """A shard whose fields are known, but not yet its generation."""

    file: ShardFile
    cursor: Cursor
    fields: list[Part] = field(default_factory=list)
    """Those that are parts of the model; what v4 writes in its usual form is read already."""
    edges: list[int] = field(default_factory=list)
    """The offset of every top-level field."""
    candidates: frozenset[str] = frozenset({"v0", "v1", "v3", "v4"})
    family: str = ""
    version: int = 0
    infos: list[TableInfo] = field(default_factory=list)
    dense: list[RawTensor] = field(default_factory=list)
    tables: list[RawTensor | TableEntry] = field(default_factory=list)
    unknown: list[tuple[int, int]] = field(default_factory=list)

    def note_unknown(self, found: Field) -> None:
        """Remember a field that no reader knows; CorruptError when there are too many."""
        if len(self.unknown) >= _MAX_UNKNOWN:
            raise self.cursor.corrupt(f"more than {_MAX_UNKNOWN} unknown fields", found.offset)
        self.unknown.append((found.number, found.offset))


def draft_shard(file: ShardFile, cursor: Cursor) -> Draft:
    """Walk the top-level fields of a shard and collect the evidence for its generation.

    Raises CorruptError, with the byte offset, for bytes that are not a Model of any generation.
    """
    draft = Draft(file, cursor)
    at = 0
    while at < cursor.size_bytes:
        after = _walk_usual(draft, at)
        if after > at:
            at = after
            continue
        found = cursor.field(at, cursor.size_bytes)
        draft.edges.append(at)
        at = found.end
        if found.number == 1:
            _expect(cursor, found, VARINT, "version")
            draft.version = wire.signed32(found.value)
        elif found.number <= 5:
            _expect(cursor, found, BYTES, "a part of the model")
            _add_fields(draft, [found], _evidence(cursor, found))
        else:
            draft.note_unknown(found)
    return draft


def _add_fields(draft: Draft, parts: Sequence[Part], hint: frozenset[str]) -> None:
    """Keep parts of the model, and what they show of the generation."""
    if hint and not hint & draft.candidates:
        raise draft.cursor.corrupt("the fields belong to different wire generations", parts[0].offset)
    draft.candidates &= hint or draft.candidates
    draft.fields += parts
    if len(draft.fields) > _MAX_FIELDS:
        raise draft.cursor.corrupt(f"more than {_MAX_FIELDS} variables and tables", parts[-1].offset)


def _walk_usual(draft: Draft, at: int) -> int:
    """Read infos, variables and tables from `at` on that are as v4 usually writes them; return the offset behind them.

    It is `at` where there is none: the rest of this module reads every form, a field at a time. The kernel reads many
    thousands of entries in the time of a few hundred.
    """
    if bulk.kernel is None:
        return at
    cursor, found = draft.cursor, np.empty((_ENTRIES_AT_ONCE, _ENTRY_NUMBERS), np.int64)
    window, base = cursor.window(at)
    if window[at - base] not in _USUAL_TAGS:
        return at
    count = bulk.kernel.walk_entries(memoryview(window)[at - base :], at, cursor.size_bytes, found)
    if not count and cursor.moves_to(at):  # the window has cut the entry off
        window, base = cursor.window(at)
        count = bulk.kernel.walk_entries(memoryview(window), at, cursor.size_bytes, found)
    parts = _usual_tables(found[:count], window, base) if count >= _FOR_COLUMNS else None
    if parts is None:
        parts = _usual_parts(found[:count], window, base)
    if not parts:
        return at
    _add_fields(draft, parts, _V4)
    draft.edges += found[: len(parts), _OFFSET].tolist()
    return int(found[len(parts) - 1, _END])


def _usual_tables(found: bulk.I64, window: bytes, base: int) -> list[Part] | None:
    """Return tables that a window has whole, from columns of what is in each; None where one is of another form.

    `found` has an entry a row: int64 [n, _ENTRY_NUMBERS]. All are tables of one dtype, with rows and ids.
    """
    dtype = TF_DTYPES.get(int(found[0, _DTYPE])) if len(found) else None
    if dtype is None:
        return None
    names, name_ends, rows, dims = (found[:, column] for column in (_NAME, _NAME_END, _FIRST, _SECOND))
    values, values_end, ids, ids_end = (found[:, column] for column in (_VALUES, _VALUES_END, _IDS, _IDS_END))
    are_usual = (
        (found[:, _KIND] == _TABLE) & (found[:, _DTYPE] == found[0, _DTYPE]) & (rows > 0) & (dims > 0) & (ids_end > 0)
    )
    if not (are_usual & (values_end - values == rows * dims * dtype.itemsize)).all():
        return None
    texts: list[str] = []
    with suppress(UnicodeDecodeError):
        for start, end in zip((names - base).tolist(), (name_ends - base).tolist(), strict=True):
            texts.append(sys.intern(window[start:end].decode("utf-8")))  # every shard has it
    count = len(texts)
    run_columns: dict[str, Iterable[Any]] = {
        "start": ids.tolist(),
        "end": ids_end.tolist(),
        "file": repeat(0),
        "encoding": repeat(Encoding.VARINT),
        "first": repeat(0),
    }
    runs = objects_of(IdRun, count, run_columns)
    columns: dict[str, Iterable[Any]] = {
        "name": texts,
        "dtype": repeat(dtype),
        "dim": dims.tolist(),
        "rows": rows.tolist(),
        "values": objects_of(Extent, count, {"start": values.tolist(), "end": values_end.tolist(), "file": repeat(0)}),
        "ids": zip(runs, strict=True),
        "offset": found[:, _OFFSET].tolist(),
        "empty_dtype": repeat(None),
        "empty_dim": repeat(0),
        "placement": repeat(None),
    }
    return [*objects_of(TableEntry, count, columns)]


def _usual_parts(found: bulk.I64, window: bytes, base: int) -> list[Part]:
    """Return the parts that a window has whole, up to one that is not as v4 usually writes it."""
    parts: list[Part] = []
    with suppress(MalformedError, UnicodeDecodeError):
        for kind, offset, end, name, name_end, dtype, first, second, *places in found.tolist():
            values, values_end, ids, ids_end = places
            if kind == _INFO:
                parts.append(_parse_info(window[second - base : end - base], offset))
            elif kind == _VARIABLE:
                text = window[name - base : name_end - base].decode("utf-8")
                shape, fault = _parse_shape(window[first - base : second - base])
                if fault:
                    break
                parts.append(RawTensor(text, offset, dtype, shape, Extent(values, values_end)))
            else:
                text = sys.intern(window[name - base : name_end - base].decode("utf-8"))  # every shard has it
                runs = (IdRun(ids, ids_end),) if ids_end else ()
                extent, known = Extent(values, values_end), TF_DTYPES.get(dtype)
                if known is not None and first and values_end - values == first * second * known.itemsize > 0:
                    parts.append(TableEntry(text, known, second, first, extent, runs, offset))
                else:
                    parts.append(RawTensor(text, offset, dtype, (first, second), extent, runs))
    return parts


def _evidence(cursor: Cursor, found: Field) -> frozenset[str]:
    """Return the generations that could have written a top-level field; empty when it is no evidence."""
    if found.number == 2:
        return _evidence_of_2(cursor, found)
    if found.number == 5:  # v3: embedding_tables
        return frozenset({"v3"})
    fields = islice(cursor.fields(found.start, found.end), _EVIDENCE_FIELDS)
    parts: dict[int, Field] = {}
    for part in fields:
        parts.setdefault(part.number, part)
    second = parts.get(2)
    if found.number == 3:
        if _is(second, BYTES):  # v4: the tensor of an entry of dense_parameters
            return frozenset({"v4"})
        return frozenset({"v1", "v3"} if _is(second, VARINT) else ())  # the dim of an info of a table
    # A value in an entry: of dense_parameters in v3, a TensorProto, which begins with the number of its dtype; of
    # embedding_tables in v4, an IndexedSlicesProto, which begins with a TensorProto.
    first = next(cursor.fields(second.start, second.end), None) if second and _is(second, BYTES) else None
    if first is None or first.number != 1:
        return frozenset({"v3", "v4"})
    return frozenset({"v3"} if first.wire_type == VARINT else {"v4"})


def _evidence_of_2(cursor: Cursor, found: Field) -> frozenset[str]:
    """Return the same for field 2: an entry of a map in v0, a Tensor in v1, the info of a table in v4.

    An entry has a tensor in its field 2. A Tensor has its dims there as bytes, its content in field 3, and its dtype in
    field 5. An info has its dim there as a number, which is not written for 0, and its initializer in field 3.
    """
    parts: dict[int, Field] = {}
    for part in islice(cursor.fields(found.start, found.end), _EVIDENCE_FIELDS):
        parts.setdefault(part.number, part)
        if part.number == 5 or (2 in parts and 3 in parts) or _is(parts.get(2), VARINT):
            break  # more fields show nothing more
    second = parts.get(2)
    if _is(second, VARINT):
        return frozenset({"v4"})
    if 5 in parts or (3 in parts and second is not None):
        return frozenset({"v1"})
    if 3 in parts:
        return frozenset({"v1", "v4"})
    return frozenset({"v0"} if _is(second, BYTES) else ())


def _is(found: Field | None, wire_type: int) -> bool:
    return found is not None and found.wire_type == wire_type


def fill_early(draft: Draft) -> Draft:
    """Interpret the fields of a draft that can only be of v4, while the first bytes of its file are in memory.

    A draft with a fault or an unknown field is left as it is: `fill_draft` finds that again, with the family of all.
    """
    if draft.candidates != _V4:
        return draft
    known = len(draft.unknown)
    with suppress(CorruptError):
        filled = [_interpreted(draft, part, "v4") if isinstance(part, Field) else part for part in draft.fields]
        if len(draft.unknown) == known:
            draft.fields = filled
    del draft.unknown[known:]
    return draft


def _interpreted(draft: Draft, part: Field, family: str) -> Part:
    """Return what a field is in a family; as it is where no reader of the family knows it."""
    reader = _READERS[family].get(part.number)
    return part if reader is None else reader(draft, part)


def fill_draft(draft: Draft, family: str) -> None:
    """Interpret the top-level fields of a draft as those of a family."""
    cursor = draft.cursor
    draft.family = family
    if family not in draft.candidates:
        first = draft.fields[0].offset if draft.fields else 0
        own = "/".join(sorted(draft.candidates))
        raise cursor.corrupt(f"this shard has wire generation {own}, the others have {family}", first)
    tensors: list[RawTensor | TableEntry] = []
    for field_ in draft.fields:
        part = _interpreted(draft, field_, family) if isinstance(field_, Field) else field_
        if isinstance(part, TableInfo):
            draft.infos.append(part)
        elif isinstance(part, Field):
            draft.note_unknown(part)
        else:
            tensors.append(part)
    named = {info.name for info in draft.infos} if family == "v1" else set[str]()  # there tables may have no ids
    draft.tables = [t for t in tensors if t.ids is not None or t.name in named]
    draft.dense = [t for t in tensors if isinstance(t, RawTensor) and t.ids is None and t.name not in named]


def _dense(draft: Draft, found: Field) -> RawTensor:
    """Read a map entry of a dense variable (v0, v3, v4)."""
    name, value = _map_entry(draft.cursor, found)
    tensor = RawTensor(absent=True)
    if value:
        tensor = _old_tensor(draft, value, 2, None, 4) if draft.family == "v0" else _tensor(draft, value)
    tensor.name, tensor.offset = name, found.offset
    return tensor


def _expect(cursor: Cursor, found: Field, wire_type: int, part: str) -> Field:
    if found.wire_type != wire_type:
        message = f"{part} (field {found.number}) has wire type {found.wire_type}, expected {wire_type}"
        raise cursor.corrupt(message, found.offset)
    return found


def _map_entry(cursor: Cursor, found: Field) -> tuple[str, Field | None]:
    """Return (key, value field) of a map entry.

    CorruptError for an entry without a name or with another field: some protobufs then drop the whole entry, others
    give it the name ''.
    """
    name, value = None, None
    for sub in cursor.fields(found.start, found.end):
        if sub.number not in {1, 2}:
            message = f"an entry has field {sub.number}, expected 1 (its name) and 2 (its value): its name may be lost"
            raise cursor.corrupt(message, sub.offset)
        if sub.number == 1:
            _expect(cursor, sub, BYTES, "a name")
            if name is not None:
                raise cursor.corrupt(f"{name!r} has two names", sub.offset)
            name = cursor.text(sub.start, sub.end, "a name")
        elif value is not None:
            raise cursor.corrupt(f"{name!r} has two values", sub.offset)
        else:
            value = _expect(cursor, sub, BYTES, f"the value of {name!r}")
    if name is None:
        raise cursor.corrupt("an entry has no name", found.offset)
    return name, value


def _parsed(cursor: Cursor, message: Field, part: str, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Return what protobuf finds in a small part."""
    data = cursor.small(message.start, message.end, part)
    try:
        return parse(data)
    except MalformedError:
        raise cursor.corrupt(f"protobuf cannot parse {part}", message.offset) from None


def _info(draft: Draft, found: Field) -> TableInfo:
    cursor = draft.cursor
    info = _parsed(cursor, found, "a table info", lambda data: _parse_info(data, found.offset))
    if not 0 <= info.dim < MAX_DIM:
        raise cursor.corrupt(f"a table info has dim {info.dim}, expected 0 to {MAX_DIM - 1}", found.offset)
    return info


@functools.lru_cache(8192)
def _parse_info(data: bytes, offset: int) -> TableInfo:
    """Return the info in some bytes; the shards that we write have the same ones at the same offsets."""
    name, dim, initializer, dtype = read_info(data)
    return TableInfo(name, dim, initializer, offset, dtype)


def _tensor(draft: Draft, value: Field) -> RawTensor:
    """Read a TensorProto (v3, v4)."""
    tensor = RawTensor(offset=value.offset, dtype_number=0)
    known = {
        1: (VARINT, "dtype"),
        2: (BYTES, "tensor_shape"),
        3: (VARINT, "version_number"),
        4: (BYTES, "values"),
    }
    seen: set[int] = set()
    for sub in draft.cursor.fields(value.start, value.end):
        if 5 <= sub.number <= 17:
            tensor.outside = sub.offset
            continue
        if sub.number not in known:
            draft.note_unknown(sub)
            continue
        wire_type, part = known[sub.number]
        _expect(draft.cursor, sub, wire_type, part)
        if sub.number in seen:
            raise draft.cursor.corrupt(f"{part} (field {sub.number}) occurs twice", sub.offset)
        seen.add(sub.number)
        if sub.number == 1:
            tensor.dtype_number = wire.signed32(sub.value)
        elif sub.number == 2:
            tensor.shape, fault = _parsed(draft.cursor, sub, "a shape", _parse_shape)
            if fault:
                raise draft.cursor.corrupt(fault, sub.offset)
        elif sub.number == 4:
            tensor.values = Extent(sub.start, sub.end)
    return tensor


@functools.lru_cache(8192)
def _parse_shape(data: bytes) -> tuple[tuple[int, ...], str]:
    """Return the shape in some bytes, and why no array can have it, '' if one can; many variables have the same."""
    shape = read_shape(data)
    if any(size < 0 for size in shape):
        return shape, f"a shape has a negative size: {short_shape(shape)}"
    return shape, why_impossible(shape)


def why_impossible(shape: Sequence[int]) -> str:
    """Return why no array, with or without values, can have a shape; '' if one can."""
    if len(shape) > _MAX_DIMENSIONS:
        return f"a shape has {len(shape)} dimensions, the limit is {_MAX_DIMENSIONS}"
    if 0 in shape and math.prod(size or 1 for size in shape) >= _MAX_ELEMENTS:
        return f"no array can have the shape {short_shape(shape)}"
    return ""


def _slices(draft: Draft, found: Field) -> RawTensor:
    """Read a map entry of IndexedSlicesProto (v3, v4): vectors, and ids, packed or not."""
    name, value = _map_entry(draft.cursor, found)
    tensor = RawTensor(absent=True)
    ids: list[IdRun] = []
    if value is not None:
        vectors: Field | None = None
        for sub in _with_ids(draft.cursor, value.start, value.end, 2, ids):
            if sub.number != 1:
                draft.note_unknown(sub)
            elif vectors is not None:
                raise draft.cursor.corrupt(f"table {name!r} has two tensors", sub.offset)
            else:
                vectors = _expect(draft.cursor, sub, BYTES, "the vectors of a table")
        if vectors is not None:
            tensor = _tensor(draft, vectors)
    tensor.name, tensor.offset, tensor.ids = name, found.offset, tuple(ids)
    return tensor


def _old_tensor(draft: Draft, found: Field, content: int, indices: int | None, dtype: int) -> RawTensor:
    """Read a Tensor of v0 (dim, content, dtype) or of v1 and v2 (name, dim, content, indices, dtype)."""
    cursor = draft.cursor
    tensor = RawTensor(offset=found.offset)
    dims: list[int] = []
    ids: list[IdRun] = []
    for sub in _with_ids(cursor, found.start, found.end, indices, ids):
        if sub.number == content - 1:
            dims += _dims(cursor, sub)
            fault = why_impossible(dims)
            if fault:
                raise cursor.corrupt(fault, sub.offset)
        elif sub.number == content:
            _expect(cursor, sub, BYTES, "values")
            tensor.values = Extent(sub.start, sub.end)
        elif sub.number == dtype:
            _expect(cursor, sub, VARINT, "dtype")
            tensor.dtype_number = wire.signed32(sub.value)
        elif sub.number == 1 and indices is not None:
            _expect(cursor, sub, BYTES, "a name")
            tensor.name = cursor.text(sub.start, sub.end, "a name")
        else:
            draft.note_unknown(sub)
    if indices is not None and not tensor.name:
        raise cursor.corrupt("a tensor has no name", found.offset)
    tensor.shape = tuple(dims)
    tensor.ids = tuple(ids) or None
    return tensor


def _with_ids(cursor: Cursor, start: int, end: int, number: int | None, ids: list[IdRun]) -> Iterator[Field]:
    """Yield the fields of a message but for its ids (field `number`); their runs are appended to `ids`."""
    at = start
    while at < end:
        found = cursor.field(at, end)
        at = found.end
        if len(ids) > _MAX_ID_RUNS:
            raise cursor.corrupt(f"the ids of a table are in more than {_MAX_ID_RUNS} pieces", found.offset)
        if found.number != number or number is None:
            yield found
        elif found.wire_type == BYTES:
            if found.end > found.start:
                ids.append(IdRun(found.start, found.end))
        else:
            _expect(cursor, found, VARINT, "an id")
            runs = list(cursor.tagged_run(found.offset, end, number << 3, _TAGGED_BLOCK))
            # protobuf accepts a tag in more bytes than it needs. Such a tag begins no run: its id stands alone.
            ids.extend(runs or [IdRun(found.start, found.end)])
            at = ids[-1].end


def _dims(cursor: Cursor, found: Field) -> list[int]:
    """Return the sizes in a packed or unpacked `dim` field."""
    if found.wire_type == VARINT:
        values = [found.value]
    else:
        _expect(cursor, found, BYTES, "dim")
        if found.end - found.start > _MAX_DIMENSIONS * 10:
            size = found.end - found.start
            raise cursor.corrupt(f"a shape has {size} bytes, the limit is {_MAX_DIMENSIONS * 10}", found.offset)
        values = []
        at = found.start
        while at < found.end:
            value, at = cursor.varint(at, found.end)
            values.append(value)
    if any(value >> 63 for value in values):
        raise cursor.corrupt("a shape has a negative size", found.offset)
    return values


_READERS: Final[Mapping[str, Mapping[int, Callable[[Draft, Field], TableInfo | RawTensor]]]] = {
    "v0": {2: _dense},
    "v1": {2: functools.partial(_old_tensor, content=3, indices=4, dtype=5), 3: _info},
    "v3": {3: _info, 4: _dense, 5: _slices},
    "v4": {2: _info, 3: _dense, 4: _slices},
}
"""How the top-level fields of each family are read, by their numbers; those of v1 and v2 are alike."""


def short_shape(shape: Sequence[int]) -> str:
    """Return a shape as messages print it: at most eight of its sizes."""
    return f"[{', '.join(map(str, shape[:8]))}{', ...' if len(shape) > 8 else ''}]"


def bytes_of_shape(shape: Sequence[int], itemsize: int) -> str:
    """Return the bytes of an array of a shape in words."""
    size = math.prod(shape) * itemsize
    return counted(size, "byte") if size < 1 << 64 else "more than 2**64 bytes"
