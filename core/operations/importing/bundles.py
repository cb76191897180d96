"""Arrays of a tensor bundle of TensorFlow: those that a source names, where they are.

Variables have their own names. A table NAME is the arrays NAME-keys and NAME-values, as DeepRec and TFRA call them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.base.job import SILENT
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import parse_ref, resolve
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import Encoding
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.importing.source import ArrayData, joined
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.location import Location

SYSTEM: Final = "tensorflow"
_STATE: Final = "checkpoint"
_NEWEST: Final = re.compile(rb'^model_checkpoint_path: *"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_ID_DTYPES: Final = {Encoding.INT64: "int64", Encoding.UINT64: "int64", Encoding.INT32: "int32"}


def bundle_at(place: Location) -> Version | None:
    """Return the bundle that a source names: a prefix, its index, a version, or the newest one of a directory.

    None for anything else. Raises NotFoundError when the newest checkpoint of a directory is not in it.
    """
    newest = _newest_in(place)
    source = place.with_url(f"{place.url.rstrip('/')}/{newest}.index") if newest else place
    with suppress(EdlCkptError):  # whoever reads it as something else says what is wrong
        version = resolve(parse_ref(source.url, options=source.options), reporter=SILENT)
        if version.layout.system == SYSTEM and f"{newest}.index" not in version.lacks:
            return version
    if newest:  # its directory may have been moved, so only the name counts
        hint = "name a checkpoint by its prefix, the path of its index without .index"
        raise NotFoundError("its file `checkpoint` names no checkpoint that is there", path=place.url, hint=hint)
    return None


def _newest_in(place: Location) -> str:
    """Return the name of the newest checkpoint in a directory, as TensorFlow noted it; '' where it did not."""
    with suppress(EdlCkptError):
        match = _NEWEST.search(open_location(place).read_small(_STATE) or b"")
        return match[1].decode("utf-8", "replace").rpartition("/")[2] if match else ""
    return ""


def arrays_of(checkpoint: Checkpoint) -> Iterator[ArrayData]:
    """Yield the arrays of a bundle: the variables, and two of each table."""
    for shard in checkpoint.shards:
        for entry in shard.variables:
            reader = checkpoint.reader(shard, entry.values)
            yield ArrayData(entry.name, entry.dtype, entry.shape, reader, entry.values.start)
    for name in checkpoint.table_names:
        yield from _table_arrays(checkpoint, name)


def names_of(table: str) -> dict[str, str]:
    """Return the names of the arrays of a table, as notes of an export have them."""
    return {"ids": f"{table}-keys", "vectors": f"{table}-values"}


def _table_arrays(checkpoint: Checkpoint, name: str) -> Iterator[ArrayData]:
    """Yield the ids and the rows of a table, those of all shards one after the other."""
    keys, values, path = [], [], checkpoint.version.path
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
