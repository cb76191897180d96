"""Results in a notebook: small tables of HTML, escaped, without colours, shown by a real notebook."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import html5lib
import numpy as np
import pytest

import edl_ckpt.core as edl
from browser import first_pixel, needs_browser, picture
from checkpoints import save_small

HOSTILE = ("<script>alert(1)</script>", "\"quotes' & <b>", "\u202egnp.exe", "x" * 500, "a\nb\x1b[31m")
has_jupyter = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nbconvert", "ipykernel")),
    reason="nbconvert and ipykernel are not installed: pip install -e '.[test]'",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location of versions with hostile names."""
    place = tmp_path_factory.mktemp("<i>notebook") / "run"
    for version in (1, 2):
        values = {name: np.full((3, 2), version, np.float32) for name in HOSTILE}
        tables = {name: edl.Table(np.arange(5), np.full((5, 2), version, np.float32)) for name in HOSTILE}
        edl.save_checkpoint(str(place), version, 2, variables=values, tables=tables, layout="elasticdl")
        edl.set_metrics(f"{place}@{version}", {HOSTILE[1]: float("nan"), "auc": 0.5})
        edl.set_note(f"{place}@{version}", HOSTILE[0])
    edl.add_tag(f"{place}@1", "a<b>&'")
    (place / "version-2" / HOSTILE[2]).touch()
    return place


RESULTS: dict[str, Callable[[Path], Any]] = {
    "Listing": edl.list_versions,
    "Version": lambda run: edl.list_versions(run).versions[1],
    "Checkpoint": lambda run: edl.open_checkpoint(f"{run}@1"),
    "TableView": lambda run: edl.open_checkpoint(f"{run}@1").table(HOSTILE[1]),
    "CheckpointSummary": lambda run: edl.summarize(*_opened(run)),
    "PrunePlan": lambda run: edl.plan_prune([run], edl.Policy((edl.Latest(1), edl.Best(1, "auc", "max")))),
    "ReshardPlan": lambda run: edl.prepare_reshard(f"{run}@1", 3, output=run.parent / "<u>out")[0],
    "CopyPlan": lambda run: edl.plan_copy([f"{run}@1"], run.parent / "<u>copy"),
    "DiffResult": lambda run: edl.diff_versions(f"{run}@1", f"{run}@2"),
    "VerifyResult": lambda run: edl.verify_version(f"{run}@2"),
}
"""A result of each class that shows itself in a notebook."""


def _opened(run: Path) -> tuple[Any, Any]:
    with edl.open_checkpoint(f"{run}@1") as checkpoint:
        return checkpoint.version, checkpoint.shards


@pytest.mark.parametrize("kind", RESULTS)
def test_escaped_and_small(run: Path, kind: str) -> None:
    """Each result is valid HTML that names its class, with nothing of a name interpreted, and no colour of its own."""
    result = RESULTS[kind](run)
    assert type(result).__name__ == kind
    html = result._repr_html_()
    root = html5lib.HTMLParser(strict=True).parseFragment(html)
    names = {str(element.tag).rpartition("}")[2] for element in root.iter()} - {"DOCUMENT_FRAGMENT"}
    assert names <= {"div", "p", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "bdi"}
    assert "table" in names
    styles = {value for element in root.iter() for key, value in element.attrib.items() if key == "style"}
    assert styles <= {"text-align: left", "text-align: right"}
    assert root.find(".//{http://www.w3.org/1999/xhtml}strong").text == kind
    assert not {"\u202e", "\x1b"} & set(html)
    assert "x" * 241 not in html
    assert len(html) < 16_000


def test_every_class_is_here() -> None:
    """Each public class that shows itself in a notebook is among those above."""
    classes = (getattr(edl, name) for name in edl.__all__)
    assert {c.__name__ for c in classes if isinstance(c, type) and hasattr(c, "_repr_html_")} == set(RESULTS)


def test_numbers_are_those_of_the_result(run: Path) -> None:
    """A diff shows the same counts as its fields, and what differs before what does not."""
    found = RESULTS["DiffResult"](run)
    root = html5lib.parseFragment(found._repr_html_(), namespaceHTMLElements=False)
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    by_name = {table.name: table for table in found.tables}
    assert rows[1][2:6] == [str(by_name[HOSTILE[1]].added), "0", "5", "0"]
    assert {row[1] for row in rows[1:6]} == {"changed"}


def test_nothing_is_read(run: Path) -> None:
    """A closed checkpoint and its tables still show themselves: they read nothing for that."""
    checkpoint = edl.open_checkpoint(f"{run}@1")
    before = checkpoint.bytes_read
    view = checkpoint.table(HOSTILE[1])
    assert "5 rows" in view._repr_html_()
    checkpoint._repr_html_()
    assert checkpoint.bytes_read == before
    checkpoint.close()
    assert "closed" in checkpoint._repr_html_()
    assert "5 rows" in view._repr_html_()


def test_bounds(tmp_path: Path) -> None:
    """Of many versions the newest 20 are shown, and the number of the others."""
    save_small(tmp_path / "run", *range(30), sealed=False)
    html = edl.list_versions(tmp_path / "run")._repr_html_()
    assert html.count("<tr>") == 21
    assert "10 older versions are not shown" in html
    assert ">29<" in html
    assert ">9<" not in html


def _notebook(run: Path) -> dict[str, Any]:
    lines = [
        "from edl_ckpt.core import *",
        f"run = {str(run)!r}",
        "list_versions(run)",
        "list_versions(run).versions[1]",
        "checkpoint = open_checkpoint(f'{run}@1'); checkpoint",
        "checkpoint.tables[checkpoint.table_names[0]]",
        "plan_prune([run], Policy((Latest(1),)))",
        "diff_versions(f'{run}@1', f'{run}@2')",
        "verify_version(f'{run}@2')",
    ]
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    return {
        "cells": [{**cell, "id": f"c{k}", "source": line} for k, line in enumerate(lines)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


_EXECUTE = """
import sys, nbclient, nbconvert, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=300).execute()
for theme in ("light", "dark"):
    page, _ = nbconvert.HTMLExporter(theme=theme).from_notebook_node(notebook)
    with open(f"{sys.argv[2]}/{theme}.html", "w", encoding="utf-8") as file:
        file.write(page)
"""
"""Executes a notebook, and writes it as a light page and as a dark one."""


def _executed(source: Path, target: Path) -> None:
    """Execute a notebook in a process of its own, with nbconvert's templates wherever that is installed."""
    spec = importlib.util.find_spec("nbconvert")
    assert spec is not None
    assert spec.origin is not None
    environment = {**os.environ, "JUPYTER_PATH": str(Path(spec.origin).parents[4] / "share/jupyter")}
    command = [sys.executable, "-c", _EXECUTE, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@has_jupyter
@needs_browser
def test_in_a_notebook(run: Path, tmp_path: Path) -> None:
    """A real notebook, executed, has the tables of every result, and a browser shows it light and dark."""
    source = tmp_path / "results.ipynb"
    source.write_text(json.dumps(_notebook(run)))
    _executed(source, tmp_path)
    for theme in ("light", "dark"):
        page = tmp_path / f"{theme}.html"
        text = page.read_text("utf-8")
        assert text.count("<strong>") >= 7
        assert "<strong>PrunePlan</strong>" in text
        assert "<script>alert" not in text
        shown = picture(page, 1000, 1600)
        assert (sum(first_pixel(shown)) > 3 * 128) is (theme == "light")
