"""Docstrings and README are true: doctests, public names, exit codes; `test_console.py` runs the pages' examples."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import edl_ckpt.cli
import edl_ckpt.core
from edl_ckpt.core import errors
from places import TOP

README = (TOP / "README.md").read_text(encoding="utf-8")
MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (edl_ckpt.core, edl_ckpt.cli)
    for module in pkgutil.iter_modules(package.__path__)
    if not module.ispkg and module.name != "_kernel"
]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    """Every example in a docstring gives what it says; every module says what it is for."""
    module = importlib.import_module(name)
    assert module.__doc__
    assert doctest.testmod(module).failed == 0


def test_exit_codes_are_told() -> None:
    """README's table has every error class with its code and id."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EdlCkptError)]
    assert len(classes) > 8
    for error in classes:
        assert f"| {error.exit_code} | {error.id} |" in README


def test_public_names() -> None:
    """Every public name of the engine exists, and its home says so."""
    for name in edl_ckpt.core.__all__:
        assert getattr(edl_ckpt.core, name) is not None
        assert name in dir(edl_ckpt.core)
    with pytest.raises(AttributeError):
        _ = edl_ckpt.core.nothing
