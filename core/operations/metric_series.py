"""Evaluation metrics from the places where ElasticDL jobs leave them: a master's log, TensorBoard, CSV, JSON lines.

Reading gives a series: metrics by step. Matching a series with the versions of a location is pure, and also returns
the steps and versions without a match. ElasticDL evaluates live parameters, so a metric of step N belongs to
parameters close to version N, not exactly to that version.
"""

from __future__ import annotations

import ast
import bisect
import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import extra_hint, meant
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state import annotate
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.user_entries import check_metric_name
from edl_ckpt.core.storage import Location, LocationLike
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import as_url
from edl_ckpt.core.storage.user_files import check_input, open_input

FORMATS: Final = ("log", "tensorboard", "csv", "jsonl")
_LOG_LINE = re.compile(r"Evaluation metrics\[(?:v|step)=([0-9]{1,18})\]: ?(.*)")
"""`[v=N]` until 2020-11-20, `[step=N]` since (ElasticDL's evaluation_service.py)."""
_STEP_NAMES: Final = ("version", "step")
_BARE_NAMES: Final = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_MAX_DEPTH: Final = 8
_MAX_LINE: Final = 1 << 18
"""Characters of a line. A longer one has no metrics: it is skipped in pieces, whatever its length."""
_TOO_LONG: Final = f"it has more than {_MAX_LINE} characters"
_MAX_SKIPPED: Final = 1000
"""So many places that could not be read are named; of more, only their number is."""
Found = Iterator[tuple[str, int, dict[str, float] | str]]
"""(place, step, metrics), or (place, 0, why they cannot be read)."""


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """Metrics by step, and the places in the source that could not be read, each with the reason."""

    source: str
    steps: Mapping[int, Mapping[str, float]]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricMatch:
    """New metrics of one version, the step of their measurement, and the version's old values that they replace."""

    version: Version
    step: int
    metrics: Mapping[str, float]
    replaced: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The metrics that each version gets from a series, and the steps and versions without a match."""

    source: str
    location: Location
    matches: tuple[MetricMatch, ...]
    steps_without_version: tuple[int, ...]
    versions_without_metrics: tuple[int | str, ...]
    skipped: tuple[str, ...]


def read_series(source: str | os.PathLike[str], kind: str | None = None) -> MetricSeries:
    """Read a source; `kind` is one of FORMATS, or None to guess it from the source's name.

    Of several values of a metric at one step the last one counts. Raises NotFoundError for a missing source,
    UsageError for a source without metrics or in another format, UnsupportedError when TensorBoard's library is not
    installed.
    """
    source = as_url(source)
    chosen = kind or _guess(source)
    if chosen not in FORMATS:
        raise UsageError(
            f"unknown format {chosen!r}; expected one of {', '.join(FORMATS)}", hint=meant(chosen, FORMATS)
        )
    steps: dict[int, dict[str, float]] = {}
    skipped: list[str] = []
    more = 0
    readers = {"log": _from_log, "tensorboard": _from_tensorboard, "csv": _from_csv, "jsonl": _from_json_lines}
    for place, step, found in readers[chosen](source):
        if isinstance(found, str):
            if len(skipped) < _MAX_SKIPPED:
                skipped.append(f"{place}: {found}")
            else:
                more += 1
        else:
            steps.setdefault(step, {}).update(found)
    if not steps:
        raise UsageError(
            f"no metrics found ({skipped[0]})" if skipped else "no metrics found",
            path=source,
            hint=f"edl-ckpt read it as {chosen}; choose another format with --format",
        )
    if more:
        skipped.append(f"and {more} more places")
    return MetricSeries(source, dict(sorted(steps.items())), tuple(skipped))


def match_series(
    series: MetricSeries, location: LocationLike, versions: Iterable[Version], *, nearest: int = 0
) -> ImportPlan:
    """Return the metrics of each version: those of its own step, else of the nearest one within `nearest` steps.

    Of two steps at the same distance the earlier one counts: no model gets the credit for later training. One step may
    match several versions.
    """
    listed = list(versions)
    steps = sorted(series.steps)
    matches: list[MetricMatch] = []
    for version in listed:
        at = bisect.bisect_left(steps, version.version)
        step = min(steps[max(at - 1, 0) : at + 1], key=lambda s, v=version.version: abs(s - v))  # type: ignore[misc]
        if version.number is not None and abs(step - version.version) <= nearest:
            found = series.steps[step]
            replaced = {
                name: version.metrics[name]
                for name, value in found.items()
                if name in version.metrics and not _same(version.metrics[name], value)
            }
            matches.append(MetricMatch(version, step, found, replaced))
    used = {match.step for match in matches}
    matched = {match.version.path for match in matches}
    return ImportPlan(
        source=series.source,
        location=Location.of(location),
        matches=tuple(matches),
        steps_without_version=tuple(s for s in series.steps if s not in used),
        versions_without_metrics=tuple(v.key for v in listed if v.path not in matched),
        skipped=series.skipped,
    )


def import_metrics(
    series: MetricSeries,
    location: LocationLike,
    *,
    nearest: int = 0,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ImportPlan:
    """Match a series with the versions of a location as `match_series` does, and record the metrics.

    Takes the location's lock itself, before it lists the versions.
    """
    with location_lock(location, "metrics import", wait_seconds=wait_seconds, reporter=reporter) as locked:
        plan = match_series(series, location, list_versions(location).versions, nearest=nearest)
        for match in plan.matches:
            COMMIT.more()  # between two versions a signal ends the command
            elsewhere = match.step != match.version.version
            steps = dict.fromkeys(match.metrics, match.step) if elsewhere else {}
            annotate.write_metrics(locked.store, match.version, match.metrics, steps=steps)
    return plan


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _guess(source: str) -> str:
    if os.path.isdir(source):
        return "tensorboard"
    name = source.lower()
    if name.endswith(".csv"):
        return "csv"
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    return "tensorboard" if "events.out.tfevents" in os.path.basename(name) else "log"


def _lines(source: str) -> Iterator[tuple[int, str | None]]:
    """Yield the lines of a file with their numbers, None for one that is too long."""
    with storage_errors(source), open_input(source, encoding="utf-8", errors="replace") as file:
        yield from enumerate(_bounded(file), start=1)


def _bounded(file: IO[str]) -> Iterator[str | None]:
    """Yield the lines of a file; of one that is too long, None, without keeping it in memory."""
    while line := file.readline(_MAX_LINE):
        if len(line) < _MAX_LINE or line.endswith("\n"):
            yield line
            continue
        while (rest := file.readline(_MAX_LINE)) and not rest.endswith("\n"):
            pass
        yield None


def _from_log(source: str) -> Found:
    for line_number, line in _lines(source):
        match = _LOG_LINE.search(line) if line is not None else None
        if match is None:
            continue
        try:
            found = flatten(parse_literal(match[2]))
        except UsageError as error:
            yield f"line {line_number}", 0, error.message
        else:
            yield f"line {line_number}", int(match[1]), found


def parse_literal(text: str) -> Any:
    """Return the value of a Python literal with bare `nan` and `inf` and numpy's way of writing numbers; runs nothing.

    >>> parse_literal("{'a': {'auc': 0.5}, 'b': np.float32(1.5)}")
    {'a': {'auc': 0.5}, 'b': 1.5}
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError("expected a dict of numbers") from None


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {str(_value(k)): _value(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name.lower() in _BARE_NAMES:
            return _BARE_NAMES[name.lower()]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _value(operand)
            if isinstance(inner, int | float):
                return -inner
        case ast.Call(args=[inner, *_]):  # np.float32(0.5), array(0.5, dtype=float32)
            return _value(inner)
        case ast.List(elts=[inner]):
            return _value(inner)
    raise ValueError


def flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, float]:
    """Return metrics by name, those of several outputs as `output/metric`; UsageError for a value that is no number.

    >>> flatten({"a": {"auc": 0.5}, "mse": 1})
    {'a/auc': 0.5, 'mse': 1.0}
    """
    if not isinstance(value, Mapping) or depth > _MAX_DEPTH:
        raise UsageError("expected a dict of numbers")
    metrics: dict[str, float] = {}
    for name, entry in value.items():
        full = check_metric_name(f"{prefix}{name}")
        if isinstance(entry, Mapping):
            metrics |= flatten(entry, f"{full}/", depth + 1)
        else:
            metrics[full] = _number(entry, full)
    return metrics


def _number(value: Any, name: str) -> float:
    """Return a metric's value from a number or its text; an empty text is an error."""
    try:
        return float("none" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"metric {name!r} must be a number, got {value!r}") from None


def _from_csv(source: str) -> Found:
    """Yield rows of `version,metric,value`, or of a version and a column for each metric; `step` means `version`."""
    with storage_errors(source), open_input(source, encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(_of_csv(file))
        try:
            rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            for row in rows:
                yield _from_record(f"line {rows.line_num}", {k: v for k, v in row.items() if k and v not in {"", None}})
        except csv.Error as error:
            yield f"line {rows.line_num}", 0, f"this is not CSV: {error}"


def _of_csv(file: IO[str]) -> Iterator[str]:
    for line in _bounded(file):
        if line is None:
            raise csv.Error(_TOO_LONG)
        yield line


def _from_json_lines(source: str) -> Found:
    for line_number, line in _lines(source):
        if line is None:
            yield f"line {line_number}", 0, _TOO_LONG
            continue
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            yield f"line {line_number}", 0, "this is not a JSON document"
            continue
        yield _from_record(f"line {line_number}", record)


def _from_record(place: str, record: Any) -> tuple[str, int, dict[str, float] | str]:
    if not isinstance(record, dict):
        return place, 0, "this is not an object"
    key = next((name for name in _STEP_NAMES if name in record), None)
    if key is None:
        return place, 0, "there is no `version` and no `step`"
    step = str(record[key]).strip()
    if not (step.isascii() and step.isdigit() and len(step) < 19):
        return place, 0, f"{key} must be a whole number, got {step!r}"
    rest = {str(name): value for name, value in record.items() if name != key}
    if set(rest) == {"metric", "value"}:
        rest = {str(rest["metric"]): rest["value"]}
    try:
        return place, int(step), flatten(rest)
    except UsageError as error:
        return place, 0, error.message


def _check_events(source: str) -> None:
    """Raise UsageError for a pipe in an event file's place, which TensorBoard's library would wait for."""
    check_input(source)
    for top, _, names in os.walk(source):
        for name in names:
            if "tfevents" in name:
                check_input(os.path.join(top, name))


def _from_tensorboard(source: str) -> Found:
    """Yield the scalars of every run below a directory, or of one event file; runs in the order of their names."""
    try:
        from tensorboard.backend.event_processing import event_accumulator, io_wrapper
        from tensorboard.util import tensor_util
    except ImportError:
        hint = extra_hint("tensorboard")
        raise UnsupportedError("TensorBoard's library is not installed", path=source, hint=hint) from None
    with storage_errors(source):
        os.stat(source)
    _check_events(source)
    everything = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
    runs = sorted(io_wrapper.GetLogdirSubdirectories(source)) if os.path.isdir(source) else [source]
    for run in runs:
        events = event_accumulator.EventAccumulator(run, size_guidance=everything)
        try:
            events.Reload()
        except Exception as error:
            raise EdlCkptError(f"TensorBoard's library cannot read it: {error}", path=run) from error
        tags = events.Tags()
        for tag in tags["scalars"]:
            for event in events.Scalars(tag):
                yield f"{run}: {tag}", event.step, {check_metric_name(tag): float(event.value)}
        for tag in tags["tensors"]:
            if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
                for event in events.Tensors(tag):
                    value = float(tensor_util.make_ndarray(event.tensor_proto).item())
                    yield f"{run}: {tag}", event.step, {check_metric_name(tag): value}
