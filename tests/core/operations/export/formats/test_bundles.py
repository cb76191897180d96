"""Exports as checkpoints of TensorFlow: it reads what went in, and writing them needs none of it."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import only
from edl_ckpt.core import open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.importing import import_arrays
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.sources.bundle.index import read_index
from foreign import SYSTEMS, run_judge
from oracle import TF_NAMES, Model
from oracle import Table as OracleTable
from places import GOLDEN


@pytest.fixture(autouse=True)
def _no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here imports TensorFlow into this process."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)


def loaded(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Return the dtype, shape and bytes of each variable, as TensorFlow reads them."""
    out = folder.parent / "loaded.npz"
    run_judge("EDL_CKPT_TEST_TENSORFLOW_PYTHON", "tensorflow_dump.py", str(folder), str(out))
    with np.load(out) as arrays:
        lines = [line.rsplit("\t", 2) for line in arrays["names"].tolist()]
        return {
            name: (dtype, [int(dim) for dim in shape.split(",") if dim], arrays[f"v{number}"].tobytes())
            for number, (name, dtype, shape) in enumerate(lines)
        }


def export(source: Any, folder: Path, **options: Any) -> str:
    """Export to a directory, import it again, and return the fingerprint, which is the same."""
    result = export_version(source, str(folder), format_name="tensorflow", **options)
    imported = import_arrays(str(folder), str(folder.parent / "again"), 5, 3)
    if not options:
        assert imported.fingerprint == result.fingerprint
    return result.fingerprint


@pytest.mark.frameworks
@pytest.mark.parametrize("case", ["current/ps3", "legacy/v1", "legacy/v0d"])
def test_tensorflow_reads_golden_checkpoints(tmp_path: Path, case: str, expected: Any) -> None:
    """TensorFlow reads every variable and table as expected.json says."""
    export(only(GOLDEN / case), tmp_path / "m")
    group, _, key = case.partition("/")
    model = expected["current"] if group == "current" else expected["legacy"][key]
    arrays = loaded(tmp_path / "m")
    for name, entry in model["dense"].items():
        assert arrays.pop(name) == (entry["dtype"], entry["shape"], base64.b64decode(entry["base64"]))
    for name, entry in model["tables"].items():
        assert arrays.pop(f"{name}.ids") == ("int64", [len(entry["ids"])], np.array(entry["ids"], np.int64).tobytes())
        assert arrays.pop(f"{name}.vectors")[2] == base64.b64decode(entry["vectors_base64"])
    assert arrays == {}


@pytest.mark.frameworks
def test_tensorflow_reads_all_dtypes(tmp_path: Path) -> None:
    """Variables and rows of all dtypes of ElasticDL go out, also as bfloat16; a table without rows keeps its dtype."""
    model = Model(7)
    for name in sorted(set(TF_NAMES.values()) & DTYPES.keys()):
        data = bytes(range(2 * DTYPES[name].itemsize)) if name != "bool" else b"\0\1"
        model.dense[f"{name}/v"] = (name, (2, 1), data)
        model.tables[f"{name}/t"] = OracleTable(2, "zeros", name, {5: data, -1: data})
        model.tables[f"{name}/none"] = OracleTable(2, "zeros", name)
    write_checkpoint(tmp_path / "run", model, 2)
    export(only(tmp_path / "run"), tmp_path / "m")
    arrays = loaded(tmp_path / "m")
    for name, (dtype, shape, data) in model.dense.items():
        assert arrays[name] == (dtype, list(shape), data)
        ids = np.array([-1, 5], np.int64).tobytes()
        assert arrays[name.replace("/v", "/t.ids")] == ("int64", [2], ids)
        assert arrays[name.replace("/v", "/t.vectors")] == (dtype, [2, 2], 2 * data)
        assert arrays[name.replace("/v", "/none.vectors")] == (dtype, [0, 2], b"")
    half = Selection(dtype="bfloat16")
    export_version(only(tmp_path / "run"), str(tmp_path / "h"), format_name="tensorflow", selection=half)
    assert loaded(tmp_path / "h")["float64/t.vectors"][:2] == ("bfloat16", [2, 2])


