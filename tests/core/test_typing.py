"""The public API as a typed program uses it: mypy checks this file in strict mode, and it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pytest

from edl_ckpt.core import (
    Array,
    Best,
    Checkpoint,
    Ids,
    Latest,
    Listing,
    LocationLike,
    Part,
    Policy,
    Progress,
    PrunePlan,
    Reporter,
    Rows,
    Rule,
    Table,
    TableView,
    Version,
    VersionLike,
    as_array,
    list_versions,
    open_checkpoint,
    plan_prune,
    save_checkpoint,
    verify_version,
)


class OwnArray:
    """An array of a library that has no types of ours: it has `__array__`."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.ones((3, 2), np.float32)


class OwnReporter:
    """A reporter by its methods alone."""

    def warn(self, text: str) -> None:
        """Ignore it."""

    def start(self, what: str, total_bytes: int) -> None:
        """Ignore it."""

    def advance(self, size_bytes: int) -> None:
        """Ignore it."""


def save(location: LocationLike, variables: Mapping[str, Array], reporter: Reporter) -> Version:
    """Save version 1 with a table whose vectors are of another library."""
    table = Table(np.arange(3), OwnArray(), initializer="zeros")
    return save_checkpoint(location, 1, ps_num=2, variables=variables, tables={"t": table}, reporter=reporter)


def rows_of(version: VersionLike, ids: Ids) -> Rows:
    """Return rows of the table."""
    with open_checkpoint(version) as checkpoint:
        return checkpoint.table("t").to_numpy(ids)


def test_a_typed_program(tmp_path: Path) -> None:
    """Paths, arrays, references and reporters of a user's own kinds have the types that functions ask for."""
    reporters: list[Reporter] = [Progress(print), OwnReporter()]
    version = save(tmp_path, {"w": np.zeros(3), "own": OwnArray()}, reporters[0])
    assert_type(version, Version)
    assert_type(list_versions(tmp_path), Listing)
    assert_type(rows_of(tmp_path, [1, 2]).ids, npt.NDArray[np.int64])
    assert_type(as_array(OwnArray()), npt.NDArray[Any])
    with open_checkpoint(version) as checkpoint:
        assert_type(checkpoint, Checkpoint)
        assert_type(checkpoint["w"], npt.NDArray[np.generic])
        assert_type(checkpoint.table("t"), TableView)
        assert_type(checkpoint.restore(0, 2), Part)
        batches = [assert_type(batch, Rows) for batch in checkpoint.table("t")]
        names: list[str] = list(checkpoint)
    assert (len(batches), names) == (2, ["own", "w"])
    rules: tuple[Rule, ...] = (Latest(1), Best(1, "auc"))
    assert_type(plan_prune([tmp_path], Policy(rules)), PrunePlan)
    assert verify_version(tmp_path, reporter=reporters[1]).ok
    with pytest.raises(KeyError):
        rows_of(version, np.array([7]))
