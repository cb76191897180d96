"""Every result of the engine through every renderer."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import json
import math
import pkgutil
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import documents
import edl_ckpt.cli.render
from edl_ckpt.cli.options.config import ConfigFile
from edl_ckpt.cli.options.settings import Setting, Settings
from edl_ckpt.cli.render import config, copies, doctor, exports, follow, metadata, recorded, repairs, written
from edl_ckpt.cli.render import diff as render_diff
from edl_ckpt.cli.render import du as render_usage
from edl_ckpt.cli.render import experiment as render_experiment
from edl_ckpt.cli.render import get as render_get
from edl_ckpt.cli.render import inspect as render_inspect
from edl_ckpt.cli.render import listing as render_list
from edl_ckpt.cli.render import prune as render_prune
from edl_ckpt.cli.render import report as render_report
from edl_ckpt.cli.render import systems as render_systems
from edl_ckpt.cli.render import verify as render_verify
from edl_ckpt.cli.terminal import tables
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core import (
    Changes,
    CheckpointSummary,
    CopyPlan,
    CopyResult,
    DiffResult,
    Experiment,
    ExportResult,
    Location,
    Lookup,
    ReshardPlan,
    ReshardSettings,
    StorageReport,
    TensorStats,
    Trial,
    ValueSample,
    VerifyResult,
    WriteResult,
    convert_version,
    diff_versions,
    execute_copy,
    execute_reshard,
    export_version,
    import_arrays,
    list_versions,
    look_up,
    open_checkpoint,
    plan_copy,
    prepare_reshard,
    report_location,
    save_checkpoint,
    summarize,
    tensor_stats,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.commit.deletion.removal import Removal
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.moving.parts import PartsPlan
from edl_ckpt.core.operations.export import ExportPlan, plan_export
from edl_ckpt.core.operations.export.interface import PlannedFile
from edl_ckpt.core.operations.follow.observe import EventKind, Limits, Moment, WatchEvent
from edl_ckpt.core.operations.follow.wait import WaitResult, wait_for_version
from edl_ckpt.core.operations.follow.watch import WatchStep, watch_steps
from edl_ckpt.core.operations.lookup.nearest import Neighbours, find_nearest
from edl_ckpt.core.operations.metric_series import ImportPlan, MetricSeries, match_series
from edl_ckpt.core.operations.prune.execute import PruneResult
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.repair import RepairResult, Replacement
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.operations.usage import DirectoryUsage, LocationUsage
from edl_ckpt.core.operations.verify.check import VerifyRun
from edl_ckpt.core.operations.verify.newest import NewestGood, PassedOver
from edl_ckpt.core.sources.systems import systems
from edl_ckpt.core.storage.facts import Fact, Verdict
from places import GOLDEN
from pruning import judge_versions

if TYPE_CHECKING:
    from rich.console import RenderableType

PLACES = sorted({p.parents[1] for p in GOLDEN.rglob("variables-*")} | {p.parent for p in GOLDEN.rglob("model_v*")})


WIDTHS = (30, 40, 60, 72, 80, 100, 160)
ANY_WIDTH = 100_000


def drawn(renderables: Iterable[RenderableType], width: int) -> str:
    """Return what people would see on a terminal of so many columns."""
    console = console_of(width)
    console.file = stream = io.StringIO()
    tables.draw(renderables, console)
    return stream.getvalue()


@functools.cache
def console_of(width: int) -> Console:
    """Return a console of so many columns; making one takes longer than printing on it."""
    return Console(width=width, highlight=False, markup=False, emoji=False)


def check(document: dict[str, Any], human: Iterator[RenderableType], command: str, capsys: Any) -> None:
    """Assert that a result is one JSON document with its schema, and words that fit and are not empty."""
    check_document(document, command, capsys)
    check_human(human)


def check_document(document: dict[str, Any], command: str, capsys: Any) -> None:
    """Assert that a document is one line of strict JSON with its schema."""
    Output(json=True).print_json(document)
    line = capsys.readouterr().out
    printed = json.loads(line, parse_constant=pytest.fail)
    assert printed["schema"].startswith(f"edl-ckpt/{command}")
    documents.check_document(printed)


def check_human(human: Iterator[RenderableType]) -> None:
    """Assert that words fit the terminal, are not empty, and have no control characters of a name."""
    items = list(human)
    assert drawn(items, 80).strip()
    for item in items:
        wide = "\n".join(lines_of(item, ANY_WIDTH))
        assert not {"\x1b", "\r", "\x07"} & set(wide)
        for width in WIDTHS:
            narrow = lines_of(item, width)
            assert max(map(cell_len, narrow), default=0) <= width
            if isinstance(item, tables.Table):
                check_table(item, "\n".join(narrow))
            elif isinstance(item, tables.Fitted):
                assert Counter(filter(str.isdigit, "".join(narrow))) == Counter(filter(str.isdigit, wide))
            else:
                assert "".join("".join(narrow).split()) == "".join(wide.split())


def lines_of(item: Any, width: int) -> list[str]:
    """Return the lines that `draw` prints, without rich, which takes ten times as long."""
    if isinstance(item, tables.Table):
        return ["".join(cell.text for cell in line) for line in item.lines(width)]
    return [part.plain for part in tables.folded(item, width)]


def check_table(table: tables.Table, narrow: str) -> None:
    """Assert that a narrow window shows each number and word of a table whole, or names its column as left out."""
    *above, note = narrow.rstrip().split("left out at this width: ") if "left out at" in narrow else (narrow, "")
    left_out = {name for name in re.split(r",\s+", note) if name}
    assert left_out <= {column.name for column in table.columns[1:]}
    tokens, digits = Counter(" ".join(above).split()), Counter(filter(str.isdigit, " ".join(above)))
    shown = [(c, column) for c, column in enumerate(table.columns) if column.name not in left_out]
    cells = [
        (column, cell.text) for row in table.rows for c, column in shown if isinstance(cell := row[c], tables.Cell)
    ]
    assert Counter(token for c, cell in cells if c.kind in {"number", "word"} for token in cell.split()) <= tokens
    if "..." not in narrow:
        assert Counter(d for _, cell in cells for d in cell if d.isdigit()) <= digits


def versions_of(place: Path) -> tuple[Version, ...]:
    """Return the versions of a golden location."""
    return list_versions(str(place)).versions


@pytest.mark.parametrize("place", PLACES, ids=lambda place: str(place.relative_to(GOLDEN)))
def test_every_result_in_every_form(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Listing, summary, statistics, findings, plan and result of each golden location render in every form."""
    listing = list_versions(str(place), grace_seconds=0)
    check(render_list.document([listing]), render_list.human([listing], 2e9), "list/1", capsys)
    _check_retention(place, listing, capsys)
    rows = render_list.rows([listing])
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 1 + len(listing.versions)
    for version in listing.versions:
        _check_version(version, tmp_path, capsys)
    found = [verify_version(v, level="deep") for v in listing.versions]
    failed = [("run@1", EdlCkptError("a [bold]word\x1b[31m", path="there"))]
    check(render_verify.document_all(str(place), found, failed), render_verify.human(found), "verify-all/1", capsys)
    assert "\x1b" not in render_verify.junit(found, failed, strict=True) + render_verify.summary(found, failed)


