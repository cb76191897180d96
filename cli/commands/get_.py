"""The commands that print rows of a version: `get` by id, `head` the first, and `sample` some at random.

`get` prints dense variables and slices too, and writes values to files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import READS, WRITES, declared
from edl_ckpt.cli.options.common import Ref, Rows, Table, flag, option, show_loss
from edl_ckpt.cli.options.references import looked_at
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import RefusedError, UsageError
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.operations.lookup.nearest import Neighbours
    from edl_ckpt.core.operations.lookup.rows import Lookup


@declared(
    "get run@100 --table user_embedding --id 42",
    "get run --variable dense/kernel:0 --slice 0:10,3",
    exits=WRITES,
    c3="an id is not in the table",
    rows=True,
)
def get_command(
    out: Output,
    ref: Ref = None,
    table: Annotated[str | None, option("NAME", "The embedding table to read rows from.")] = None,
    ids: Annotated[list[int] | None, option("ID", "The id of a row; may be repeated.", "--id")] = None,
    ids_file: Annotated[
        str | None, option("FILE", "Read ids from FILE: one per line, or an .npy file of int64.")
    ] = None,
    variable: Annotated[str | None, option("NAME", "The dense variable to print.")] = None,
    index: Annotated[
        str | None, option("SLICE", "Only a slice, as in numpy: 0:10 or 0:10,3 or :,-1.", "--slice")
    ] = None,
    nearest: Annotated[int | None, option("K", "Also print the K most similar rows, by cosine.", least=1)] = None,
    everywhere: Annotated[bool, flag("Search all shards, for rows in the wrong one.")] = False,
    npy: Annotated[str | None, option("FILE", "Also write the values to an .npy file; - is stdout.")] = None,
) -> None:
    """Print rows of a table, a dense variable, or a slice.

    The command opens only the shards that the ids belong to, and reads only the rows or the slice. A slice of a table
    counts its rows shard after shard. Exit code 3 means that an id is not in the table.
    """
    from edl_ckpt.cli.render import get as render
    from edl_ckpt.core.operations.lookup.nearest import find_nearest
    from edl_ckpt.core.operations.lookup.rows import look_up
    from edl_ckpt.core.operations.lookup.slices import slice_table

    by_id = bool(ids or ids_file or nearest or everywhere)
    if (table is None) == (variable is None) or (by_id and (variable or index)):
        raise UsageError("expected --table NAME with --id, --ids-file or --slice, or --variable NAME")
    version, write = looked_at(ref, out), partial(write_values, npy=npy)
    if variable is not None:
        _show_variable(out, version, variable, index, write)
        return
    if index is not None:
        found = slice_table(version, str(table), index)
    elif wanted := [*(ids or ()), *(read_ids(ids_file) if ids_file else ())]:
        found = look_up(version, str(table), wanted, everywhere=everywhere)
    else:
        hint = f"try: {command('ids', version.ref, '--table', str(table), '-n', '5')}"
        raise UsageError("no ids were given (expected --id, --ids-file or --slice)", hint=hint)
    close = find_nearest(version, found, nearest) if nearest else ()
    if write(found.vectors):
        show_rows(out, found, close)
    out.detail(f"read {found.bytes_read} bytes of {version.size_bytes}")
    out.warn(*render.warnings(found))
    show_loss(out, found.loss, fails=bool(found.unread))
    out.conclude(ok=not found.missing)


def _show_variable(out: Output, version: Version, name: str, index: str | None, write: Callable[..., bool]) -> None:
    from edl_ckpt.cli.render import get as render
    from edl_ckpt.core.operations.lookup.slices import slice_variable

    values, dtype = slice_variable(version, name, "..." if index is None else index)
    if write(values):
        out.show(
            lambda: render.variable_document(version.ref, name, values, dtype.name, index),
            render.variable_human(version.ref, name, values, dtype.name, index),
            lambda: render.variable_rows(values),
        )


def show_rows(out: Output, found: Lookup, close: Sequence[Neighbours] = (), *, name: str = "get") -> None:
    """Print rows of a table, and those nearest to them, as the command of this name does."""
    from edl_ckpt.cli.render import get as render

    out.show(lambda: render.document(found, close, name=name), render.human(found, close), lambda: render.rows(found))


def read_ids(path: str) -> list[int]:
    """Return the ids in a file; UsageError names the line of a text that is not an id."""
    from tokenize import TokenError

    import numpy as np

    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.user_files import check_input, open_input

    check_input(path)
    with storage_errors(path):
        if path.endswith(".npy"):
            try:
                array = np.load(path, allow_pickle=False)
            except (ValueError, EOFError, SyntaxError, TokenError) as error:
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


def write_values(values: npt.NDArray[np.generic], *, npy: str | None) -> bool:
    """Write values to an .npy file; return False when stdout has them."""
    import numpy as np

    if npy is None:
        return True
    whole = values.copy(order="C")  # which keeps the shape of a scalar
    with _opened(npy) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
        file.write(whole.reshape(-1).view(np.uint8).data)
    return npy != "-"


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file, a pipe or stdout for values; a terminal is refused, and so is a directory."""
    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.streams import STDOUT, is_stream, open_stream
    from edl_ckpt.core.storage.user_files import check_target

    path = STDOUT if path == "-" else path
    if not is_stream(path):
        check_target(path)
        with storage_errors(path), open(path, "wb") as file:
            yield file
        return
    with open_stream(path) as stream:
        if stream.isatty():
            raise RefusedError("is a terminal, and values are no text", path=path, hint="give a file, or a pipe")
        yield stream


@declared(
    "head run@100 --table user_embedding", "head run@100 --table user_embedding -n 1000 --csv", exits=READS, rows=True
)
def head_command(
    out: Output,
    ref: Ref = None,
    table: Table = None,
    rows: Rows = 10,
) -> None:
    """Print the first rows of a table.

    It reads the first shard, in stored order.
    """
    from edl_ckpt.core.operations.lookup.rows import first_rows

    found = first_rows(looked_at(ref, out), table, rows)
    show_rows(out, found, name="head")
    show_loss(out, found.loss)


@declared(
    "sample run@100 --table user_embedding",
    "sample run --table user_embedding -n 9 --seed 7",
    exits=READS,
    rows=True,
)
def sample_command(
    out: Output,
    ref: Ref = None,
    table: Table = None,
    rows: Rows = 10,
    seed: Annotated[int, option("N", "The seed of the choice.")] = 0,
) -> None:
    """Print rows of a table that are chosen at random.

    The choice depends only on the ids and the seed, so it is the same after a reshard, and for the same ids in the next
    version. The command reads all ids, and the values of the chosen rows.
    """
    from edl_ckpt.core.operations.lookup.rows import sample_rows

    show_rows(out, sample_rows(looked_at(ref, out), table, rows, seed=seed), name="sample")
