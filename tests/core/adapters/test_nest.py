"""Nests of dicts, lists and tuples become flat variables and come back equal; damage in their structure is found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core import Progress, open_checkpoint, save_checkpoint
from edl_ckpt.core.adapters.nest import STRUCTURE, flatten, unflatten
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError, UsageError

PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
NESTS = st.recursive(
    PLAIN | st.integers(0, 9).map(lambda n: np.full(n % 3, n, np.float32)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(min_size=1, max_size=3) | st.integers(-9, 9), inner, max_size=3),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Say whether two nests have the same kinds, keys in their order, and values, NaN too."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def whole(nest: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nest as variables."""
    return flatten(nest, prefix, lambda value, _: np.asarray(value))


@given(st.dictionaries(st.text(min_size=1, max_size=3) | st.integers(-9, 9), NESTS, max_size=4))
def test_there_and_back(nest: dict[Any, Any]) -> None:
    """Keys, kinds and values of a nest are equal after it was flat, unless two of its paths are one."""
    try:
        variables = whole(nest, "p/")
    except UsageError as error:
        assert "would be the variable" in str(error)  # noqa: PT017 - only some nests have it
        return
    if not variables:
        return
    assert all(name.startswith("p/") for name in variables)
    assert same(unflatten(variables | {"other": np.zeros(1)}, "p/", lambda array: array), nest)


def test_through_a_checkpoint(tmp_path: Path) -> None:
    """A nest goes through a checkpoint of several servers, beside another one; ElasticDL can read its structure."""
    optimizer = {
        "state": {0: {"step": np.float32(5), "m": np.ones((2, 3))}},
        "groups": [{"lr": 0.1, "betas": (0.9, 1)}],
    }
    model = {"a.weight": np.arange(3), "b": np.zeros((0, 2), np.float32)}
    warnings: list[str] = []
    save_checkpoint(
        tmp_path,
        1,
        3,
        variables={**whole(model, "model/"), **whole(optimizer, "optimizer/")},
        tables={},
        layout="elasticdl",
        reporter=Progress(on_warning=warnings.append),
    )
    assert warnings == []
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint) == {
            "model/a.weight",
            "model/b",
            "optimizer/.structure",
            "optimizer/state/0/m",
            "optimizer/state/0/step",
        }
        assert same(unflatten(checkpoint, "model/", lambda array: array), model)
        read = unflatten(checkpoint, "optimizer/", lambda array: array)
        assert read["state"][0]["step"] == 5
        assert read["groups"] == optimizer["groups"]
        with pytest.raises(NotFoundError, match="begins with 'x/'"):
            unflatten(checkpoint, "x/", lambda array: array)


@pytest.mark.parametrize(
    "nest",
    [
        {"a": {1.5: 1}},
        {"a": {True: 1}},
        {"a": object()},
        {"a": {1, 2}},
        {"a": b"x"},
        {"a/b": np.ones(1), "a": {"b": np.ones(1)}},
    ],
)
def test_what_cannot_be_saved(nest: dict[Any, Any]) -> None:
    """The error is ours, and names the place."""
    with pytest.raises(UsageError, match="a"):
        whole(nest)


def test_a_nest_that_contains_itself() -> None:
    """It ends in an error of ours."""
    nest: dict[str, Any] = {}
    nest["again"] = nest
    with pytest.raises(UsageError, match="contains itself"):
        whole(nest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"nodes":[{"dict":[]}]}',
        *(
            f'{{"schema":"edl-ckpt/nest/1","nodes":[{nodes}]}}'
            for nodes in (
                "",
                "3",
                "{}",
                '{"list":[]}',
                '{"dict":[["a",0]]}',
                '{"dict":[["a",-1]]}',
                '{"value":1},{"dict":[["a",true]]}',
                '{"value":1},{"dict":[[1.5,0]]}',
                '{"value":1},{"dict":[["a"]]}',
                '{"value":[]},{"dict":[["a",0]]}',
                '{"float":"1"},{"dict":[["a",0]]}',
                '{"array":3},{"dict":[["a",0]]}',
                '{"pickle":"x"},{"dict":[["a",0]]}',
                '{"array":"gone"},{"dict":[["a",0]]}',
            )
        ),
    ],
)
def test_a_damaged_structure(text: str) -> None:
    """Whatever bytes stand in its place, the error is ours."""
    with pytest.raises((CorruptError, NotFoundError)) as caught:
        unflatten({STRUCTURE: np.frombuffer(text.encode(), np.int8)}, "", lambda array: array)
    assert isinstance(caught.value, EdlCkptError)
