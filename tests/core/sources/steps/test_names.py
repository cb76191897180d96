"""The spellings of steps, and which files belong to one name."""

from __future__ import annotations

import pytest

from edl_ckpt.core.sources.steps import names
from edl_ckpt.core.sources.steps.spellings import number_of_directory


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("step_100", 100),
        ("step-100", 100),
        ("checkpoint-500", 500),
        ("model.ckpt-7", 7),
        ("iter_0000100", 100),
        ("global_step12", 12),
        ("epoch=3-step=200", 200),
        ("epoch=3-step=200.ckpt", 200),
        ("300", 300),
        ("version-3", None),
        ("version_3", None),
        ("step_", None),
        ("-5", None),
        ("run1", None),
        ("step_1\n", None),
        ("9" * 19, None),
    ],
)
def test_the_number_of_a_directory(name: str, number: int | None) -> None:
    """Each spelling that a neighbour uses gives its number; ElasticDL's spellings and other names give none."""
    assert number_of_directory(name) == number


def test_hidden_and_deep_directories_are_not_looked_into() -> None:
    """A listing goes into steps only, and not without end."""
    assert names.looks_into("step_1/a/b/c/d/e")
    assert not names.looks_into("step_1/a/b/c/d/e/f")
    assert not names.looks_into("step_1/.git")
    assert not names.looks_into("data/step_1")
