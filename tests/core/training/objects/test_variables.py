"""Variables that change in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.training.objects import EmbeddingTable, Variable


def test_a_variable_is_an_array() -> None:
    """Operators and functions of numpy take it; in-place operators change it; its value is a copy."""
    start = np.arange(3.0)
    variable = same = Variable(start)
    variable += 1
    np.multiply(variable, 2, out=variable)  # type: ignore[call-overload]
    variable[0] = 50
    assert variable is same
    assert start.tolist() == [0, 1, 2]
    assert variable.numpy().tolist() == [50, 4, 6]
    assert (variable.shape, variable.dtype.name, len(variable)) == ((3,), "float64", 3)
    assert float(np.ones(3) @ variable) == float(np.sum(variable)) == 60
    assert np.asarray(variable > 5).tolist() == [True, False, True]
    assert repr(Variable(np.zeros((20, 3), "f4"))) == "Variable(..., dtype=float32, shape=[20, 3])"


def test_a_counter() -> None:
    """A number counts up and down, and is an index, a number and a truth value."""
    step = Variable(3)
    assert step.assign_add(2).assign_sub(1) is step
    assert ([10, 11, 12, 13, 14][step], int(step), float(step), bool(step), step.numpy()) == (14, 4, 4.0, True, 4)
    assert Variable(1.5, np.float32).assign_add(1).dtype == np.float32


@pytest.mark.parametrize(
    ("value", "fault"), [(np.zeros(2), "cannot assign shape"), (1.5, "cannot assign float64 to a variable of int64")]
)
def test_what_cannot_be_assigned(value: Any, fault: str) -> None:
    """A value of another shape, or that would lose its fraction, is an error, and nothing changes."""
    step = Variable(3)
    with pytest.raises(UsageError, match=fault):
        step.assign(value)
    assert int(step) == 3


def test_a_table() -> None:
    """A table says what it has."""
    assert repr(EmbeddingTable([1, 2], np.zeros((2, 3), np.float32))) == "EmbeddingTable(2 rows, dim 3, float32)"
