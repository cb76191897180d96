"""Formats of rows, for people and other tools: one table as CSV, JSON lines, word2vec text, TensorBoard projector.

Numbers are the shortest decimals that give the same float again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.operations.export.formats.content_format import ContentFormat
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, TableRows
from edl_ckpt.core.operations.export.output.target import ExportTarget, text_file
from edl_ckpt.core.state.document import json_number

_NOT_FINITE: Final = {text: json.dumps(json_number(float(text))) for text in ("nan", "inf", "-inf")}
"""The JSON texts for the numbers that JSON lacks, by what numpy prints for them."""


_rows_of = partial(FormatTraits, takes_limit=True, is_lossless=False)
_NO_BOOL: Final = frozenset({"bool"})


class LinesFormat(ContentFormat):
    """A file of lines: `head` makes the first of them, `lines` those of some rows."""

    separator: ClassVar[str]
    """Stands between the id and the elements of a row."""

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the only table; UsageError when there are several, or none."""
        table, rows = _only(content), self.counts(content).rows
        with target.open_text() as file:
            file.write(self.head(rows, table.dim))
            for ids, text in _texts(table, rows):
                file.writelines(self.lines(ids, text))

    def head(self, rows: int, dim: int) -> str:
        """Return the text before the first row; by default there is none."""
        del rows, dim
        return ""

    def lines(self, ids: npt.NDArray[np.int64], text: list[list[str]]) -> Iterator[str]:
        """Yield a line for each row, from its id and its elements as text."""
        mark = self.separator
        yield from (f"{i}{mark}{mark.join(row)}\n" for i, row in zip(ids.tolist(), text, strict=True))


class Csv(LinesFormat):
    """A header `id,v0,v1,...`, then a line `5,0.25,...` for each row."""

    separator = ","
    traits: ClassVar = _rows_of("csv", endings=(".csv",), is_text=True)

    def head(self, rows: int, dim: int) -> str:
        """Return the names of the columns."""
        del rows
        return ",".join(["id", *(f"v{k}" for k in range(dim))]) + "\n"


class JsonLines(LinesFormat):
    """A line `{"id": 5, "vector": [...]}` for each row; NaN and infinities, which JSON lacks, are texts."""

    traits: ClassVar = _rows_of("jsonl", endings=(".jsonl",), is_text=True)

    def lines(self, ids: npt.NDArray[np.int64], text: list[list[str]]) -> Iterator[str]:
        """Yield JSON objects."""
        for i, row in zip(ids.tolist(), text, strict=True):
            numbers = (_NOT_FINITE.get(x) or x.lower() for x in row)  # `True` of numpy is `true` of JSON
            yield f'{{"id": {i}, "vector": [{", ".join(numbers)}]}}\n'


class Word2Vec(LinesFormat):
    """The text format of word2vec: a line `rows dim`, then `id v0 v1 ...` for each row."""

    separator = " "
    traits: ClassVar = _rows_of("word2vec", endings=(".vec",), is_text=True, lacked_dtypes=_NO_BOOL)

    def head(self, rows: int, dim: int) -> str:
        """Return the numbers of rows and of elements."""
        return f"{rows} {dim}\n"


class Projector(ContentFormat):
    """A directory for TensorBoard's embedding projector: `vectors.tsv`, `metadata.tsv` with the ids, and its config."""

    traits: ClassVar = _rows_of("projector", is_directory=True, lacked_dtypes=_NO_BOOL)

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the only table; UsageError when there are several, or none."""
        table, path = _only(content), target.path
        files = [os.path.join(path, name) for name in ("vectors.tsv", "metadata.tsv", "projector_config.pbtxt")]
        with text_file(files[0]) as vectors, text_file(files[1]) as names, text_file(files[2]) as config:
            for ids, text in _texts(table, self.counts(content).rows):
                vectors.writelines("\t".join(row) + "\n" for row in text)
                names.writelines(f"{i}\n" for i in ids.tolist())
            shown = table.name.encode("unicode_escape").decode().replace('"', "'")
            config.write(
                f'embeddings {{\n  tensor_name: "{shown}"\n  tensor_path: "vectors.tsv"\n'
                '  metadata_path: "metadata.tsv"\n}\n'
            )


def _only(content: ExportContent) -> TableRows:
    if len(content.tables) != 1:
        names = ", ".join(repr(t.name) for t in content.tables) or "none"
        raise UsageError(f"this format takes one table, got {names}", hint="choose one: --table NAME")
    if not content.notes:
        raise UsageError("each row has its id in a text; `dense_rows` is for other formats")
    return content.tables[0]


def _texts(table: TableRows, rows: int) -> Iterator[tuple[npt.NDArray[np.int64], list[list[str]]]]:
    """Yield ids and, as text, the elements of their rows: at most `rows` of them."""
    remaining = rows
    for ids, vectors in table.batches():
        if remaining <= 0:
            return
        some = vectors[:remaining]
        if some.dtype == np.float16:  # its own shortest digits are another number to whoever reads float32
            some = some.astype(np.float32)
        yield ids[:remaining], some.astype(str).tolist()
        remaining -= len(ids)
