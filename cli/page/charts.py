"""The charts of a report, and its numbers and times as charts and tables have them.

Vega-Lite draws SVG when the report is made; colours are variables of the page's CSS. Each mark has its values as a
title, which a browser shows under the pointer.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from edl_ckpt.cli.terminal.text import count, escaped
from edl_ckpt.core import State, Version
from edl_ckpt.core.base import words
from edl_ckpt.core.base.libraries import library

if TYPE_CHECKING:
    from edl_ckpt.core import CheckpointSummary, Drift, LocationReport, SampledTensor

SERIES: Final = 6
"""Lines of one chart: as many as colours can be told apart, each with a symbol of its own too."""
_LABEL: Final = 36
"""Characters of a name in a chart; the tables have it whole."""
_SAYS: Final = "says"
"""The field of a row with its values in words."""
_DAY_MS: Final = 86_400_000
_LEAST_SPAN_MS: Final = 60_000
"""A shorter time, as copies take, says nothing of a job."""
_TICKS: Final = 11
"""Labels on an axis without a scale."""
_WIDTH: Final = 1050
"""Pixels of a large chart without its axis: the width of the page."""
_BAR: Final = 56
"""The most pixels of a bar."""
_SVG: Final = "http://www.w3.org/2000/svg"
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
"""A name, which nobody fetches."""
_CONFIG: Final[Mapping[str, Any]] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--dim)",
        "titleColor": "var(--dim)",
        "titleFontWeight": "normal",
        "gridColor": "var(--grid)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 11,
        "titleFontSize": 11,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--dim)",
        "labelLimit": 260,
        "orient": "bottom",
        "columns": 1,
    },
    "range": {"category": [f"var(--series-{k})" for k in range(1, SERIES + 1)]},
}
_COLOUR: Final = {"value": "var(--series-1)"}
"""Of a chart with one series."""

_STATUS: Final = {
    "kept": "var(--series-1)",
    "complete": "var(--series-1)",
    "prune would delete it": "var(--idle)",
    "not complete": "var(--bad)",
}


def when(seconds: float) -> str:
    """Return a time in UTC, to the minute; '' for an unknown one.

    >>> when(0.0), when(1_790_000_000.5)
    ('', '2026-09-21 14:13')
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else ""


def number(value: float | None) -> str:
    """Return a number to read.

    >>> number(0.123456789), number(None), number(float("nan")), number(1e-9)
    ('0.123457', '', 'NaN', '1e-09')
    """
    if value is None:
        return ""
    return "NaN" if math.isnan(value) else f"{value:.6g}"


def label(name: str) -> str:
    """Return a name for a chart: printable, and shortened in the middle.

    >>> label("user"), label("embedding/" * 10)
    ('user', 'embedding/embeddin…ing/embedding/')
    """
    name = escaped(name)
    half = _LABEL // 2
    return name if len(name) <= _LABEL else f"{name[:half]}…{name[-half + 4 :]}"


def labels(names: Sequence[str]) -> dict[str, str]:
    """Return a label for each name, cut so that it shows where the name differs from those it could be taken for.

    No two are the same, or their lines would be one.

    >>> list(labels([f"{'tower/' * 9}{name}/weights/of/the/embedding/table" for name in ("age", "sex")]).values())
    ['…age/weights/of/the/embedding/table', '…sex/weights/of/the/embedding/table']
    """
    by_label = {short: [name for name in names if label(name) == short] for short in map(label, names)}
    found: dict[str, str] = {}
    for short, alike in by_label.items():
        same = next((k for k, letters in enumerate(zip(*alike, strict=False)) if len(set(letters)) > 1), _LABEL)
        for k, name in enumerate(alike):
            cut = f"…{escaped(name[same:])[: _LABEL - 1]}" if len(alike) > 1 else short
            found[name] = f"{cut} ({k + 1})" if cut in found.values() or cut == "…" else cut
    return {name: found[name] for name in names}


def sizes(report: LocationReport) -> str:
    """Return a chart of the size of each version, with what prune would do."""
    unit, scale = words.unit(max((v.size_bytes for v in report.versions), default=0))
    rows = [
        {
            "version": str(v.key),
            unit: v.size_bytes / scale,
            "status": (what := status(report, v)),
            _SAYS: f"{v.key}: {words.size(v.size_bytes)}, {what}",
        }
        for v in report.versions
    ]
    seen = [name for name in _STATUS if any(row["status"] == name for row in rows)]
    scheme = {"domain": seen, "range": [_STATUS[name] for name in seen]}
    return _drawn("Size of each version", rows, {"type": "bar"}, {
        "x": _versions(rows),
        "y": {"field": unit, "type": "quantitative", "title": unit},
        "color": {"field": "status", "type": "nominal", "title": None, "scale": scheme},
    })  # fmt: skip


