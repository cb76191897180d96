"""Rows and variables, as text, as JSON and as rows of CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, document_of
from edl_ckpt.cli.terminal.tables import Column, Fitted, Lines, Table, head, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.core.operations.lookup.nearest import Neighbours
    from edl_ckpt.core.operations.lookup.rows import Lookup

_COLUMNS = 8


def document(found: Lookup, close: Sequence[Neighbours] = (), *, name: str = "get") -> dict[str, Any]:
    """Return `edl-ckpt/get/1`, or that of `head` or `sample`; it has `nearest` when that was asked for."""
    vectors = zip(found.ids.tolist(), found.vectors.tolist(), strict=True)
    listed, dim = [{"id": i, "vector": vector} for i, vector in vectors], found.vectors.shape[1]
    result = document_of(name, found, "ref table rows missing dtype dim bytes_read", rows=listed, dim=dim)
    if found.loss:
        result |= {"lost": as_dict(found.loss), "unread": list(found.unread)}
    if found.columns is not None:
        result["columns"] = list(found.columns)
    if close:
        result["nearest"] = [
            {"id": n.id, "neighbours": [{"id": i, "cosine": similar} for i, similar in n.nearest]} for n in close
        ]
    return result


def rows(found: Lookup) -> list[list[Any]]:
    """Return a header and one row for each id."""
    header = ["id", *(f"v{k}" for k in found.columns or range(found.vectors.shape[1]))]
    return [header, *([i, *v] for i, v in zip(found.ids.tolist(), found.vectors.tolist(), strict=True))]


def human(found: Lookup, close: Sequence[Neighbours] = ()) -> Lines:
    """Yield the rows, each cut to one line, and the rows nearest to them."""
    rows_found = text.count(len(found.ids), "row")
    yield head(f"{found.ref}  {found.title or found.table}", f"{rows_found} of {found.vectors.shape[1]} {found.dtype}")
    columns = Column("id", "number", title=""), Column("values", "prose", worth=9, title="")
    vectors = zip(found.ids.tolist(), found.vectors, strict=True)
    yield Table(*columns, rows=((str(i), _numbers(vector)) for i, vector in vectors))
    for neighbours in close:
        near = [f"{i} ({similar:.4f})" for i, similar in neighbours.nearest]
        yield styled(f"  nearest to {neighbours.id}: ", "dim").append(", ".join(near) or "no similar row")


def warnings(found: Lookup) -> Iterator[str]:
    """Yield a warning for ids that are missing, and one for ids that the table has twice."""
    for ids, problem in (
        (found.missing, "not in the table"),
        (found.unread, "may be in a shard that cannot be read"),
        (found.duplicates, "in the table more than once; the last row is shown"),
    ):
        if ids:
            yield f"{'id' if len(ids) == 1 else 'ids'} {words.abridged(ids, _COLUMNS)}: {problem}"


def variable_document(
    ref: str, name: str, values: npt.NDArray[np.generic], dtype: str, index: str | None = None
) -> dict[str, Any]:
    """Return `edl-ckpt/get/1` of a dense variable, or of a slice of it."""
    return {
        "schema": "edl-ckpt/get/1",
        "ref": ref,
        "variable": name,
        "dtype": dtype,
        "shape": list(values.shape),
        "values": values.tolist(),
        **({} if index is None else {"slice": index}),
    }


def variable_rows(values: npt.NDArray[np.generic]) -> list[list[Any]]:
    """Return a header and one row for each slice along all but the last dimension."""
    flat = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    return [[f"v{k}" for k in range(flat.shape[1])], *flat.tolist()]


def variable_human(ref: str, name: str, values: npt.NDArray[np.generic], dtype: str, index: str | None = None) -> Lines:
    """Yield the values; a large array without its middle."""
    where = "" if index is None else f"[{index.strip().removeprefix('[').removesuffix(']')}]"
    yield head(f"{ref}  {name}{where}", f"{dtype} {words.shape(values.shape)}")
    yield Fitted(
        lambda width: np.array2string(values, max_line_width=min(width, 100), threshold=200, edgeitems=4, precision=6)
    )


def _numbers(vector: npt.NDArray[np.generic]) -> str:
    numbers = "  ".join(f"{x:>10.5g}" if isinstance(x, float) else f"{x:>6}" for x in vector[:_COLUMNS].tolist())
    return numbers + (f"  ... {len(vector) - _COLUMNS} more" if len(vector) > _COLUMNS else "")
