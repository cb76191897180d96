"""The public API as a typed program uses it: mypy checks this file in strict mode, and it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type, get_args

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
    UsageError,
    Version,
    VersionLike,
    as_array,
    export_version,
    list_versions,
    open_checkpoint,
    plan_prune,
    reshard_version,
    restore,
    save_checkpoint,
    set_metrics,
    verify_version,
    wait_for_version,
)
from edl_ckpt.core.base.choices import FormatName, LayoutName, Level, Mode
from edl_ckpt.core.operations.export import FORMATS
from edl_ckpt.core.operations.importing import plan_arrays
from edl_ckpt.core.operations.verify.findings import LEVELS
from edl_ckpt.core.sources.elasticdl.names import WRITABLE
from edl_ckpt.core.state.metric_modes import MODES


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


def test_wrong_words(tmp_path: Path) -> None:
    """A wrong level, mode, layout or format is an error of a type checker, and of the function.

    mypy in strict mode refuses an `ignore` that it does not need, so each of these lines must be wrong.
    """
    version = save_checkpoint(tmp_path, 1, ps_num=1, variables={"w": np.zeros(3)})
    with pytest.raises(UsageError):
        verify_version(version, level="depp")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        set_metrics(version, {"f1": 0.5}, mode="maximum")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        save_checkpoint(tmp_path, 2, ps_num=1, layout="new")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        export_version(version, tmp_path / "m", format_name="hdf5")  # type: ignore[arg-type]
    _ = Best(1, "w", "least")  # type: ignore[arg-type]  # `plan_prune` refuses it


def test_misspelt_options(tmp_path: Path) -> None:
    """An unknown keyword is an error of a type checker, and a TypeError before anything is done."""
    version = save_checkpoint(tmp_path, 1, ps_num=1, variables={"w": np.zeros(3)})
    with pytest.raises(TypeError):
        export_version(version, tmp_path / "m", rnaks=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        verify_version(version, wrkers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        reshard_version(version, 2, layuot="elasticdl")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        set_metrics(version, {"f1": 0.5}, wait_second=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        wait_for_version(tmp_path, interval=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        plan_arrays(tmp_path / "m", tmp_path, 2, 1, wrkers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        restore(version, 0, 1, outs=None)  # type: ignore[call-arg]


def test_words_are_those_that_the_engine_knows() -> None:
    """The words of each type are the formats, layouts, levels and modes that there are."""
    assert [*get_args(FormatName)] == sorted(FORMATS, key=get_args(FormatName).index)
    assert (get_args(LayoutName), get_args(Level), get_args(Mode)) == (tuple(WRITABLE), LEVELS, MODES)
