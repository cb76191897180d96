"""A report as one HTML page. Its sections are plain data: titles, sentences, charts and tables.

The template has only their shape.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli import __version__
from edl_ckpt.cli.page import charts
from edl_ckpt.cli.page.charts import number, when
from edl_ckpt.cli.terminal.text import count, escaped
from edl_ckpt.core import Version, kinds_of, shards_of
from edl_ckpt.core.base import words
from edl_ckpt.core.base.libraries import library

if TYPE_CHECKING:
    from edl_ckpt.core import CheckpointSummary, LocationReport, OpenedVersion


_OPEN: Final = 50
"""Versions whose rows are shown at once; those of older ones unfold."""
_Column = tuple[str, str]
"""The title of a column and its kind: 'number', 'when', 'prose', 'name' for a name in a checkpoint, or ''.

With 'long' after it, as in 'number long', the title is such a name too.
"""


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table; a cell is a text, or a text with the kind that gives it its colour."""

    caption: str
    columns: Sequence[_Column]
    rows: Sequence[Sequence[Any]]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and its caption."""

    drawing: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section: sentences, a list, large charts, small ones beside each other, and tables with the same numbers."""

    id: str
    title: str
    texts: Sequence[str] = ()
    items: Sequence[str] = ()
    charts: Sequence[Figure] = ()
    small: Sequence[Figure] = ()
    tables: Sequence[HtmlTable] = field(default_factory=tuple)


def check_libraries() -> None:
    """Raise UnsupportedError without the libraries of the extra `report`."""
    for name in ("jinja2", "vl_convert"):
        library(name, "report")