def status(report: LocationReport, version: Version) -> str:
    """Return what a version is, as far as its colour says."""
    entry = report.retention.entries.get(version.path) if report.retention else None
    if entry is not None and entry.action.value == "delete":
        return "prune would delete it"
    if not version.is_good:
        return "damaged" if version.damage else "not complete"
    return "kept" if entry is not None else "complete"


def saves(report: LocationReport) -> str:
    """Return a chart of when each version was saved; '' where times are not known, or all about the same."""
    timed = [v for v in report.versions if v.modified and v.number is not None]
    times = [round(v.modified * 1000) for v in timed]
    rows = [
        {"version": v.version, "saved": time, _SAYS: f"{v.key}: {when(v.modified)} UTC"}
        for v, time in zip(timed, times, strict=True)
    ]
    if not times or max(times) - min(times) < _LEAST_SPAN_MS:
        return ""
    span = max(times) - min(times)
    form = "%H:%M" if span < 2 * _DAY_MS else "%Y-%m-%d"
    axis = {"title": "saved (UTC)", "format": form, "tickCount": 6, "labelOverlap": True}
    return _drawn("When each version was saved", rows, {"type": "point", "filled": True, "size": 45, "opacity": 1}, {
        "x": {"field": "saved", "type": "temporal", "scale": {"type": "utc", "nice": True}, "axis": axis},
        "y": {"field": "version", "type": "quantitative", "title": "version", "scale": {"zero": False}},
    })  # fmt: skip


def metric(report: LocationReport, name: str) -> str:
    """Return a chart of one metric, without values that are not finite; '' when there is no other."""
    values = [_finite(v.metrics.get(name)) for v in report.versions]
    rows = [
        {"version": str(v.key), "value": value, _SAYS: f"{v.key}: {number(value)}"}
        for v, value in zip(report.versions, values, strict=True)
    ]
    if all(value is None for value in values):
        return ""
    return _drawn(f"{label(name)} of each version", rows, {"type": "line", "point": {"size": 40}}, {
        "x": _versions(rows),
        "y": {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}},
    }, small=True)  # fmt: skip


def shards(newest: CheckpointSummary) -> str:
    """Return a chart of the bytes of each shard, with their mean."""
    unit, scale = words.unit(max((s.size_bytes for s in newest.shards), default=0))
    rows = [
        {"shard": s.ps_id, unit: s.size_bytes / scale, _SAYS: f"shard {s.ps_id}: {words.size(s.size_bytes)}"}
        for s in newest.shards
    ]
    mean = sum(s.size_bytes for s in newest.shards) / scale / max(len(rows), 1)
    rule = {
        "data": {"values": [{"mean": mean, _SAYS: f"mean: {words.size(mean * scale)}"}]},
        "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [4, 3]},
        "encoding": {"y": {"field": "mean", "type": "quantitative"}, "description": {"field": _SAYS}},
    }
    return _drawn("Bytes of each shard; the dashed line is their mean", rows, {"type": "bar"}, {
        "x": {"field": "shard", "type": "ordinal", "title": "shard", "axis": _sparse([s.ps_id for s in newest.shards])},
        "y": {"field": unit, "type": "quantitative", "title": unit},
    }, beside=rule)  # fmt: skip


def growth(report: LocationReport) -> str:
    """Return a chart of the rows of the largest tables in versions that are whole; '' without two of them."""
    tables = [table.name for opened in reversed(report.opened) for table in opened.tables]
    names = labels(list(dict.fromkeys(tables))[:SERIES])
    rows: list[dict[str, Any]] = []
    for opened in report.opened:
        if not opened.ok or opened.version.state is not State.COMPLETE:
            continue
        key = str(opened.version.key)
        for table in opened.tables:
            if table.name in names:
                name = names[table.name]
                says = f"{name} at {key}: {count(table.rows, 'row')}"
                rows.append({"version": key, "rows": table.rows, "table": name, _SAYS: says})
    if len({row["version"] for row in rows}) < 2:
        return ""
    return _lines("Rows of each table", rows, "rows", "table", "~s")


def drift(report: LocationReport) -> str:
    """Return a chart of the relative change of the tensors that changed most; '' without any."""
    found = [(d, value) for d in report.drift if (value := _finite(d.relative)) is not None]
    most: dict[str, float] = {}
    for each, value in found:
        most[_kind_and_name(each)] = max(value, most.get(_kind_and_name(each), 0.0))
    names = labels(sorted(most, key=lambda name: (-most[name], name))[:SERIES])
    rows = [
        {
            "version": (version := each.b.rpartition("@")[2]),
            "change": value,
            "tensor": (name := names[_kind_and_name(each)]),
            _SAYS: f"{name} at {version}: {number(value)}",
        }
        for each, value in found
        if _kind_and_name(each) in names
    ]
    return _lines("Relative change since the version before", rows, "change", "tensor", "~g") if rows else ""


