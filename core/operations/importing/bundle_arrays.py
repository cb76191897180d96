"""Arrays of a bundle of TensorFlow that a source names: they stay where they are.

Variables have their own names. A table NAME is the arrays NAME-keys and NAME-values, as DeepRec and TFRA call them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import list_versions, parse_ref, resolve
from edl_ckpt.core.converting.lacking import check_held
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import Encoding
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.importing.source import ArrayData, joined
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.bundle import state_file
from edl_ckpt.core.storage.location import Location

SYSTEM: Final = "tensorflow"
_NEWEST: Final = b"model_checkpoint_path"
"""The field of the file that names the newest bundle."""
_ID_DTYPES: Final = {Encoding.INT64: "int64", Encoding.UINT64: "int64", Encoding.INT32: "int32"}


def bundle_at(place: Location) -> Version | None:
    """Return the bundle that a source names: a prefix, its index, a version, or what `@latest` is of a directory.

    None for anything else. Of a directory with TensorFlow's file `checkpoint` the errors are those of `@latest`.
    """
    try:
        version = resolve(parse_ref(place.url, options=place.options), reporter=SILENT)
    except EdlCkptError:
        if _has_record(place):
            raise
        return None  # whoever reads it as something else says what is wrong
    return version if version.layout.system == SYSTEM else None


def _has_record(place: Location) -> bool:
    """Say whether a directory has TensorFlow's file `checkpoint`, in any of its spellings, or a damaged one."""
    with suppress(EdlCkptError):
        data = open_location(place).read_small(state_file.NAME)
        return data is not None and (_NEWEST in data or list_versions(place).record is not None)
    return False


def arrays_of(checkpoint: Checkpoint) -> Iterator[ArrayData]:
    """Yield the arrays of a bundle: the variables, and two of each table; items and records of parts are none.

    Raises UnsupportedError for a dtype that a shard cannot contain.
    """
    named = ((entry.name, entry.dtype) for shard in checkpoint.shards for entry in shard.variables)
    check_held("a checkpoint of ElasticDL", named, (), path=checkpoint.version.path, other_way="")
    records = records_of(checkpoint)
    for shard in checkpoint.shards:
        for entry in shard.variables:
            if entry.is_item or entry.name in records:
                continue
            reader = checkpoint.reader(shard, entry.values)
            yield ArrayData(entry.name, entry.dtype, entry.shape, reader, entry.values.start)
    for name in checkpoint.table_names:
        yield from _table_arrays(checkpoint, name)


def names_of(table: str) -> dict[str, str]:
    """Return the names of the arrays of a table, as notes of an export have them."""
    return {"ids": f"{table}-keys", "vectors": f"{table}-values"}


def _table_arrays(checkpoint: Checkpoint, name: str) -> Iterator[ArrayData]:
    """Yield the ids and the rows of a table, those of all shards one after the other."""
    keys = []
    values = []
    path = checkpoint.version.path
    for shard, entry in checkpoint.entries(name):
        dtype = entry.dtype or entry.empty_dtype or DTYPES["float32"]
        shape = (entry.rows, entry.dim or entry.empty_dim)
        values.append(ArrayData(name, dtype, shape, checkpoint.reader(shard, entry.values), entry.values.start))
        for run in entry.ids:
            ids = DTYPES[_ID_DTYPES[run.encoding]]
            rows = run.size_bytes // ids.itemsize
            keys.append(ArrayData(name, ids, (rows,), checkpoint.reader(shard, run), run.start))
    if not keys:
        keys = [ArrayData(name, DTYPES["int64"], (0,), values[0].reader, 0)]
    yield joined(names_of(name)["ids"], keys, path)
    yield joined(names_of(name)["vectors"], values, path)
