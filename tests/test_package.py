"""`import edl_ckpt` is the library's door: names, a version, a page of help, and next to no time."""

from __future__ import annotations

import ast
import doctest
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import assert_type

import pytest

import edl_ckpt
import edl_ckpt.core
from places import TOP

NAMES = [name for name in dir(edl_ckpt) if not name.startswith("_") and name not in {"cli", "core", "proto"}]


def test_the_names_that_matter() -> None:
    """The names at the top are those of the engine; type checkers see the same; any other name is an error."""
    assert len(NAMES) == 22
    assert all(getattr(edl_ckpt, name) is getattr(edl_ckpt.core, name) for name in [*NAMES, "__version__"])
    tree = ast.parse((TOP / ".src/package/__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "edl_ckpt.core"]
    assert sorted(alias.name for node in imports for alias in node.names) == sorted([*NAMES, "__version__"])
    with pytest.raises(AttributeError, match=r"edl_ckpt\.core may have it"):
        edl_ckpt.undo  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean verify_version\?"):
        edl_ckpt.verify  # type: ignore[attr-defined]  # noqa: B018
    assert_type(edl_ckpt.list_versions("."), edl_ckpt.core.Listing)


def test_the_engine_is_below() -> None:
    """`edl_ckpt.core` is there, also when nothing else was used; a name that is nowhere has an error of its own."""
    code = "import edl_ckpt; print(edl_ckpt.core.list_versions is edl_ckpt.list_versions, hasattr(edl_ckpt, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True False\n"


def test_help_is_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`help(edl_ckpt)` names everything, is short, and its example runs."""
    page = pydoc.plain(pydoc.render_doc(edl_ckpt))
    assert len(page.splitlines()) < 70
    assert [name for name in NAMES if name not in page] == []
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(edl_ckpt).failed == 0


def test_it_costs_nothing() -> None:
    """The package imports no module that Python has not loaded, and nothing of its own, before a name is used."""
    code = "import sys; before = {*sys.modules}; import edl_ckpt; print(*{*sys.modules} - before)"
    here = {**os.environ, "PYTHONPATH": str(TOP / ".src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=here
    )
    assert done.stdout.split() == ["edl_ckpt"]