@pytest.mark.frameworks
def test_tensorflow_reads_many_parts(tmp_path: Path) -> None:
    """A table that is written in many parts is whole."""
    ids = np.random.default_rng(1).permutation(200_000).astype(np.int64)
    rows = np.repeat(ids.astype(np.float32), 8).reshape(-1, 8)
    tables, dense = {"a/t": Table(ids, rows)}, {"v": np.ones((900, 700))}
    run = save_checkpoint(str(tmp_path / "run"), 1, 3, variables=dense, tables=tables)
    export(run, tmp_path / "m", part_bytes=300_000)
    arrays = loaded(tmp_path / "m")
    assert arrays["a/t.ids"] == ("int64", [200_000], np.arange(200_000, dtype=np.int64).tobytes())
    whole = np.repeat(np.arange(200_000, dtype=np.float32), 8)
    assert arrays["a/t.vectors"] == ("float32", [200_000, 8], whole.tobytes())
    assert arrays["v"] == ("float64", [900, 700], dense["v"].tobytes())


@pytest.mark.parametrize("order", ["id", "stored"])
def test_checksums_are_those_of_the_values(tmp_path: Path, order: str) -> None:
    """Each tensor's CRC-32C, added up from pieces that come in any order, is right; what is not exported is not."""
    ids = np.arange(300_000, dtype=np.int64)[::-1]
    tables = {
        "t": Table(ids, np.repeat(ids, 4).reshape(-1, 4).astype(np.float32)),
        "other": Table(ids[:3], ids[:3, None]),
    }
    run = save_checkpoint(str(tmp_path / "run"), 1, 3, variables={"v": np.ones((300, 900))}, tables=tables)
    selection = Selection(tables=("t",), dtype="float16", order=order)
    export_version(run, str(tmp_path / "m"), format_name="tensorflow", selection=selection, part_bytes=200_000)
    with open_checkpoint(str(tmp_path / "m/model")) as checkpoint:
        assert checkpoint.variable_names == ["t.ids", "t.vectors"]
        assert checkpoint.find_variable("t.vectors")[1].shape == (300_000, 4)
        assert sum(len(shard.sums) for shard in checkpoint.shards) == 2
        result = verify_version(checkpoint.version, level="deep")
    assert [finding.code for finding in result.findings if finding.check != "values"] == []


def test_a_name_that_a_bundle_cannot_have(tmp_path: Path) -> None:
    """It is refused, and nothing is left."""
    run = save_checkpoint(str(tmp_path / "run"), 1, 1, variables={"": np.ones(2)}, tables={})
    with pytest.raises(UnsupportedError, match="'': a bundle cannot have this name"):
        export_version(run, str(tmp_path / "m"), format_name="tensorflow")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("folder", "prefix"), [("objects", "ckpt-1"), ("deeprec", "model.ckpt-100")])
def test_a_bundle_goes_out_as_it_is(tmp_path: Path, folder: str, prefix: str) -> None:
    """A bundle keeps its keys as an export for TensorFlow, the object graph among them, with --ranks and without."""
    source = SYSTEMS / "bundle" / folder / prefix
    keys = _keys(source)
    export_version(str(source), str(tmp_path / "plain"), format_name="tensorflow")
    export_version(str(source), str(tmp_path / "ranks"), format_name="tensorflow", ranks=1)
    assert _keys(tmp_path / "plain" / prefix) == _keys(tmp_path / "ranks" / prefix)
    made_anew = {key for key in keys if "part_" in key}  # DeepRec's parts have the numbers of the ranks
    assert keys - made_anew <= _keys(tmp_path / "plain" / prefix)
    if folder == "objects":
        assert "_CHECKPOINTABLE_OBJECT_GRAPH" in keys


def _keys(prefix: Path) -> set[str]:
    """Return the keys of a bundle's index."""
    return set(read_index(Path(f"{prefix}.index").read_bytes()).tensors)
