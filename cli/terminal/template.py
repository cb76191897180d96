"""A line of the user's own for each row: `--format '{version} {state}'`, and only references with `-q`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any, Final

from edl_ckpt.cli.terminal.documents import to_json
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant, size

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
