"""`edl-ckpt get`: prints rows of a table, or a dense variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edl_ckpt.cli.help import examples
from edl_ckpt.cli.manual.codes import WRITES, exits
from edl_ckpt.cli.options import Csv, Jsonl, Ref, resolve_ref, warn_of_seal
from edl_ckpt.cli.output import Output
from edl_ckpt.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edl_ckpt.core.format.model import Version


@examples(
    "get run@100 --table user_embedding --id 42",
    "get run@100 --variable dense/kernel:0 --npy kernel.npy",
)
@exits(WRITES, c3="an id is not in the table")
def get_command(
    out: Output,
    ref: Ref = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="The embedding table to read rows from.")] = None,
    ids: Annotated[
        list[int] | None, typer.Option("--id", metavar="ID", help="The id of a row; may be repeated.")
    ] = None,
    ids_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read ids from FILE: one per line, or an .npy file of int64.")
    ] = None,
    variable: Annotated[str | None, typer.Option(metavar="NAME", help="The dense variable to print.")] = None,
    nearest: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Also print the K most similar rows, by cosine.")
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Search all shards, for rows in the wrong one.")
    ] = False,
    npy: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the values to an .npy file.")] = None,
    csv: Csv = False,  # noqa: ARG001
    jsonl: Jsonl = False,  # noqa: ARG001
) -> None:
    """Print rows of a table, or a dense variable.

    The command opens only the shards that the ids belong to. Exit code 3 means that an id is not in the table.
    """
    from edl_ckpt.cli import render_get
    from edl_ckpt.core.operations.lookup import find_nearest, look_up

    if (table is None) == (variable is None) or (variable and (ids or ids_file or nearest)):
        raise UsageError("expected --table NAME with --id or --ids-file, or --variable NAME alone")
    version = resolve_ref(ref, out)
    warn_of_seal(out, version)
    if variable is not None:
        _show_variable(out, version, variable, npy)
        return
    wanted = [*(ids or ()), *(read_ids(ids_file) if ids_file else ())]
    if not wanted:
        raise UsageError("no ids were given (expected --id or --ids-file)")
    found = look_up(version, str(table), wanted, everywhere=everywhere)
    close = find_nearest(version, found, nearest) if nearest else ()
    _write_npy(npy, found.vectors)
    out.show(
        lambda: render_get.document(found, close),
        lambda: render_get.human(found, close),
        lambda: render_get.rows(found),
    )
    out.detail(f"read {found.bytes_read} bytes of {version.size_bytes}")
    for warning in render_get.warnings(found):
        out.warn(warning)
    if found.missing:
        raise SystemExit(3)


def _show_variable(out: Output, version: Version, name: str, npy: str | None) -> None:
    from edl_ckpt.cli import render_get
    from edl_ckpt.core.operations.lookup import read_variable

    values, dtype = read_variable(version, name)
    _write_npy(npy, values)
    out.show(
        lambda: render_get.variable_document(version.ref, name, values, dtype.name),
        lambda: render_get.variable_human(version.ref, name, values, dtype.name),
        lambda: render_get.variable_rows(values),
    )


def read_ids(path: str) -> list[int]:
    """Return the ids in a file; UsageError names the line of a text that is not an id."""
    import numpy as np

    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.regular import check_input, open_input

    check_input(path)
    with storage_errors(path):
        if path.endswith(".npy"):
            try:
                array = np.load(path, allow_pickle=False)
            except ValueError as error:
                raise UsageError(f"not an .npy file of ids: {error}", path=path) from None
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 1:
                raise UsageError("expected an .npy file with one dimension of integers", path=path)
            return [int(i) for i in array]
        with open_input(path, encoding="utf-8", errors="replace") as file:
            lines = [(number, line.strip()) for number, line in enumerate(file, start=1)]
    ids: list[int] = []
    for number, line in lines:
        try:
            ids += [int(line)] if line else []
        except ValueError:
            raise UsageError(f"line {number}: {line[:40]!r} is not an id", path=path) from None
    return ids


def _write_npy(path: str | None, values: npt.NDArray[np.generic]) -> None:
    import numpy as np

    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.regular import check_target

    if path is not None:
        check_target(path)
        with storage_errors(path), open(path, "wb") as file:
            np.save(file, values, allow_pickle=False)
