"""What is recorded with versions, as text, as JSON and as rows: metrics, and the matches of an import."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked
from edl_ckpt.cli.terminal.tables import Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.catalog.ranking import best_versions, known_mode
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version

if TYPE_CHECKING:
    from edl_ckpt.core.operations.metric_series import ImportPlan

_SOME = 8
BEST = "*"


def names_of(versions: Sequence[Version]) -> list[str]:
    """Return the names of all metrics that some version has, in order."""
    return sorted({name for v in versions for name in v.metrics})


def best_paths(listing: Listing, names: Sequence[str]) -> dict[str, str]:
    """Return, by metric, the path of its best version; a metric without a known mode has none."""
    return {name: version.path for name, version in best_versions(listing, names).items()}


def metric_cell(metrics: Mapping[str, float], name: str, *, best: bool = False) -> str:
    """Return a metric as a cell of a table, marked when it is the best, blank when there is none.

    >>> metric_cell({"auc": 0.8125}, "auc", best=True), metric_cell({}, "auc")
    ('0.8125*', '')
    """
    if name not in metrics:
        return ""
    mark = BEST if best else ""
    return f"{metrics[name]:.6g}{mark}"


def metric_cells(version: Version, names: Sequence[str], best: Mapping[str, str]) -> list[Any]:
    """Return a cell for each metric of a version; `best` has the paths of the best versions, whose cells are marked."""
    marked = [(name, best.get(name) == version.path) for name in names]
    return [Cell(metric_cell(version.metrics, n, best=is_best), "green" if is_best else "") for n, is_best in marked]


def metrics_document(listing: Listing, versions: Sequence[Version]) -> dict[str, Any]:
    """Return `edl-ckpt/metrics/1`."""
    return document_of(
        "metrics",
        listing,
        "location modes best versions",
        location=listing.location.url,
        best={name: v.key for name, v in best_versions(listing, names_of(listing.versions)).items()},
        versions=[picked(v, "version ref metrics tags note", version=v.number) for v in versions],
    )


def metrics_rows(versions: Sequence[Version]) -> list[list[Any]]:
    """Return a header and one row for each value, as `metrics import` reads them."""
    return [["version", "metric", "value"], *([v.number, n, x] for v in versions for n, x in v.metrics.items())]


def metrics_human(listing: Listing, versions: Sequence[Version]) -> Lines:
    """Yield a table of versions and metrics with the best of all versions marked, then notes."""
    names = names_of(versions)
    best = best_paths(listing, names)
    yield head(listing.location.url)
    if not names:
        yield styled("no metrics; record them with `edl-ckpt metrics set` or `metrics import`", "dim")
        return
    columns = (Column(name, "number") for name in names)
    cells = ([str(v.key), *metric_cells(v, names, best), " ".join(v.tags)] for v in versions)
    yield Table(Column("version", "number"), *columns, Column("tags", "prose", worth=4), rows=cells)
    undeclared = [name for name in names if not known_mode(listing, name)]
    if {v.path for v in versions} & set(best.values()):
        yield styled(f"{BEST} is the best of all complete versions", "dim")
    if undeclared:
        metrics = text.escaped(", ".join(undeclared))
        yield styled(f"is max or min better for {metrics}? Declare it with `edl-ckpt metrics mode`", "dim")


def metrics_line(listing: Listing, version: Version) -> str:
    """Return the metrics of one version in a line, by name; a value that is the best of all versions is marked."""
    best = best_paths(listing, names_of(listing.versions))
    values = [
        f"{text.escaped(n)} {metric_cell(version.metrics, n, best=best.get(n) == version.path)}"
        for n in names_of([version])
    ]
    return f"{text.escaped(version.ref)}: {', '.join(values) or 'no metrics'}"


def import_document(plan: ImportPlan, *, applied: bool) -> dict[str, Any]:
    """Return `edl-ckpt/metrics-import/1`."""
    keys = "ref version step metrics replaced"
    matched = [picked(m, keys, ref=m.version.ref, version=m.version.number) for m in plan.matches]
    keys = "source location matched steps_without_version versions_without_metrics skipped applied"
    return document_of("metrics-import", plan, keys, location=plan.location.url, matched=matched, applied=applied)


def import_rows(plan: ImportPlan) -> list[list[Any]]:
    """Return a header and one row for each value that matched a version, with the value that it replaces."""
    rows: list[list[Any]] = [["ref", "version", "step", "metric", "value", "replaced"]]
    for match in plan.matches:
        version = match.version
        for name, value in match.metrics.items():
            rows.append([version.ref, version.number, match.step, name, value, match.replaced.get(name)])
    return rows


def import_human(plan: ImportPlan, *, applied: bool) -> Lines:
    """Yield the versions and steps that matched, and those that did not."""
    names = sorted({name for m in plan.matches for name in m.metrics})
    if plan.matches:
        columns = (Column(name, "number") for name in names)
        replaces = Column("replaces", "prose", worth=8, title="")
        table = Table(Column("version", "number"), Column("step", "number", worth=9), *columns, replaces)
        for m in plan.matches:
            replaced = f"replaces {', '.join(m.replaced)}" if m.replaced else ""
            table.add(str(m.version.key), str(m.step), *(metric_cell(m.metrics, name) for name in names), replaced)
        yield table
    versions = text.count(len(plan.matches), "version")
    yield styled(f"recorded metrics of {versions}" if applied else f"would record metrics of {versions}")
    if plan.steps_without_version:
        steps = words.abridged(plan.steps_without_version, _SOME)
        yield styled(f"steps without a version: {steps} (--nearest STEPS matches close ones)")
    if plan.versions_without_metrics:
        yield styled(f"versions without metrics: {words.abridged(plan.versions_without_metrics, _SOME)}")


def shown(value: Any) -> str:
    """Return a value of JSON in one line, safe on any terminal.

    >>> shown({"a": [1, None]}), shown("adam"), shown("0.5")
    ('{"a": [1, null]}', 'adam', '"0.5"')
    """
    is_word = isinstance(value, str) and not _reads_as_json(value)
    return text.escaped(value if is_word else json.dumps(value, ensure_ascii=False))


def _reads_as_json(word: str) -> bool:
    """Say whether a text would be another value without its quotes."""
    from edl_ckpt.core.state.document import parse_value

    try:
        parse_value(word)
    except ValueError:
        return not word
    return True
