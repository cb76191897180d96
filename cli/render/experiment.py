"""The trials of an experiment as a table, as JSON and as rows, the best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.listing import document as listed_document
from edl_ckpt.cli.render.recorded import BEST, metric_cell
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import picked, rows_of
from edl_ckpt.cli.terminal.tables import Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.model.versions import Version

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.catalog.experiment import Experiment, Trial


def document(experiment: Experiment) -> dict[str, Any]:
    """Return `edl-ckpt/list/1` of all trials, with the key `experiment`."""
    listed = listed_document([trial.listing for trial in experiment.trials if trial.fault is None])
    trials = [_trial(trial, experiment.metric) for trial in experiment.trials]
    where, best = experiment.location.url, _ref_of(experiment.best)
    found = picked(experiment, "location metric mode best trials", location=where, best=best, trials=trials)
    return {**listed, "experiment": found}


def records(experiment: Experiment) -> list[dict[str, Any]]:
    """Return a trial after the other, with the keys of its document, and its best version, or its latest, as `ref`."""
    found = [_trial(trial, experiment.metric) for trial in experiment.trials]
    return [{**trial, "ref": trial["best"] or trial["latest"]} for trial in found if trial["best"] or trial["latest"]]


def _trial(trial: Trial, metric: str | None) -> dict[str, Any]:
    return {
        "name": trial.name,
        "location": trial.location.url,
        "versions": len(trial.listing.versions),
        "complete": _complete(trial),
        "size_bytes": _size(trial),
        "latest": _ref_of(trial.latest),
        "best": _ref_of(trial.best),
        "value": None if trial.best is None or metric is None else trial.best.metrics[metric],
        "fault": None if trial.fault is None else trial.fault.message,
    }


def _ref_of(version: Version | None) -> str | None:
    return None if version is None else version.ref


def _complete(trial: Trial) -> int:
    return sum(1 for version in trial.listing.versions if version.is_good)


def _size(trial: Trial) -> int:
    return sum(version.size_bytes for version in trial.listing.versions)


def rows(experiment: Experiment) -> list[list[Any]]:
    """Return a header and one row for each trial, the best first."""
    common = picked(experiment, "metric mode")
    keys = "name location versions complete size_bytes latest best value fault metric mode"
    return rows_of(keys, (_trial(trial, experiment.metric) | common for trial in experiment.trials))


def human(experiment: Experiment) -> Lines:
    """Yield a head with the metric and its better end, and a line for each trial."""
    if not experiment.trials:
        yield head(experiment.location.url, "no trial: no directory in it has versions")
        return
    versions = sum(len(trial.listing.versions) for trial in experiment.trials)
    size = sum(map(_size, experiment.trials))
    counts = f"{text.count(len(experiment.trials), 'trial')}, {text.count(versions, 'version')}, {words.size(size)}"
    mode = f" ({experiment.mode})" if experiment.mode else ""
    by = "" if experiment.metric is None else f", by {text.escaped(experiment.metric)}{mode}"
    yield head(experiment.location.url, f"{counts}{by}")
    yield _trial_table(experiment)
    if experiment.best is not None:
        yield styled(f"{BEST} is the best of all complete versions", "dim")
    elif experiment.metric is not None and experiment.mode is None:
        name = text.escaped(experiment.metric)
        yield styled(f"is max or min better for {name}? Say it with --mode, or `edl-ckpt metrics mode`", "dim")
    elif experiment.metric is None and any(v.metrics for t in experiment.trials for v in t.listing.versions):
        yield styled("the trials have several metrics: choose one with --metric", "dim")


def _trial_table(experiment: Experiment) -> RenderableType:
    metric = experiment.metric if experiment.mode else None
    ranked = (Column("best", "number", worth=8), Column(metric, "number", worth=9)) if metric else ()
    table = Table(
        Column("trial", "name"),
        Column("versions", "number", worth=4),
        Column("size", "number", worth=3),
        Column("latest", "number", worth=6),
        *ranked,
        Column("remark", "prose", worth=7, title=""),
    )
    for trial in experiment.trials:
        cells: list[Cell | str] = []
        if metric:
            is_best = trial.best is not None and trial.best is experiment.best
            value = metric_cell(trial.best.metrics, metric, best=is_best) if trial.best else ""
            cells = [_key(trial.best), Cell(value if is_best else f"{value} ", "green" if is_best else "")]
        versions = text.count(len(trial.listing.versions))
        table.add(trial.name, versions, words.size(_size(trial)), _key(trial.latest), *cells, _remark(trial))
    return table


def _key(version: Version | None) -> str:
    return "-" if version is None else str(version.key)


def _remark(trial: Trial) -> Cell:
    """Return what is wrong with a trial: it cannot be listed, or versions of it are not whole."""
    if trial.fault is not None:
        return Cell(f"cannot be read now: {trial.fault.message}", "red")
    others = len(trial.listing.versions) - _complete(trial)
    return Cell(f"{others} not complete" if others else "", "dim")
