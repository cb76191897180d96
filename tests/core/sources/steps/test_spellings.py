"""A number comes only from a spelling of the tables; every family has a test of its own."""

from __future__ import annotations

import pytest

from edl_ckpt.core.sources.steps.spellings import (
    DIRECTORIES,
    MOST,
    PREFIXES,
    Spelling,
    number_of_directory,
    number_of_prefix,
)

NUMBERS = {
    "checkpoint-500": 500,
    "checkpoint_3": 3,
    "checkpoint_000010": 10,
    "step_1000_ckp": 1000,
    "cp-0003": 3,
    "epoch=3": 3,
    "bert-epoch=3-loss=0.32": 3,
    "epoch_3": 3,
    "epoch-3": 3,
    "epoch3": 3,
    "checkpoint_epoch_3": 3,
    "checkpoint-epoch-3": 3,
}
NONE = (
    "weights.10-0.32",
    "weights.02",
    "fp16",
    "h4725",
    "run_1",
    "exp3",
    "2024-01-02",
    "20240102-030405",
    "val_step=3",
    "epoch=3-step=100.5",
    "weights-10-32",
    "weights-0.3-100",
    "step_",
    "step_1\n",
    "version_3x",
    "9" * 20,
    str(MOST + 1),
    "best",
)


@pytest.mark.parametrize("spelling", DIRECTORIES, ids=lambda one: one.family)
def test_each_family_of_directories_has_its_number(spelling: Spelling) -> None:
    """Each example is read, with and without the ending `.ckpt`, in upper case too, by its own row of the table."""
    for name in spelling.examples:
        expected = NUMBERS.get(name, 100)
        assert number_of_directory(name) == number_of_directory(f"{name}.ckpt") == expected
        assert number_of_directory(name.upper()) == number_of_prefix(name) == expected


@pytest.mark.parametrize("spelling", PREFIXES, ids=lambda one: one.family)
def test_what_tensorflow_appends_to_any_prefix_is_a_number(spelling: Spelling) -> None:
    """A hyphen and digits at the end of a bundle's prefix are its number, and no directory's."""
    for name in spelling.examples:
        assert number_of_prefix(name) == 100
    assert number_of_directory("model-100") is None


@pytest.mark.parametrize("name", NONE)
def test_last_digits_of_any_name_are_no_number(name: str) -> None:
    """Digits of a loss, a date, a width or behind a point name no step."""
    assert number_of_directory(name) is None
    assert number_of_prefix(name) is None


def test_nineteen_digits_are_nineteen_digits() -> None:
    """A number of nanoseconds is read whole."""
    for digits in ("1999999999999999999", "2000000000000000000", str(MOST)):
        assert number_of_directory(digits) == number_of_prefix(f"model-{digits}") == int(digits)


def test_no_name_takes_long() -> None:
    """A name of 255 characters is held against all spellings in a moment."""
    for name in ("-step=" * 42, "a-" * 127, "=" * 255, "epoch=" * 42):
        assert number_of_prefix(name) is None