def _check_retention(place: Path, listing: Listing, capsys: pytest.CaptureFixture[str]) -> None:
    versions = [replace(v, metrics={"a[bold]\x1b": math.nan, "auc": v.version}, tags=("t",)) for v in listing.versions]
    whole = replace(listing, versions=tuple(versions))
    check(recorded.metrics_document(whole, versions), recorded.metrics_human(whole, versions), "metrics/1", capsys)
    assert len(recorded.metrics_rows(versions)) == 1 + 2 * len(versions)
    series = MetricSeries("log", {v.version + 1: {"auc": 0.5} for v in versions} | {77777: {}}, ("line 1: \x1b",))
    matched = match_series(series, str(place), versions, nearest=1)
    for applied in (True, False):
        document = recorded.import_document(matched, applied=applied)
        check(document, recorded.import_human(matched, applied=applied), "metrics-import/1", capsys)
    plan = judge_versions(listing.versions, Policy((Latest(1),)), now=2e9)
    done = PruneResult(plan, tuple(e.ref for e in plan.deletions), plan.deleted_bytes, trashed=True)
    for result in (None, done, replace(done, trashed=False, purge=Removal(freed_bytes=5))):
        check(render_prune.document(plan, result), render_prune.human(plan, result), "prune/1", capsys)


