"""Rows and variables as words, as JSON and as rows of CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.lookup import Lookup, Neighbours

_ROWS = 40
_COLUMNS = 8


def document(found: Lookup, close: Sequence[Neighbours] = ()) -> dict[str, Any]:
    """Return `edl-ckpt/get/1`; `nearest` is there when it was asked for."""
    held: dict[str, Any] = {
        "schema": "edl-ckpt/get/1",
        "ref": found.ref,
        "table": found.table,
        "rows": [
            {"id": i, "vector": vector} for i, vector in zip(found.ids.tolist(), found.vectors.tolist(), strict=True)
        ],
        "missing": list(found.missing),
        "dtype": found.dtype,
        "dim": found.vectors.shape[1],
        "bytes_read": found.bytes_read,
    }
    if close:
        held["nearest"] = [
            {"id": n.id, "neighbours": [{"id": i, "cosine": similar} for i, similar in n.nearest]} for n in close
        ]
    return held


def rows(found: Lookup) -> list[list[Any]]:
    """Return a header and one row for each id."""
    header = ["id", *(f"v{k}" for k in range(found.vectors.shape[1]))]
    return [header, *([i, *v] for i, v in zip(found.ids.tolist(), found.vectors.tolist(), strict=True))]


def human(found: Lookup, close: Sequence[Neighbours] = ()) -> Iterator[RenderableType]:
    """Yield the rows, each as far as a line goes, and what is nearest to them."""
    from rich.text import Text

    head = Text(f"{text.shown(found.ref)}  {text.shown(found.table)}", "bold")
    yield head.append(f"  {len(found.ids)} rows of {found.vectors.shape[1]} {found.dtype}", "dim")
    width = max((len(str(i)) for i in found.ids[:_ROWS].tolist()), default=0)
    for i, vector in zip(found.ids[:_ROWS].tolist(), found.vectors[:_ROWS], strict=True):
        yield Text(f"  {i!s:>{width}}  ").append(_numbers(vector))
    if len(found.ids) > _ROWS:
        yield Text(f"  and {len(found.ids) - _ROWS} more; --json and --csv have all", "dim")
    for neighbours in close:
        near = [f"{i} ({similar:.4f})" for i, similar in neighbours.nearest]
        yield Text(f"  nearest to {neighbours.id}: ", "dim").append(", ".join(near) or "nothing is similar")


def warnings(found: Lookup) -> Iterator[str]:
    """Yield what is missing and what is there twice."""
    for ids, what in (
        (found.missing, "not in the table"),
        (found.duplicates, "there more than once, the last is shown"),
    ):
        if ids:
            more = f" and {len(ids) - _COLUMNS} more" if len(ids) > _COLUMNS else ""
            yield f"id {', '.join(map(str, ids[:_COLUMNS]))}{more}: {what}"


def variable_document(ref: str, name: str, values: npt.NDArray[np.generic], dtype: str) -> dict[str, Any]:
    """Return `edl-ckpt/get/1` of a dense variable."""
    return {
        "schema": "edl-ckpt/get/1",
        "ref": ref,
        "variable": name,
        "dtype": dtype,
        "shape": list(values.shape),
        "values": values.tolist(),
    }


def variable_rows(values: npt.NDArray[np.generic]) -> list[list[Any]]:
    """Return a header and one row for each slice along all but the last dimension."""
    flat = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    return [[f"v{k}" for k in range(flat.shape[1])], *flat.tolist()]


def variable_human(ref: str, name: str, values: npt.NDArray[np.generic], dtype: str) -> Iterator[RenderableType]:
    """Yield the values, the middle of a large array left out."""
    from rich.text import Text

    shape = "x".join(map(str, values.shape)) or "scalar"
    yield Text(f"{text.shown(ref)}  {text.shown(name)}", "bold").append(f"  {dtype} {shape}", "dim")
    yield Text(np.array2string(values, max_line_width=100, threshold=200, edgeitems=4, precision=6))


def _numbers(vector: npt.NDArray[np.generic]) -> str:
    shown = "  ".join(f"{x:>10.5g}" if isinstance(x, float) else f"{x:>6}" for x in vector[:_COLUMNS].tolist())
    return shown + (f"  ... {len(vector) - _COLUMNS} more" if len(vector) > _COLUMNS else "")
