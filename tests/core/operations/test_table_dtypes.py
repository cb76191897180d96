"""The dtype of a table is the same in its info and in its tensor, in every shard of whatever writes a version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import only
from edl_ckpt.core import (
    execute_copy,
    export_version,
    fingerprint_checkpoint,
    import_arrays,
    open_checkpoint,
    plan_copy,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.save import Table as RowsToSave
from edl_ckpt.proto import model_v4_pb2
from golden_cases import shard_files
from oracle import TF_NAMES, Model, Table, combined, read_model
from places import GOLDEN

ROWS = ["float32", "float64", "int64", "int8", "int16", "int32"]
SERVERS = 3


def one_sided_model() -> Model:
    """A table of each dtype with rows on one of three servers only, and one without any row."""
    model = Model(7, {"w": ("float32", (2,), bytes(8))})
    for place, dtype in enumerate(ROWS):
        values = np.arange(5 * (place + 1)).astype(dtype).reshape(5, -1)
        rows = {SERVERS * k + 1: row.tobytes() for k, row in enumerate(values)}
        model.tables[f"rows of {dtype}"] = Table(place + 1, "uniform", dtype, rows)
    model.tables["no rows"] = Table(4, "zeros")
    return model


def dtypes_in(path: Path) -> dict[str, tuple[str, str, list[int]]]:
    """Return of each table in a shard the dtype in its info, that of its tensor, and the tensor's shape."""
    shard = model_v4_pb2.Model.FromString(path.read_bytes())
    named = {info.name: TF_NAMES[info.dtype] for info in shard.embedding_table_infos}
    tensors = {name: slices.concat_tensors for name, slices in shard.embedding_tables.items()}
    assert named.keys() == tensors.keys()
    return {n: (named[n], TF_NAMES[t.dtype], [d.size for d in t.tensor_shape.dim]) for n, t in tensors.items()}


def check_dtypes(location: Path, model: Model) -> None:
    """Assert that every shard has every table, and names its dtype in both places."""
    for path in shard_files(location):
        _, ps_id, _, ps_num = path.stem.split("-")
        expected = {}
        for name, table in model.tables.items():
            dtype = table.dtype or "float32"
            rows = sum(1 for i in table.rows if i % int(ps_num) == int(ps_id))
            expected[name] = (dtype, dtype, [rows, table.dim])
        assert dtypes_in(path) == expected, path.name
    assert combined(read_model(shard_files(location))) == combined(model)


def by_reshard(source: Version, location: Path) -> None:
    reshard_version(source, 2, output=str(location))


def by_reshard_to_one_more(source: Version, location: Path) -> None:
    reshard_version(source, 4, output=str(location))


def by_import(source: Version, location: Path, ending: str) -> None:
    place = location.parent / f"m.{ending}"
    export_version(source, str(place))
    import_arrays(str(place), str(location), source.version, SERVERS)


def by_import_of_npz(source: Version, location: Path) -> None:
    by_import(source, location, "npz")


def by_import_of_npy(source: Version, location: Path) -> None:
    by_import(source, location, "npy")


def by_import_of_safetensors(source: Version, location: Path) -> None:
    by_import(source, location, "safetensors")


def by_merged_export(source: Version, location: Path) -> None:
    export_version(source, str(location), format_name="checkpoint")


def by_merged_file(source: Version, location: Path) -> None:
    merged = location.parent / "variables-0-of-1.ckpt"
    export_version(source, str(merged))
    (location / "version-7").mkdir(parents=True)
    merged.rename(location / "version-7" / merged.name)