def _kind_and_name(drift: Drift) -> str:
    return f"{drift.name} ({drift.kind})"


def histogram(tensor: SampledTensor) -> str:
    """Return the histogram of a tensor; '' without two different values."""
    stats = tensor.stats
    if stats.minimum == stats.maximum:
        return ""
    edges = [edge for edge in stats.edges if math.isfinite(edge)]
    if not stats.histogram or len(edges) != len(stats.edges):
        return ""
    rows = [
        {"from": low, "to": high, "count": some, _SAYS: f"{number(low)} to {number(high)}: {count(some)}"}
        for low, high, some in zip(edges, edges[1:], stats.histogram, strict=False)
    ]
    few, thousands = ({"format": form, "tickCount": ticks} for form, ticks in (("~g", 4), ("~s", 3)))
    return _drawn(f"Histogram of {label(stats.name)}", rows, {"type": "bar"}, {
        "x": {"field": "from", "bin": "binned", "type": "quantitative", "title": None, "axis": few},
        "x2": {"field": "to"},
        "y": {"field": "count", "type": "quantitative", "title": None, "axis": thousands},
    }, small=True)  # fmt: skip


def _sparse(values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis whose labels do not touch each other: those of some values at even distances."""
    step = -(-len(values) // _TICKS)
    return {"values": values[::step], "labelAngle": 0, "labelLimit": 60}


def _versions(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the axis of versions, in their order."""
    order = list(dict.fromkeys(row["version"] for row in rows))
    return {"field": "version", "type": "ordinal", "sort": order, "title": "version", "axis": _sparse(order)}


def _lines(title: str, rows: list[dict[str, Any]], value: str, series: str, form: str) -> str:
    order = list(dict.fromkeys(row[series] for row in rows))
    by_series = {"field": series, "type": "nominal", "title": None, "scale": {"domain": order}}
    return _drawn(title, rows, {"type": "line", "point": {"size": 45}}, {
        "x": _versions(rows),
        "y": {"field": value, "type": "quantitative", "title": value, "axis": {"format": form}},
        "color": by_series,
        "shape": by_series,
    })  # fmt: skip


def _drawn(
    title: str,
    rows: list[dict[str, Any]],
    mark: dict[str, Any],
    encoding: dict[str, Any],
    *,
    small: bool = False,
    beside: dict[str, Any] | None = None,
) -> str:
    """Return a chart as an element of HTML."""
    layer = {"mark": mark, "encoding": {"color": _COLOUR, **encoding, "description": {"field": _SAYS}}}
    axis, width = encoding["x"], 260 if small else _WIDTH
    if axis["type"] == "ordinal" and mark["type"] == "bar":  # bars of few versions are not to be walls
        step = width / len({row[axis["field"]] for row in rows})
        layer["mark"] = {**mark, "size": min(_BAR, 0.9 * step)}
    spec = {
        "$schema": _SCHEMA,
        "config": _CONFIG,
        "width": width,
        "height": 120 if small else 180,
        "data": {"values": rows},
        **(layer if beside is None else {"layer": [layer, beside]}),
    }
    return _inlined(library("vl_convert", "report").vegalite_to_svg(spec), title)


_NAMED: Final = re.compile(r"url\(#([\w-]+)\)")


def _inlined(svg: str, title: str) -> str:
    """Return an SVG to stand in a page beside others: ids of its own, no style, and values as titles of its marks."""
    ET.register_namespace("", _SVG)
    root = ET.fromstring(svg)  # noqa: S314 - drawn here, and not by anybody else
    own = f"chart-{hashlib.blake2b(svg.encode(), digest_size=6).hexdigest()}"
    for element in list(root.iter()):
        says = element.get("aria-label") if element.get("role") == "graphics-symbol" and len(element) == 0 else None
        for key in [key for key in element.attrib if key in {"style", "role"} or key.startswith("aria-")]:
            del element.attrib[key]
        if says:
            ET.SubElement(element, f"{{{_SVG}}}title").text = says
        for key, value in element.attrib.items():
            element.set(key, f"{own}-{value}" if key == "id" else _NAMED.sub(rf"url(#{own}-\1)", value))
    for line in root.iterfind(".//*[@class='mark-line role-mark layer_0_marks']//*[title]", {"": _SVG}):
        line.remove(line[0])  # what it says is said of its first point
    root.attrib.update({"role": "img", "aria-label": title})
    return ET.tostring(root, encoding="unicode")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
