"""Docstrings and README are true: doctests, public names, exit codes; `test_console.py` runs the pages' examples."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import edl_ckpt
import edl_ckpt.cli
import edl_ckpt.core
from edl_ckpt.cli.catalogue import SECTIONS
from edl_ckpt.core.base import errors
from places import TOP

README = (TOP / "README.md").read_text(encoding="utf-8")


def modules() -> list[str]:
    """Return the names of all modules and packages of the engine and the program, but the compiled one."""
    names = []
    for package in (edl_ckpt.core, edl_ckpt.cli):
        names += [package.__name__]
        names += [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=_fail)]
    return [name for name in names if not name.endswith("._kernel")]


def _fail(name: str) -> None:
    raise ImportError(name)


@pytest.mark.parametrize("name", modules())
def test_doctests(name: str, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example in a docstring gives what it says, some of them with versions of `run`; every module has one."""
    module = importlib.import_module(name)
    assert module.__doc__
    if f'"{run.name}' in Path(module.__file__ or "").read_text(encoding="utf-8"):
        shutil.copytree(run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(module).failed == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with versions 100 and 200, each with the variable `bias` and the table `user` of 10 rows."""
    place = tmp_path_factory.mktemp("docs") / "run"
    for number in (100, 200):
        vectors = np.full((10, 4), number, np.float32)
        tables = {"user": edl_ckpt.Table(np.arange(10), vectors)}
        edl_ckpt.save_checkpoint(place, number, 2, variables={"bias": np.zeros(8)}, tables=tables)
    return place


FUNCTIONS = sorted(n for n in dir(edl_ckpt) if n.islower() and n[0] != "_" and callable(getattr(edl_ckpt, n)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_main_functions_have_examples(name: str) -> None:
    """Each function that the package itself names shows a call of it."""
    assert f"{name}(" in str(getattr(edl_ckpt, name).__doc__)


def test_doctests_are_found() -> None:
    """No module on the disk is passed over, and there are no fewer modules and examples than once were counted."""
    found = modules()
    on_disk = {
        "edl_ckpt." + ".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__")
        for room in ("core", "cli")
        for path in (TOP / room).rglob("*.py")
    }
    assert set(found) == on_disk
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = sum(len(test.examples) for name in found for test in finder.find(importlib.import_module(name), name))
    assert len(found) >= 110
    assert examples >= 54


def test_exit_codes_are_told() -> None:
    """The page on exit codes has every error class with its code and id."""
    page = (TOP / "docs/json-and-exit-codes.md").read_text(encoding="utf-8")
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EdlCkptError)]
    assert len(classes) > 8
    for error in classes:
        assert f"| {error.exit_code} | {error.id} |" in page
        assert error.__name__ in edl_ckpt.core.__all__


def test_commands_are_told() -> None:
    """README names every command: six of them at work, and the others after these."""
    told = {*re.findall(r"^\$ edl-ckpt (\w+)", README, re.MULTILINE)}
    (others,) = re.findall(r"^Other commands:\n\n.*?\n\n", README, re.MULTILINE | re.DOTALL)
    assert len(told) == 6
    assert sorted([*told, *re.findall(r"`(\w+)`", others)]) == sorted(n for names in SECTIONS.values() for n in names)


def test_public_names() -> None:
    """Every public name of the engine exists, and its home says so."""
    for name in edl_ckpt.core.__all__:
        assert getattr(edl_ckpt.core, name) is not None
        assert name in dir(edl_ckpt.core)
    with pytest.raises(AttributeError):
        _ = edl_ckpt.core.nothing  # type: ignore[attr-defined]
