"""The plan of an import is arithmetic on counts; a checkpoint is imported by a reshard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checkpoints import only, save_small, shards_of
from edl_ckpt.core.base.errors import LockedError, NotFoundError, RefusedError
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.moving.input import PieceCounts, SurveyedTable
from edl_ckpt.core.moving.plan import lay_out_survey
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.survey import SourceSurvey
from edl_ckpt.core.operations.export import export_version
from edl_ckpt.core.operations.importing import as_checkpoint, import_arrays, import_checkpoint
from edl_ckpt.core.operations.importing.source import ArraysPlan, NamedArrays
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.sources.elasticdl.shard_layout import PlacedVariable
from edl_ckpt.core.storage import open_store
from oracle import Model, add_shard, variable_owner

TARGET = Target(open_store("out"), ELASTICDL, 77, "out/version-77")


@pytest.mark.parametrize("rows", [[3, 0, 5], [0, 0, 0], [1, 0, 0]])
def test_every_byte_has_one_place(rows: list[int]) -> None:
    """Between the planned bytes there is room for values and ids and for nothing else; protobuf reads each shard."""
    counts = np.array(rows, np.int64)
    table = SurveyedTable(TableInfo("t", 4, "zeros"), DTYPES["int16"])
    variables = tuple(PlacedVariable(name, DTYPES["float32"], (2,), 8) for name in ("b", "a", "c"))
    survey = SourceSurvey(
        to_ps=3,
        number=77,
        variables=variables,
        tables=(table,),
        counts=(PieceCounts("t", counts, counts),),
        stretches=(),
    )
    plan = ArraysPlan(TARGET, *lay_out_survey(survey, TARGET), NamedArrays({}, ()))
    for ps_id, (size, ids_at) in enumerate(zip(plan.layouts.size_bytes, plan.layouts.ids_at("t"), strict=True)):
        data = bytearray(int(size))
        literals = plan.layouts.literals(ps_id)
        for offset, piece in literals:
            data[offset : offset + len(piece)] = piece
        data[int(ids_at) : int(ids_at) + rows[ps_id]] = bytes(range(rows[ps_id]))
        names = [v.name for v in variables if variable_owner(v.name, 3) == ps_id]
        assert literals.size_bytes + 8 * len(names) + 9 * rows[ps_id] == size == plan.shards[ps_id].size_bytes
        model = Model()
        add_shard(model, bytes(data), "v4")
        assert model.version == 77
        assert sorted(model.dense) == sorted(names)
        assert list(model.tables["t"].rows) == list(range(rows[ps_id]))
        assert (plan.shards[ps_id].rows, plan.shards[ps_id].variables) == (rows[ps_id], len(names))
        assert plan.shards[ps_id].path == f"out/version-77/variables-{ps_id}-of-3.ckpt"
    assert plan.rows == sum(rows)


def test_a_checkpoint_is_imported(tmp_path: Path) -> None:
    """A checkpoint_dir, a reference and one shard's file are checkpoints; each is written under the new number."""
    save_small(tmp_path / "run", 3)
    source = only(tmp_path / "run")
    export_version(source, str(tmp_path / "one.ckpt"))
    for number, place in enumerate(("run", "run@3", "run/version-3", "one.ckpt"), start=10):
        version = as_checkpoint(str(tmp_path / place))
        assert version is not None
        done = import_checkpoint(version, str(tmp_path / f"new-{number}"), number, 3)
        assert isinstance(done, WriteResult)
        assert (done.version, done.from_ps, done.to_ps) == (number, version.ps_num, 3)
        assert done.ref == f"{tmp_path}/new-{number}@{number}"
        assert done.fingerprint == source.fingerprint
        model = Model()
        for data in shards_of(tmp_path / f"new-{number}").values():
            add_shard(model, data, "v4")
        assert model.version == number


def test_files_of_other_tools_are_no_checkpoint(tmp_path: Path) -> None:
    """Arrays, an empty directory and a path without anything are no checkpoint; a version not there is an error."""
    save_small(tmp_path / "run", 3)
    np.savez(tmp_path / "m.npz", a=np.arange(3))
    (tmp_path / "empty").mkdir()
    for place in ("m.npz", "empty", "none", "none.ckpt"):
        assert as_checkpoint(str(tmp_path / place)) is None
    with pytest.raises(NotFoundError):
        as_checkpoint(str(tmp_path / "run@4"))


def test_the_target_is_locked(tmp_path: Path) -> None:
    """An import of either kind waits for the lock of its target, and gives up with nothing written."""
    save_small(tmp_path / "run", 3)
    np.savez(tmp_path / "m.npz", a=np.arange(3))
    (tmp_path / "out").mkdir()
    with location_lock(str(tmp_path / "out"), "test", create=True):
        with pytest.raises(LockedError, match="test"):
            import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "out"), 1, 2, wait_seconds=0.1)
        with pytest.raises(LockedError, match="test"):
            import_checkpoint(only(tmp_path / "run"), str(tmp_path / "out"), 1, 2, wait_seconds=0.1)
    assert list((tmp_path / "out").iterdir()) == []
    import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "out"), 1, 2, wait_seconds=0.1)
    with pytest.raises(RefusedError, match="version 1 exists there already"):
        import_checkpoint(only(tmp_path / "run"), str(tmp_path / "out"), 1, 2)