def by_save(source: Version, location: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        part = checkpoint.restore(0, 1)
    tables = {n: RowsToSave(*rows, part.infos[n].initializer) for n, rows in part.tables.items()}
    save_checkpoint(str(location), part.version, SERVERS, variables=part.variables, tables=tables)


WRITERS = [
    by_reshard,
    by_reshard_to_one_more,
    by_import_of_npz,
    by_import_of_npy,
    by_import_of_safetensors,
    by_merged_export,
    by_merged_file,
    by_save,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("saver", ["go", "python", "earlier"])
def test_every_writer_names_the_dtype_of_the_rows(
    write: Callable[[Version, Path], None], saver: str, tmp_path: Path
) -> None:
    """Every shard of every writer names a table's dtype in its info and in its tensor, rows or not."""
    model = one_sided_model()
    write_checkpoint(tmp_path / "run", model, SERVERS, saver=saver)
    write(only(tmp_path / "run"), tmp_path / "new")
    check_dtypes(tmp_path / "new", model)


@pytest.mark.parametrize("generation", ["v1", "v2", "v3"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_dtype_of_an_old_generation(write: Callable[[Version, Path], None], generation: str, tmp_path: Path) -> None:
    """The infos of old generations have no dtype; it comes from the rows."""
    model = one_sided_model()
    write_checkpoint(tmp_path / "run", model, SERVERS, generation=generation, saver="python")
    write(only(tmp_path / "run"), tmp_path / "new")
    check_dtypes(tmp_path / "new", model)


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_dtype_of_a_table_without_rows(write: Callable[[Version, Path], None], tmp_path: Path) -> None:
    """A table without rows anywhere keeps the dtype that its info names, also through export and import."""
    model = Model(7, tables={f"no {dtype}": Table(3, "zeros", dtype) for dtype in ROWS})
    write_checkpoint(tmp_path / "run", model, SERVERS)
    write(only(tmp_path / "run"), tmp_path / "new")
    check_dtypes(tmp_path / "new", model)
    with open_checkpoint(only(tmp_path / "run")) as old, open_checkpoint(only(tmp_path / "new")) as new:
        assert fingerprint_checkpoint(new).text == fingerprint_checkpoint(old).text


def test_dtype_that_numpy_lacks(tmp_path: Path) -> None:
    """Bfloat16 and its like are named in infos and tensors too, when their rows are resharded."""
    target = write_checkpoint(tmp_path / "run", one_sided_model(), SERVERS)
    for path in shard_files(target):
        shard = model_v4_pb2.Model.FromString(path.read_bytes())
        shard.embedding_tables["rows of int16"].concat_tensors.dtype = 14
        path.write_bytes(shard.SerializeToString())
    reshard_version(only(tmp_path / "run"), 2, output=str(tmp_path / "new"))
    for path in shard_files(tmp_path / "new"):
        shard = model_v4_pb2.Model.FromString(path.read_bytes())
        (info,) = (i for i in shard.embedding_table_infos if i.name == "rows of int16")
        assert (info.dtype, shard.embedding_tables["rows of int16"].concat_tensors.dtype) == (14, 14)


@pytest.mark.parametrize("saver", ["go", "python", "earlier"])
@pytest.mark.parametrize("between", [1, 2, 5])
def test_there_and_back(saver: str, between: int, tmp_path: Path) -> None:
    """N -> M -> N keeps the content, and the result has no error."""
    model = one_sided_model()
    write_checkpoint(tmp_path / "run", model, SERVERS, saver=saver)
    there = reshard_version(only(tmp_path / "run"), between, output=str(tmp_path / "there"))
    back = reshard_version(only(tmp_path / "there"), SERVERS, output=str(tmp_path / "back"))
    check_dtypes(tmp_path / "there", model)
    check_dtypes(tmp_path / "back", model)
    with open_checkpoint(only(tmp_path / "run")) as source:
        assert fingerprint_checkpoint(source).text == there.fingerprint == back.fingerprint
    assert verify_version(only(tmp_path / "back"), level="deep").findings == ()


def test_copy_changes_nothing(tmp_path: Path) -> None:
    """A copy of what a saver wrote has the same bytes: it mends nothing."""
    for saver in ("go", "python", "earlier"):
        write_checkpoint(tmp_path / saver, one_sided_model(), SERVERS, saver=saver)
        execute_copy(plan_copy([only(tmp_path / saver)], str(tmp_path / f"{saver}-copy")))
        old, new = (sorted(shard_files(tmp_path / name)) for name in (saver, f"{saver}-copy"))
        assert [p.read_bytes() for p in new] == [p.read_bytes() for p in old]


def findings(version: Version, code: str, level: Level = "quick") -> list[tuple[int | None, str, int | None, str]]:
    return [
        (f.shard, f.subject, f.offset, f.message)
        for f in verify_version(version, level=level).findings
        if f.code == code
    ]


def places(version: Version, tag: bytes, name: str) -> list[int]:
    """Return in each shard the place of the first field with a tag that contains a name."""
    at = []
    for shard in version.shards:
        data = Path(shard.path).read_bytes()
        start = data.index(name.encode())
        while not (data[start:].startswith(name.encode()) and data.rfind(tag, 0, start) in range(start - 6, start)):
            start = data.index(name.encode(), start + 1)
        at.append(data.rfind(tag, 0, start))
    return at


@pytest.mark.parametrize("saver", ["python", "earlier"])
def test_verify_finds_a_wrong_info(saver: str, tmp_path: Path) -> None:
    """Headers alone show an info that disagrees with the rows, in each shard, at its place in the file."""
    write_checkpoint(tmp_path / "run", one_sided_model(), SERVERS, saver=saver)
    version = only(tmp_path / "run")
    expected = []
    for dtype in ROWS[1:]:
        name = f"rows of {dtype}"
        message = f"the info names float32, the rows are {dtype}: ElasticDL's Go server would load other values"
        if saver == "python":
            message += "; its Python servers write float32 in every info, and restore the rows"
        expected += [(i, name, at, message) for i, at in enumerate(places(version, b"\x12", name))]
    assert sorted(findings(version, "info-dtype-mismatch")) == sorted(expected)
    assert verify_version(version, level="quick").ok == (saver == "python")


@pytest.mark.parametrize("fault", ["another dtype in each info", "in one info", "rows that Python cannot write"])
def test_wrong_infos_that_no_python_server_writes(fault: str, tmp_path: Path) -> None:
    """An info that a Python server would not have written is an error: it cannot be that server's habit."""
    dtype = "uint8" if fault.startswith("rows") else "float64"
    model = Model(7, tables={"t": Table(2, "ones", dtype, {i: np.zeros(2, dtype).tobytes() for i in range(6)})})
    target = write_checkpoint(tmp_path / "run", model, SERVERS, saver="python")
    files = sorted(shard_files(target))
    for path in files[: {"another": 3, "in": 1, "rows": 0}[fault.split(maxsplit=1)[0]]]:
        shard = model_v4_pb2.Model.FromString(path.read_bytes())
        shard.embedding_table_infos[0].dtype = 3  # int32
        path.write_bytes(shard.SerializeToString())
    found = verify_version(only(tmp_path / "run"), level="quick").findings
    assert [(f.severity, f.shard) for f in found if f.code == "info-dtype-mismatch"] == [
        ("error", shard) for shard in range(SERVERS)
    ]


def test_verify_finds_shards_that_disagree(tmp_path: Path) -> None:
    """A tensor without rows of another dtype than the rows is an error; the Python saver's form is not."""
    for saver in ("earlier", "python"):
        write_checkpoint(tmp_path / saver, one_sided_model(), SERVERS, saver=saver)
    version = only(tmp_path / "earlier")
    expected = []
    for dtype in ROWS[1:]:
        name = f"rows of {dtype}"
        message = f"the tensor without rows is float32, other shards have {dtype}: ElasticDL's Go server crashes"
        at = places(version, b'"', name)
        expected += [(0, name, at[0], message), (2, name, at[2], message)]
    assert sorted(findings(version, "table-dtype-mismatch")) == sorted(expected)
    assert findings(only(tmp_path / "python"), "table-dtype-mismatch", "deep") == []
    assert len(findings(only(tmp_path / "python"), "empty-table-form")) == 2 * len(ROWS) + SERVERS


def test_verify_finds_an_info_without_dtype(tmp_path: Path) -> None:
    """An info that names no dtype, or one that nobody knows, is an error with rows and without."""
    target = write_checkpoint(tmp_path / "run", Model(7, tables={"t": Table(2, "ones"), "u": Table(2, "ones")}), 1)
    (path,) = shard_files(target)
    shard = model_v4_pb2.Model.FromString(path.read_bytes())
    for info, number in zip(shard.embedding_table_infos, (0, 99), strict=True):
        info.dtype = number
    path.write_bytes(shard.SerializeToString())
    garbage = "ElasticDL's Go server would load other values"
    assert [f[3] for f in findings(only(tmp_path / "run"), "info-dtype-mismatch")] == [
        f"the info names no dtype: {garbage}",
        f"the info names dtype number 99: {garbage}",
    ]


def test_verify_finds_an_empty_tensor_of_another_width(tmp_path: Path) -> None:
    """A tensor [0, dim] of another dim than the table's is a warning: ElasticDL's Go server cannot merge it."""
    target = write_checkpoint(tmp_path / "run", one_sided_model(), SERVERS)
    path = min(shard_files(target))
    shard = model_v4_pb2.Model.FromString(path.read_bytes())
    shard.embedding_tables["rows of int8"].concat_tensors.tensor_shape.dim[1].size = 9
    path.write_bytes(shard.SerializeToString())
    (found,) = verify_version(only(tmp_path / "run")).findings
    assert (found.severity, found.code, found.shard, found.subject) == (
        "warning",
        "empty-table-form",
        0,
        "rows of int8",
    )
    assert found.message == "the tensor without rows has dim 9, the table has dim 4: ElasticDL's Go server crashes"


@pytest.mark.parametrize("saver", ["python", "earlier"])
def test_reshard_in_place_mends(saver: str, tmp_path: Path) -> None:
    """A reshard in place to the same number of servers mends both findings, as their hints say."""
    model = one_sided_model()
    write_checkpoint(tmp_path / "run", model, SERVERS, saver=saver)
    before = verify_version(only(tmp_path / "run"), level="deep")
    hints = {f.hint for f in before.findings if f.code in {"info-dtype-mismatch", "table-dtype-mismatch"}}
    assert len(hints) == 1
    assert "`edl-ckpt reshard --force` with the same number of servers" in hints.pop()
    result = reshard_version(only(tmp_path / "run"), SERVERS)
    assert result.fingerprint == before.fingerprint
    assert verify_version(only(tmp_path / "run"), level="deep").findings == ()
    check_dtypes(tmp_path / "run", model)


@pytest.mark.parametrize("case", ["ps1", "ps2", "ps3", "ps4"])
def test_what_elasticdls_python_saver_wrote(case: str, tmp_path: Path) -> None:
    """The float64 table of the golden checkpoints is named in every shard, and a reshard mends it."""
    version = only(GOLDEN / "current" / case)
    assert verify_version(version).ok
    found = findings(version, "info-dtype-mismatch")
    assert [(shard, name) for shard, name, _, _ in found] == [(i, "emb_f64") for i in range(version.ps_num or 0)]
    reshard_version(version, version.ps_num or 0, output=str(tmp_path))
    codes = {f.code for f in verify_version(only(tmp_path)).findings}
    assert codes <= {"negative-id"}