def page_of(report: LocationReport) -> str:
    """Return a report as HTML; UnsupportedError without the libraries of the extra `report`."""
    jinja2 = library("jinja2", "report")
    here = files("edl_ckpt.cli.page")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["zip"] = zip
    template = environment.from_string(here.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page: str = template.render(
        program=__version__,
        place=escaped(report.location.url),
        made=f"As it was on {when(report.made)} UTC. {words.size(report.bytes_read)} were read for it.",
        facts=facts_of(report),
        sections=sections_of(report),
        style=style,
        style_digest=f"sha256-{digest}",
    )
    return page


def sections_of(report: LocationReport) -> list[Section]:
    """Return the sections of a report; those without content are left out, but for findings and what is missing."""
    found = [_findings(report), _versions(report), _metrics(report)]
    if report.newest is not None:
        found += [_shards(report.newest), _growth(report, report.newest), _histograms(report), _drift(report)]
    found.append(Section("left-out", "Limits of this report", items=[escaped(note) for note in report.left_out]))
    return [section for section in found if section is not None]


def facts_of(report: LocationReport) -> list[tuple[str, str]]:
    """Return the numbers of the whole location; the first one is that of errors, which leads to the findings."""
    newest, kinds = report.newest, kinds_of(report.versions)
    errors = sum(finding.severity == "error" for _, finding in report.findings)
    unread = sum(bool(opened.fault) for opened in report.opened)
    facts = [
        ("errors found", count(errors) if not unread else f"{errors}, and {count(unread, 'version')} unread"),
        ("versions", count(report.total_versions)),
        ("complete", count(report.complete_versions)),
        ("size", words.size(report.size_bytes)),
        ("saved by" if report.layout == "steps" else "layout", kinds.removesuffix(" layout") or "none"),
        ("newest whole version", newest.ref.rpartition("@")[2] if newest else "none"),
    ]
    if newest is not None:
        facts += [
            ("shards", shards_of(newest.system, newest.ps_num or len(newest.shards))),
            ("parameters", count(newest.parameters)),
        ]
    if report.retention is not None:
        freed = f"{count(report.retention.deletions, 'version')}, {words.size(report.retention.deleted_bytes)}"
        facts.append(("prune would delete", freed))
    return facts


def _versions(report: LocationReport) -> Section:
    if not report.versions:
        return Section("versions", "Versions", [f"There is no version in {escaped(report.location.url)}."])
    retention = report.retention
    if retention is None:
        rules = "No retention rule is stored with this location, and none was given, so prune would delete nothing."
    else:
        whose = "The stored policy keeps" if retention.stored else "The rules that were given keep"
        stay = "Tagged versions, and the newest complete one and all after it, stay in any case."
        rules = f"{whose} {', '.join(map(escaped, retention.rules))}. {stay}"
    columns = [
        *(("version", "name"), ("saved (UTC)", "when"), ("state", ""), ("size", "number"), ("shards", "number")),
        *(("tags", "name"), ("note", "prose"), ("sealed", ""), ("kept, and why", "prose")),
    ]
    rows = [_version_row(report, version) for version in reversed(report.versions)]
    shown = [
        Figure(charts.sizes(report), "Size of each version"),
        Figure(charts.saves(report), "When each version was saved"),
    ]
    caption = f"Versions, the newest first: {min(len(rows), _OPEN)} of {report.total_versions}"
    filled = [k for k in range(len(columns)) if any(row[k] != "" for row in rows)]
    cells = [[row[k] for k in filled] for row in rows]
    shown_columns = [columns[k] for k in filled]
    newest_cells, older_cells = cells[:_OPEN], cells[_OPEN:]
    tables = []
    if newest_cells:
        tables.append(HtmlTable(caption, shown_columns, newest_cells))
    if older_cells:
        tables.append(HtmlTable(f"Older versions: {len(older_cells)}", shown_columns, older_cells, folded=True))
    problems = [escaped(problem) for problem in report.problems]
    return Section("versions", "Versions", [rules], problems, shown, (), tables)


def _version_row(report: LocationReport, version: Version) -> list[Any]:
    entry = report.retention.entries.get(version.path) if report.retention else None
    why: Any = ""
    if entry is not None:
        reasons = "; ".join(map(escaped, entry.reasons))
        why = reasons if entry.action.value == "keep" else {"kind": "gone", "text": f"prune would delete it: {reasons}"}
    state = {"kind": "good" if version.is_good else "bad", "text": version.shown_state}
    shards = f"{len(version.shards)} of {version.ps_num}" if version.ps_num else str(len(version.shards))
    sealed: Any = "yes" if version.fingerprint else "no"
    if version.seal_fault:
        sealed = {"kind": "bad", "text": "does not match"}
    tags = ", ".join(map(escaped, version.tags))
    saved = when(version.modified)
    size = words.size(version.size_bytes)
    note = escaped(version.note)
    return [str(version.key), saved, state, size, shards, tags, note, sealed, why]


def _numbers(*titles: str) -> list[_Column]:
    return [(title, "number") for title in titles]


def _metrics(report: LocationReport) -> Section | None:
    if not report.metrics:
        return None
    small = []
    for name in report.metrics:
        best = report.best.get(name)
        known = "" if best is None else f": best at {best.key}, {number(best.metrics[name])}"
        small.append(Figure(charts.metric(report, name), charts.label(name) + known))
    measured = [version for version in reversed(report.versions) if version.metrics]
    columns = [("version", "name"), *((escaped(name), "number long") for name in report.metrics)]
    rows = [[str(v.key), *(number(v.metrics.get(name)) for name in report.metrics)] for v in measured]
    return Section(
        "metrics", "Metrics", small=small, tables=[HtmlTable("Metrics of each version", columns, rows, folded=True)]
    )


def _findings(report: LocationReport) -> Section:
    read = len(report.opened)
    of = "the version" if report.total_versions == 1 else f"{read} of {count(report.total_versions, 'version')}"
    text = f"Names and headers of {of} were checked, as verify --quick does; ids and values were not."
    if not report.total_versions:
        text = "There was nothing to check."
    rows = [row for opened in reversed(report.opened) for row in _finding_rows(opened)]
    columns = [("version", "name"), ("severity", ""), ("code", ""), ("place", "name"),
               ("finding", "prose"), ("what to do", "prose")]  # fmt: skip
    tables = [HtmlTable("Findings of each version, the newest first", columns, rows)] if rows else []
    return Section("findings", "Findings", [text if rows else f"{text} Nothing was found."], tables=tables)


def _finding_rows(opened: OpenedVersion) -> Iterator[list[Any]]:
    ref = escaped(opened.version.ref)
    if opened.fault:
        yield [ref, {"kind": "error", "text": "unread"}, "", "", escaped(opened.fault), ""]
    for found in opened.findings:
        severity = {"kind": found.severity, "text": found.severity}
        yield [ref, severity, found.code, *map(escaped, (found.place, found.message, found.hint))]


def _shards(newest: CheckpointSummary) -> Section:
    sizes = [shard.size_bytes for shard in newest.shards]
    mean = sum(sizes) / len(sizes) if sizes else 0
    text = f"Shards of {escaped(newest.ref)}, the newest version whose headers show no error."
    if mean:
        most, least = (f"{edge / mean:.2f}" for edge in (max(sizes), min(sizes)))
        text += f" The largest has {most} times the bytes of their mean, the smallest {least}."
    columns = _numbers("shard", "size", "rows", "variables")
    rows = [[str(s.ps_id), words.size(s.size_bytes), count(s.rows), count(s.variables)] for s in newest.shards]
    return Section("shards", "Balance of shards", [text], charts=[Figure(charts.shards(newest), "Bytes of each shard")],
                   tables=[HtmlTable("Shards", columns, rows, folded=True)])  # fmt: skip


def _growth(report: LocationReport, newest: CheckpointSummary) -> Section:
    columns = [("table", "name"), *_numbers("rows", "dim"), ("dtype", ""), *_numbers("size")]
    rows = [
        [
            *(escaped(table.name), count(table.rows), count(table.dim), table.dtype or ""),
            *(words.size(table.size_bytes), escaped(table.initializer or "")),
        ]
        for table in newest.tables
    ]
    if not rows:
        return Section("tables", "Growth of tables", ["There is no embedding table."])
    over_time = [
        [str(opened.version.key), escaped(table.name), count(table.rows), words.size(table.size_bytes)]
        for opened in reversed(report.opened)
        for table in opened.tables
    ]
    tables = [
        HtmlTable(f"Tables of {escaped(newest.ref)}", [*columns, ("initializer", "name")], rows),
        HtmlTable(
            "Rows of tables in each version whose headers were read",
            [("version", "name"), ("table", "name"), *_numbers("rows", "size")],
            over_time,
            folded=True,
        ),
    ]
    drawn = [Figure(charts.growth(report), "Rows of each table")]
    return Section("tables", "Growth of tables", charts=drawn, tables=tables)


def _histograms(report: LocationReport) -> Section | None:
    if not report.tensors:
        return None
    small = [
        Figure(charts.histogram(t), f"{charts.label(t.stats.name)}: {_extent(t.stats.elements, t.of_elements)}")
        for t in report.tensors
    ]
    measures = ("elements read", "minimum", "maximum", "mean", "deviation", "zeros", "NaN", "infinite")
    columns = [("tensor", "name"), ("kind", ""), *_numbers(*measures)]
    rows = [
        [
            *(escaped(tensor.stats.name), tensor.stats.kind, _extent(tensor.stats.elements, tensor.of_elements)),
            *map(number, (tensor.stats.minimum, tensor.stats.maximum, tensor.stats.mean, tensor.stats.std)),
            *map(count, (tensor.stats.zeros, tensor.stats.nan, tensor.stats.inf)),
        ]
        for tensor in report.tensors
    ]
    text = f"A sample by the seed {report.seed}: another seed reads other places of large tensors."
    return Section(
        "values", "Values", [text], small=small, tables=[HtmlTable("Statistics of the sample", columns, rows)]
    )


def _extent(read: int, of: int) -> str:
    return f"all {count(of)}" if read == of else f"{count(read)} of {count(of)}"


def _drift(report: LocationReport) -> Section | None:
    if not report.drift:
        return None
    measures = ("relative", "cosine", "largest", "sampled", "changed", "added", "removed")
    columns = [("from", ""), ("to", ""), ("tensor", "name"), ("kind", ""), *_numbers(*measures)]
    rows = [
        [
            escaped(drift.a.rpartition("@")[2]),
            escaped(drift.b.rpartition("@")[2]),
            escaped(drift.name),
            drift.kind,
            number(drift.relative),
            number(drift.cosine),
            number(drift.max_abs),
            count(drift.sampled),
            count(drift.changed),
            count(drift.added),
            count(drift.removed),
        ]
        for drift in reversed(report.drift)
    ]
    text = (
        "The relative change is the L2 norm of the change over that of the values before. Rows of tables are compared"
        f" by their ids, chosen by the seed {report.seed}; added and removed count ids that only one version has."
    )
    drawn = [Figure(charts.drift(report), "Relative change of what changed most")]
    tables = [HtmlTable("Changes, the newest first", columns, rows)]
    return Section("drift", "Drift between versions", [text], charts=drawn, tables=tables)
