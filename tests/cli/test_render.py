"""Every result of the engine through every renderer."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from edl_ckpt.cli import (
    render_copy,
    render_inspect,
    render_list,
    render_metrics,
    render_prune,
    render_reshard,
    render_verify,
)
from edl_ckpt.cli.output import Output
from edl_ckpt.core import (
    execute_copy,
    execute_reshard,
    list_versions,
    open_checkpoint,
    plan_copy,
    plan_reshard,
    summarize,
    tensor_stats,
    verify_version,
)
from edl_ckpt.core.commit.trash import Purge
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Listing, State, Version
from edl_ckpt.core.operations.metric_sources import MetricSeries, match_series
from edl_ckpt.core.operations.prune.execute import PruneResult
from edl_ckpt.core.operations.prune.plan import plan_prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from places import GOLDEN

if TYPE_CHECKING:
    from rich.console import RenderableType

PLACES = sorted({p.parents[1] for p in GOLDEN.rglob("variables-*")} | {p.parent for p in GOLDEN.rglob("model_v*")})


def drawn(renderables: Iterable[RenderableType], width: int) -> str:
    """Return what people would see on a terminal of so many columns."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    for item in renderables:
        console.print(item)
    return stream.getvalue()


def check(document: dict[str, Any], human: Iterator[RenderableType], command: str, capsys: Any) -> None:
    """Assert that a result is one JSON document with its schema, and words that fit and are not empty."""
    items = list(human)
    Output(json=True).print_json(document)
    line = capsys.readouterr().out
    assert json.loads(line)["schema"].startswith(f"edl-ckpt/{command}")
    assert "NaN" not in line.replace('NaN"', "")
    for width in (80, 200):
        text = drawn(items, width)
        assert text.strip()
        assert max(map(len, text.splitlines())) <= width
        assert not {"\x1b", "\r", "\x07"} & set(text)


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
    render_verify.write_junit(str(tmp_path / "report.xml"), found, strict=True, failed=failed)


def _check_retention(place: Path, listing: Listing, capsys: pytest.CaptureFixture[str]) -> None:
    versions = [replace(v, metrics={"a[bold]\x1b": math.nan, "auc": v.version}, tags=("t",)) for v in listing.versions]
    whole = replace(listing, versions=tuple(versions))
    check(render_metrics.document(whole, versions), render_metrics.human(whole, versions), "metrics/1", capsys)
    assert len(render_metrics.rows(versions)) == 1 + 2 * len(versions)
    series = MetricSeries("log", {v.version + 1: {"auc": 0.5} for v in versions} | {77777: {}}, ("line 1: \x1b",))
    matched = match_series(series, str(place), versions, nearest=1)
    for applied in (True, False):
        document = render_metrics.import_document(matched, applied=applied)
        check(document, render_metrics.import_human(matched, applied=applied), "metrics-import/1", capsys)
    plan = plan_prune(listing.versions, Policy((Latest(1),)), 2e9)
    done = PruneResult(tuple(e.ref for e in plan.deletions), plan.deleted_bytes, trashed=True)
    for result, purged in ((None, None), (done, None), (replace(done, trashed=False), Purge(5))):
        human = render_prune.human(plan, [str(place)], result, purged)
        check(render_prune.document(plan, result, purged), human, "prune/1", capsys)


def _check_version(version: Version, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("quick", "default", "deep"):
        found = verify_version(version, level=level)
        check(render_verify.document(found), render_verify.human([found]), "verify/1", capsys)
    try:
        with open_checkpoint(version, partial=True) as checkpoint:
            summary = summarize(version, checkpoint.shards)
            stats = tensor_stats(checkpoint, variables=None, tables=None)
    except EdlCkptError:
        return  # verify above has told what is wrong
    check(render_inspect.document(summary, stats), render_inspect.human(summary, stats), "inspect/1", capsys)
    if version.state is not State.COMPLETE:
        return
    try:
        plan = plan_reshard(version, 3, output=str(tmp_path / f"out-{version.version}"))
    except EdlCkptError:
        return
    check(render_reshard.plan_document(plan), render_reshard.plan_human(plan), "reshard/1", capsys)
    result = execute_reshard(plan)
    check(render_reshard.document(result), render_reshard.human(result), "reshard/1", capsys)
    assert set(render_reshard.document(result)) <= set(render_reshard.plan_document(plan))
    copy = plan_copy([version], f"{plan.output}-copy")
    check(render_copy.plan_document(copy), render_copy.plan_human(copy), "copy/1", capsys)
    try:
        copied = execute_copy(copy)
    except EdlCkptError:
        return
    failed = replace(copied, failed=((version.ref, EdlCkptError("a [bold]word\x1b[31m", path="there")),))
    for outcome in (copied, failed, execute_copy(plan_copy([version], f"{plan.output}-copy"))):
        check(render_copy.document(outcome), render_copy.human(outcome), "copy/1", capsys)
    shutil.rmtree(plan.output)
