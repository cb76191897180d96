"""Formats of rows, for people and other tools: one table as CSV, JSON lines, word2vec text, TensorBoard projector.

Numbers are the shortest decimals that give the same float again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import IO, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.operations.export.interface import ExportContent, TableRows
from edl_ckpt.core.state.metadata import json_number
from edl_ckpt.core.storage.faults import storage_errors

_NOT_FINITE: Final = {text: json.dumps(json_number(float(text))) for text in ("nan", "inf", "-inf")}
"""How JSON lines have what numpy prints and JSON lacks."""

Format = Callable[[npt.NDArray[np.int64], list[list[str]]], Iterator[str]]


class RowsFile:
    """A file of lines, made from one table; `head` is the first of them."""

    is_directory = False

    def __init__(self, name: str, head: Callable[[TableRows], str], lines: Format, limit: int | None = None) -> None:
        self.name = name
        self._head = head
        self._lines = lines
        self._limit = limit

    def write(self, content: ExportContent, path: str) -> None:
        """Write the only table; UsageError when there are several, or none."""
        table = _only(content)
        rows = table.rows if self._limit is None else min(table.rows, self._limit)
        with storage_errors(path), open(path, "x", encoding="utf-8", newline="\n") as file:
            file.write(self._head(TableRows(table.name, rows, table.dim, table.batches)))
            for ids, text in _texts(table, rows):
                file.writelines(self._lines(ids, text))
            _flush(file)


class Projector:
    """What TensorBoard's embedding projector reads: `vectors.tsv`, `metadata.tsv` with the ids, and its config."""

    name = "projector"
    is_directory = True

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit

    def write(self, content: ExportContent, path: str) -> None:
        """Write the only table; UsageError when there are several, or none."""
        table = _only(content)
        rows = table.rows if self._limit is None else min(table.rows, self._limit)
        files = [os.path.join(path, name) for name in ("vectors.tsv", "metadata.tsv", "projector_config.pbtxt")]
        with (
            storage_errors(path),
            open(files[0], "x") as vectors,
            open(files[1], "x") as names,
            open(files[2], "x") as c,
        ):
            for ids, text in _texts(table, rows):
                vectors.writelines("\t".join(row) + "\n" for row in text)
                names.writelines(f"{i}\n" for i in ids.tolist())
            shown = table.name.encode("unicode_escape").decode().replace('"', "'")
            c.write(
                f'embeddings {{\n  tensor_name: "{shown}"\n  tensor_path: "vectors.tsv"\n'
                '  metadata_path: "metadata.tsv"\n}\n'
            )
            for file in (vectors, names, c):
                _flush(file)


def csv_file(limit: int | None) -> RowsFile:
    """Return the format: a header `id,v0,v1,...`, then a row for each id."""

    def lines(ids: npt.NDArray[np.int64], text: list[list[str]]) -> Iterator[str]:
        yield from (f"{i},{','.join(row)}\n" for i, row in zip(ids.tolist(), text, strict=True))

    return RowsFile("csv", lambda t: ",".join(["id", *(f"v{k}" for k in range(t.dim))]) + "\n", lines, limit)


def json_lines(limit: int | None) -> RowsFile:
    """Return the format: `{"id": 5, "vector": [...]}`; NaN and infinities, which JSON lacks, are texts."""

    def lines(ids: npt.NDArray[np.int64], text: list[list[str]]) -> Iterator[str]:
        for i, row in zip(ids.tolist(), text, strict=True):
            numbers = (_NOT_FINITE.get(x) or x.lower() for x in row)  # `True` of numpy is `true` of JSON
            yield f'{{"id": {i}, "vector": [{", ".join(numbers)}]}}\n'

    return RowsFile("jsonl", lambda _: "", lines, limit)


def word2vec(limit: int | None) -> RowsFile:
    """Return the text format of word2vec: a line `rows dim`, then `id v0 v1 ...`."""

    def lines(ids: npt.NDArray[np.int64], text: list[list[str]]) -> Iterator[str]:
        yield from (f"{i} {' '.join(row)}\n" for i, row in zip(ids.tolist(), text, strict=True))

    return RowsFile("word2vec", lambda t: f"{t.rows} {t.dim}\n", lines, limit)


def _only(content: ExportContent) -> TableRows:
    if len(content.tables) != 1:
        names = ", ".join(repr(t.name) for t in content.tables) or "none"
        raise UsageError(f"this format holds one table; there are {names}", hint="choose one: --table NAME")
    return content.tables[0]


def _texts(table: TableRows, rows: int) -> Iterator[tuple[npt.NDArray[np.int64], list[list[str]]]]:
    """Yield ids and, as text, the elements of their rows: at most `rows` of them."""
    left = rows
    for ids, vectors in table.batches():
        if left <= 0:
            return
        yield ids[:left], vectors[:left].astype(str).tolist()
        left -= len(ids)


def _flush(file: IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())