def _check_version(version: Version, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("quick", "default", "deep"):
        found = verify_version(version, level=level)
        check(render_verify.document(found), render_verify.human([found]), "verify/1", capsys)
    part = verify_version(version, sample=ValueSample(20, 7))
    check(render_verify.document(part), render_verify.human([part]), "verify/1", capsys)
    try:
        with open_checkpoint(version, partial=True) as checkpoint:
            summary = summarize(version, checkpoint.shards)
            stats = tensor_stats(checkpoint, variables=None, tables=None)
    except EdlCkptError:
        return  # verify has found it above
    check(render_inspect.document(summary, stats), render_inspect.human(summary, stats), "inspect/1", capsys)
    if version.state is not State.COMPLETE:
        return
    try:
        plan, settings = prepare_reshard(version, 3, output=str(tmp_path / f"out-{version.version}"))
    except EdlCkptError:
        return
    check(
        written.planned_document("reshard", plan, settings),
        written.planned_human(plan, settings),
        "reshard/1",
        capsys,
    )
    parts = PartsPlan("spilled", 2, 9, 30, 1 << 20, 1 << 21, 5000, 1 << 26, 1 << 25, 1 << 19, 5 << 20, 1 << 26)
    sending = replace(settings, parts=parts)
    check(
        written.planned_document("reshard", plan, sending),
        written.planned_human(plan, sending),
        "reshard/1",
        capsys,
    )
    assert "30 parts in 9 tasks, spilled: values read 2.00 times (2.0 MiB), 512.0 KiB by local disks" in str(parts)
    result = execute_reshard(plan, settings)
    check(written.written_document("reshard", result), written.written_human(result), "reshard/1", capsys)
    only_done = {"checksums"}  # they are compared while values are read
    planned = set(written.planned_document("reshard", plan, settings))
    assert set(written.written_document("reshard", result)) - only_done <= planned
    copy = plan_copy([version], plan.target.location.with_url(f"{plan.target.location}-copy"))
    check(copies.planned_document(copy), copies.planned_human(copy), "copy/1", capsys)
    try:
        copied = execute_copy(copy)
    except EdlCkptError:
        return
    failed = replace(copied, failed=((version.ref, EdlCkptError("a [bold]word\x1b[31m", path="there")),))
    for outcome in (
        copied,
        failed,
        execute_copy(plan_copy([version], plan.target.location.with_url(f"{plan.target.location}-copy"))),
    ):
        check(copies.document(outcome), copies.human(outcome), "copy/1", capsys)
    shutil.rmtree(plan.target.location.url)


def renderers() -> dict[str, Callable[..., Any]]:
    """Return every function of a module of `render` that makes a document, words or rows, by its name."""
    found = {}
    for module in (
        m for m in pkgutil.iter_modules(edl_ckpt.cli.render.__path__) if m.name not in {"outcome", "shared_tables"}
    ):
        for name, function in vars(importlib.import_module(f"edl_ckpt.cli.render.{module.name}")).items():
            own = inspect.isfunction(function) and function.__module__ == f"edl_ckpt.cli.render.{module.name}"
            if own and re.search("^(?!_)(plan_|.*(document|human|rows))", name):
                found[f"{module.name}.{name}"] = function
    return found


@dataclass(frozen=True, slots=True)
class Results:
    """A result of each kind, of checkpoints whose names and values a renderer could stumble over."""

    listing: Listing
    summary: CheckpointSummary
    stats: tuple[TensorStats, ...]
    verified: tuple[VerifyResult, ...]
    diff: DiffResult
    lookup: Lookup
    close: tuple[Neighbours, ...]
    exported: ExportResult
    imported: Any
    plan: tuple[ReshardPlan, ReshardSettings]
    resharded: WriteResult
    converted: tuple[WriteResult, ...]
    copy_plan: CopyPlan
    copied: CopyResult
    pruned: PruneResult
    matched: ImportPlan
    waits: tuple[WaitResult, ...]
    events: tuple[WatchEvent, ...]
    moment: Moment

    @property
    def newest(self) -> list[NewestGood]:
        """Return a version that was found below a hostile one, and none."""
        passed = (PassedOver("run@[bold]\x1b", "damaged", "checksum of [bold]\x1b"),)
        run = VerifyRun(self.verified)
        return [NewestGood(version, "deep", passed, run) for version in (self.listing.versions[0], None)]

    @property
    def experiments(self) -> list[Experiment]:
        """Return experiments with a hostile trial, ranked and not, and one without trials."""
        broken = EdlCkptError("a [bold]word\x1b[31m", path="there")
        name, best = "a[bold]\x1b", self.listing.versions[1]
        trials = (Trial(name, self.listing, best), Trial("b", replace(self.listing, versions=()), fault=broken))
        ranked = Experiment(self.listing.location, trials, name, "max")
        return [ranked, replace(ranked, mode=None), Experiment(self.listing.location, ())]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of two versions that differ in every way a diff can tell."""
    run = tmp_path_factory.mktemp("results") / "run"
    for number in (1, 2):
        rows = np.full((6, 3), number, np.float32)
        rows[0, 0] = (math.nan, math.inf)[number - 1]
        variables: dict[str, np.ndarray[Any, Any]] = {
            "\x1b[31mred": rows,
            "[bold]x[/bold]": rows[:number],
            f"only/{number}": np.arange(number),
        }
        tables = {"a\nb": Table(np.arange(6) + number, rows), "none": Table(np.zeros(0, np.int64), rows[:0])}
        save_checkpoint(str(run), number, 2, variables=variables, tables=tables)
    listing = list_versions(str(run))
    old, new = listing.versions
    with open_checkpoint(new) as checkpoint:
        summary = summarize(replace(new, **_HOSTILE), checkpoint.shards)
        stats = tensor_stats(checkpoint, variables=None, tables=None)
    found = look_up(new, "a\nb", [3, 4, 999])
    exported = export_version(new, f"{run}.npz")
    plan, settings = prepare_reshard(new, 3, output=f"{run}-3")
    changes = Changes(drop=("none",), rows=("a\nb where id < 3",), cast=(("*", "float16"),))
    copy = plan_copy([old], f"{run}-copy")
    prune = judge_versions([replace(v, modified=0.0) for v in listing.versions], Policy((Latest(1),)), now=2e9)
    series = MetricSeries("log", {1: {"auc": math.nan}, 77: {}}, ("line 1: \x1b",))
    failed = ((new.ref, EdlCkptError("a [bold]word\x1b[31m", path="there")),)
    return Results(
        listing=replace(listing, versions=(old, replace(new, **_HOSTILE))),
        summary=summary,
        stats=tuple(stats),
        verified=tuple(verify_version(v, level="deep") for v in (old, new)),
        diff=diff_versions(old, new, top=3, rows=True),
        lookup=found,
        close=tuple(find_nearest(new, found, 2)),
        exported=exported,
        imported=import_arrays(f"{run}.npz", f"{run}-in", 9, 2),
        plan=(plan, settings),
        resharded=execute_reshard(plan, settings),
        converted=tuple(
            convert_version(new, output=f"{run}-edited", changes=changes, dry_run=dry_run) for dry_run in (True, False)
        ),
        copy_plan=copy,
        copied=replace(execute_copy(copy), failed=failed),
        pruned=PruneResult(prune, tuple(e.ref for e in prune.deletions), prune.deleted_bytes, trashed=True),
        matched=match_series(series, str(run), listing.versions, nearest=1),
        **_followed(run),
    )


def _followed(run: Path) -> dict[str, Any]:
    """Return what waits and a watch of a location give, one version of which lacks a shard and has a hostile file."""
    torn = run.with_name("torn\x1b[31m")
    shutil.copytree(run, torn)
    next((torn / "version_2").glob("variables-1-*")).unlink()
    (torn / "version_2" / "x\x1b[31m\n").touch()
    waits = [
        wait_for_version(run, timeout_seconds=0),
        *(wait_for_version(torn, version_ge=n, timeout_seconds=0) for n in (2, 9)),
    ]
    (look,) = watch_steps(torn, after=-1, timeout_seconds=0)
    more = [replace(look.events[-1], kind=kind, why="a\x1b[31m[bold]") for kind in EventKind]
    return {"waits": tuple(waits), "events": (*look.events, *more), "moment": look.moment}


_HOSTILE: dict[str, Any] = {
    "metrics": {"a[bold]\x1b": math.nan},
    "tags": ("t",),
    "metadata": {"a[bold]\x1b\n": {"\x1b[31m": ["\r", "x" * 300]}, "a[bold]\\x1b\\n": "0.5"},
}

_VECTOR = np.array([[1.5, np.nan, np.inf]], np.float32)


def usage(results: Results) -> LocationUsage:
    """Return what takes the space of a location with hostile names."""
    place = DirectoryUsage("a[bold]\x1b", 7)
    sizes = tuple((version, version.size_bytes) for version in results.listing.versions)
    return LocationUsage(results.listing.location, sizes, (place,), (place,), 100, 3)


FACTS = [Fact("kernel", f"odd\x1b[2J {verdict}", verdict, "slower, " * 9) for verdict in Verdict]
STORAGE = StorageReport(Location("run\x1b[2J"), tuple(FACTS), wrote=False)
SETTINGS = Settings(
    (ConfigFile("/home/edl-ckpt.toml"), ConfigFile("edl-ckpt.toml", trusted=False)),
    (
        Setting("location", "s3://m\x1b[2J", "file", "/home/edl-ckpt.toml, line 3", "EDL_CKPT_DIR"),
        Setting("keep", "x", "environment", "EDL_CKPT_KEEP", "EDL_CKPT_KEEP", ("prune",), "'x' is no number"),
        Setting("storage-option", ["key=***"], "environment", "EDL_CKPT_STORAGE_OPTION"),
        Setting("quiet", False, "default", "", "EDL_CKPT_QUIET"),
    ),
    ("EDL_CKPT_X sets nothing",),
)


def export_plans(results: Results) -> list[ExportPlan]:
    """Return the plans of an export by this machine, and of one file of unknown size."""
    plan = plan_export(results.listing.versions[0], f"{results.exported.output}.npy")
    return [plan, replace(plan, files=(PlannedFile("m.npz", None),))]


_REPLACED = Replacement(0, "a", "b\x1b", 5, "damaged", "c")
_REPAIRED = RepairResult("a\x1b@1", "b", (_REPLACED,), "seal", None, f"edl1:{0:064}", 1, dry_run=False)
REPAIRS = (_REPAIRED, replace(_REPAIRED, replaced=()), replace(_REPAIRED, forced="mixed\x1b", dry_run=True))
"""A repair that was proved, one without damage, and the plan of one that nothing proves."""
_ON_CLUSTER: Any = {"workers": None, "executor": SimpleNamespace(named=lambda: "2 workers")}

CASES: dict[str, Callable[[Results], Iterable[Any]]] = {
    "systems.systems_document": lambda _: [render_systems.systems_document(systems())],
    "systems.systems_human": lambda _: [render_systems.systems_human(systems())],
    "systems.systems_rows": lambda _: [render_systems.systems_rows(systems())],
    "doctor.doctor_document": lambda _: [doctor.doctor_document(FACTS, FACTS, s) for s in (None, STORAGE)],
    "doctor.doctor_human": lambda _: [doctor.doctor_human(FACTS, FACTS, s) for s in (None, STORAGE)],
    "config.config_document": lambda _: [config.config_document(SETTINGS)],
    "config.config_human": lambda _: [config.config_human(SETTINGS, origin=o, every=o) for o in (True, False)],
    "config.config_rows": lambda _: [config.config_rows(SETTINGS)],
    "copies.document": lambda r: [copies.document(r.copied)],
    "copies.human": lambda r: [copies.human(r.copied)],
    "copies.planned_document": lambda r: [copies.planned_document(r.copy_plan)],
    "copies.rows": lambda r: [copies.rows(copies.document(r.copied)["copied"])],
    "copies.planned_human": lambda r: [copies.planned_human(r.copy_plan)],
    "diff.changed_rows": lambda r: [render_diff.changed_rows(r.diff)],
    "diff.document": lambda r: [render_diff.document(r.diff), render_diff.document(r.diff, rows=True)],
    "diff.human": lambda r: [render_diff.human(r.diff), render_diff.human(replace(r.diff, equal=True))],
    "diff.rows": lambda r: [render_diff.rows(r.diff)],
    "experiment.document": lambda r: map(render_experiment.document, r.experiments),
    "experiment.human": lambda r: map(render_experiment.human, r.experiments),
    "experiment.rows": lambda r: map(render_experiment.rows, r.experiments[:2]),
    "exports.document": lambda r: [exports.document(r.exported)],
    "exports.human": lambda r: [exports.human(r.exported)],
    "exports.planned_document": lambda r: [exports.planned_document(each) for each in export_plans(r)],
    "exports.planned_human": lambda r: [exports.planned_human(each, _ON_CLUSTER) for each in export_plans(r)],
    "get.document": lambda r: [render_get.document(r.lookup), render_get.document(r.lookup, r.close)],
    "get.human": lambda r: [render_get.human(r.lookup), render_get.human(r.lookup, r.close)],
    "get.rows": lambda r: [render_get.rows(r.lookup)],
    "get.variable_document": lambda r: [render_get.variable_document("run@1", "a\x1b", _VECTOR, "float32")],
    "get.variable_human": lambda r: [render_get.variable_human("run@1", "a\x1b", _VECTOR, "float32")],
    "get.variable_rows": lambda r: [render_get.variable_rows(_VECTOR)],
    "inspect.document": lambda r: [
        render_inspect.document(r.summary),
        render_inspect.document(r.summary, r.stats),
    ],
    "inspect.rows": lambda r: [render_inspect.rows(r.summary), render_inspect.rows(r.summary, r.stats)],
    "inspect.human": lambda r: [render_inspect.human(r.summary), render_inspect.human(r.summary, r.stats)],
    "listing.document": lambda r: [render_list.document([r.listing])],
    "listing.human": lambda r: [render_list.human([r.listing], 2e9)],
    "listing.rows": lambda r: [render_list.rows([r.listing])],
    "metadata.metadata_document": lambda r: map(metadata.metadata_document, r.listing.versions),
    "metadata.metadata_human": lambda r: map(metadata.metadata_human, r.listing.versions),
    "metadata.metadata_rows": lambda r: [metadata.metadata_rows(replace(r.listing.versions[0], metadata={"lr": 0.05}))],
    "recorded.metrics_document": lambda r: [recorded.metrics_document(r.listing, r.listing.versions)],
    "recorded.metrics_human": lambda r: [recorded.metrics_human(r.listing, r.listing.versions)],
    "recorded.import_document": lambda r: [recorded.import_document(r.matched, applied=True)],
    "recorded.import_human": lambda r: [recorded.import_human(r.matched, applied=True)],
    "recorded.import_rows": lambda r: [recorded.import_rows(r.matched)],
    "recorded.metrics_rows": lambda r: [recorded.metrics_rows(r.listing.versions)],
    "prune.document": lambda r: [render_prune.document(r.pruned.plan, result) for result in (None, r.pruned)],
    "prune.rows": lambda r: [render_prune.rows(r.pruned.plan)],
    "prune.human": lambda r: [render_prune.human(r.pruned.plan, r.pruned)],
    "prune.plan_human": lambda r: [render_prune.plan_human(r.pruned.plan)],
    "report.document": lambda r: [
        render_report.document(report_location(r.listing.location, policy)) for policy in (None, Policy((Latest(1),)))
    ],
    "report.human": lambda r: [render_report.human(report_location(r.listing.location), "a\x1b.html")],
    "repairs.document": lambda _: map(repairs.document, REPAIRS),
    "repairs.human": lambda _: map(repairs.human, REPAIRS),
    "written.written_document": lambda r: [
        written.written_document("reshard", r.resharded),
        written.written_document("import", r.imported),
        *(written.written_document("edit", one) for one in r.converted),
    ],
    "written.written_human": lambda r: map(written.written_human, (r.resharded, r.imported, *r.converted)),
    "written.planned_document": lambda r: [written.planned_document(name, *r.plan) for name in ("import", "reshard")],
    "written.planned_human": lambda r: [written.planned_human(*r.plan)],
    "du.document": lambda r: [render_usage.document(usage(r)), render_usage.document(r.summary)],
    "du.human": lambda r: [render_usage.human(usage(r)), render_usage.human(r.summary)],
    "du.rows": lambda r: [render_usage.rows(usage(r)), render_usage.rows(r.summary)],
    "verify.document": lambda r: map(render_verify.document, r.verified),
    "verify.document_all": lambda r: [render_verify.document_all("run", r.verified, [])],
    "verify.rows": lambda r: [render_verify.rows(r.verified)],
    "verify.human": lambda r: [render_verify.human(r.verified)],
    "verify.newest_document": lambda r: [render_verify.newest_document("run", found) for found in r.newest],
    "verify.newest_human": lambda r: [render_verify.newest_human(r.newest[0])],
    "follow.wait_document": lambda r: map(follow.wait_document, r.waits),
    "follow.event_document": lambda r: map(follow.event_document, r.events),
    "follow.event_human": lambda r: ([follow.event_human(event)] for event in r.events),
}
"""What each renderer makes of each result that it takes: a new renderer is a new row."""


@pytest.mark.parametrize("name", sorted(renderers()))
def test_every_renderer(name: str, results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    """Each renderer of each module has a case, and makes strict JSON, words that fit, or rows of one length."""
    assert name in CASES, f"a renderer without a case: add {name} to CASES"
    made = list(CASES[name](results))
    assert made
    for item in made:
        if "document" in name:
            check_document(item, "", capsys)
        elif "rows" in name:
            assert len(item) > 1 or "variable" in name
            assert {len(row) for row in item} == {len(item[0])}
        else:
            check_human(item)


def test_live_view(results: Results) -> None:
    """The live view of a watch shows versions, events and warnings in words that fit."""
    view = follow.LiveView(Output(), Location("a\x1b[bold]"), Limits())
    view.warn("\x1b" + "x" * 300)
    view.show(WatchStep(results.moment, results.events), results.events)
    check_human(iter(view.lines()))


def test_every_case_has_its_renderer() -> None:
    """No case outlives its renderer, and there are no fewer cases than there were renderers once."""
    assert set(CASES) <= set(renderers())
    assert len(CASES) >= 37


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("blocks", [[], [[7]], [[1, 2], [-3], [4, 5]]])
def test_numbers_that_come_in_blocks(
    terminal: bool, blocks: list[list[int]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document whose list is printed as it comes is the one that is printed at once, on a terminal and in a pipe."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    document = {"schema": "edl-ckpt/ids/1", "ref": "[]", "ids": [number for some in blocks for number in some]}
    Output(json=True).print_json(document)
    at_once = capsys.readouterr().out
    Output(json=True).print_json_list({**document, "ids": []}, iter(blocks))
    assert capsys.readouterr().out == at_once
