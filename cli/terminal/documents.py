"""Results as JSON documents, as CSV, and as lines of the user's own.

Dataclasses are objects, and what JSON lacks is text. A template makes a line of each row: `--format '{version}
{state}'`, and only references with `-q`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from string import Formatter
from typing import Any, Final

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.words import meant, size

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that spreadsheets compute."""


@dataclass(frozen=True, slots=True)
class Several:
    """The values of one cell of a row: a list in JSON, and in CSV one text with a gap between them."""

    values: Sequence[Any]
    gap: str = " "

    def __str__(self) -> str:
        return self.gap.join(map(str, self.values))


@dataclass(frozen=True, slots=True)
class Recorded(Several):
    """One cell with any value of JSON: in CSV it is a text that is JSON."""

    values: Any

    def __str__(self) -> str:
        return to_json(self.values)


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def as_dict(value: Any) -> Any:
    """Return a result with its dataclasses as dicts, as `dataclasses.asdict` does, but without copies of the rest.

    That takes a fifth of the time, which counts where a result has 100,000 variables.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return tuple(map(as_dict, value)) if kind is tuple else list(map(as_dict, value))
    if isinstance(value, Mapping):
        return {key: as_dict(item) for key, item in value.items()}
    names = _field_names(kind)
    if names is None:
        return value
    items = [getattr(value, name) for name in names]
    return {name: i if type(i) in _PLAIN else as_dict(i) for name, i in zip(names, items, strict=True)}


def picked(value: Any, keys: str, /, **own: Any) -> dict[str, Any]:
    """Return the attributes of a value by these names, as `as_dict` has them; `own` are those that have another value.

    A key with a '?' is null for an empty value.

    >>> picked(3 + 4j, "real imag?", imag="")
    {'real': 3.0, 'imag': None}
    """
    found: dict[str, Any] = {}
    for word in keys.split():
        key = word.rstrip("?")
        content = own[key] if key in own else as_dict(getattr(value, key))
        found[key] = content if key == word else content or None
    return found


def document_of(name: str, value: Any, keys: str, /, **own: Any) -> dict[str, Any]:
    """Return the document `edl-ckpt/NAME/1` of a result: those of its attributes that `picked` picks."""
    return {"schema": f"edl-ckpt/{name}/1", **picked(value, keys, **own)}


def rows_of(keys: str, items: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Return a header, and a row of these values for each item of a document."""
    header = keys.split()
    return [[*header], *([item.get(key) for key in header] for item in items)]


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as lines of CSV; True and False as JSON writes them, texts as `no_formula` does."""
    import csv

    lines = _Lines()
    csv.writer(lines, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in rows])
    return "".join(lines.found)


class _Lines:
    """Takes lines of CSV that end with CR LF, so that the writer quotes both characters; here they end with LF."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write(self, line: str) -> None:
        """Take a line."""
        self.found.append(f"{line[:-2]}\n")


def no_formula(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: before its first character stands an apostrophe.

    Names come from files of others. Numbers, also those that are written as texts, stay as they are.

    >>> no_formula("=HYPERLINK(A1)"), no_formula("user"), no_formula("-Infinity"), no_formula("-1.5")
    ("'=HYPERLINK(A1)", 'user', '-Infinity', '-1.5')
    """
    if not text.startswith(_FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _cell(value: Any) -> Any:
    """Return a value as a cell of CSV."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float):
        return value
    return no_formula(str(value))


def failure(ref: str, error: EdlCkptError) -> dict[str, Any]:
    """Return why something could not be done with one version of several."""
    return {"ref": ref, "code": error.exit_code, "id": error.id, "message": str(error)}


@lru_cache(256)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass; None for any other type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def to_json(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON in ASCII, safe on any terminal; NaN and infinities are texts, as JSON lacks them.

    In the log of a CI job, '##' could begin a command, so one of its characters is escaped.
    """
    try:
        text = json.dumps(document, allow_nan=False, indent=indent)
    except ValueError:  # there is one
        text = json.dumps(_expressible(document), allow_nan=False, indent=indent)
    return text.replace("##", "#\\u0023")


def _expressible(value: Any) -> Any:
    """Return a document in which NaN and infinities are the texts that protobuf's JSON has for them."""
    if isinstance(value, dict):
        return {key: _expressible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_expressible(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        from edl_ckpt.core.state.document import json_number

        return json_number(value)
    return value


_ESCAPES: Final = {r"\t": "\t", r"\n": "\n"}
_METRIC: Final = "metrics."
REFERENCES: Final = "{ref}"


class Template:
    """A line for each row: fields in braces, by the keys of its JSON document, each with a format as in Python."""

    def __init__(self, template: str, *, end: str = "\n") -> None:
        for written, meaning in _ESCAPES.items():
            template = template.replace(written, meaning)
        try:
            self._parts = [*Formatter().parse(template)]
        except ValueError as error:
            raise UsageError(f"--format {template!r}: {error}", hint="a brace itself is written {{ or }}") from None
        self._end = end

    def of(self, rows: Iterable[Mapping[str, Any]], *, safe: bool) -> str:
        """Return the lines of rows; with `safe`, names cannot control a terminal."""
        return "".join("".join(self._line(row, safe=safe)) + self._end for row in rows)

    def _line(self, row: Mapping[str, Any], *, safe: bool) -> Iterable[str]:
        for literal, field, form, conversion in self._parts:
            yield literal
            if field is None:
                continue
            if conversion or "{" in (form or ""):
                raise UsageError(f"--format: {{{field}}} takes no conversion and no nested field")
            shown = _formatted(_value(row, field), field, form or "")
            yield escaped(shown) if safe else shown


def _value(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field; of a metric that this row lacks, None."""
    if field in row:
        return row[field]
    if field == "size" and "size_bytes" in row:
        return size(row["size_bytes"])
    if field.startswith(_METRIC) and _METRIC[:-1] in row:
        return row["metrics"].get(field.removeprefix(_METRIC))
    fields = [*row, "size"] + [f"{_METRIC}NAME"] * ("metrics" in row)
    raise UsageError(f"--format: no field {field!r}", hint=meant(field, fields) or f"fields: {', '.join(fields)}")


def _formatted(value: Any, field: str, form: str) -> str:
    if value is None:
        value, form = "", form.rstrip("bcdeEfFgGnoxX%").partition(".")[0].replace(",", "")
    elif isinstance(value, bool | dict):
        value = to_json(value)
    elif isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    try:
        return format(value, form)
    except ValueError as error:
        raise UsageError(f"--format: {{{field}:{form}}}: {error}") from None
