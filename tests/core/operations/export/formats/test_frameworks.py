"""Formats that only a framework's own library reads; each test is skipped where that is not installed."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import only
from edl_ckpt.core import fingerprint_checkpoint, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.importing import import_arrays
from edl_ckpt.core.operations.save import Table
from frameworks import need
from golden_cases import BEYOND_ELASTICDL
from oracle import Model
from oracle import Table as OracleTable
from places import GOLDEN

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]
OUTPUTS = {"pyarrow": "m.parquet", "torch": "m.pt"}


def load(name: str, path: Path) -> dict[str, Any]:
    """Open what was exported with the framework's own library: numpy arrays by name."""
    if name == "torch":
        torch = need("torch")
        loaded = torch.load(path, weights_only=True)
        return {n: t.numpy() for n, t in loaded.items()}
    from safetensors.numpy import load_file

    parquet = need("pyarrow.parquet")
    arrays: dict[str, Any] = dict(load_file(str(path.with_suffix(".dense") / "dense.safetensors")))
    for file in path.glob("*.parquet") if path.is_dir() else (path,):
        table = parquet.read_table(file)
        if table.column_names == ["id"]:
            continue  # no table
        title = table.schema.metadata[b"table"].decode()
        arrays[f"{title}.ids"] = table["id"].to_numpy()
        vectors = table["vector"].combine_chunks()
        flat = vectors.flatten().to_numpy(zero_copy_only=False)
        assert path.is_dir() == ("table" in table.column_names)
        arrays[f"{title}.vectors"] = flat.reshape(len(vectors), -1) if len(vectors) else flat
    return arrays


@pytest.mark.parametrize("name", sorted(OUTPUTS))
@pytest.mark.parametrize("case", ["current/ps3", "legacy/v1", "legacy/v0d"])
def test_golden(tmp_path: Path, name: str, case: str, expected: Any) -> None:
    """The framework reads every variable and table as expected.json says; imported again it is the same fingerprint."""
    need(name)
    source, output = only(GOLDEN / case), tmp_path / OUTPUTS[name]
    result = export_version(source, str(output))
    assert result.proved
    group, _, key = case.partition("/")
    model = expected["current"] if group == "current" else expected["legacy"][key]
    arrays = load(name, output)
    for variable, entry in model["dense"].items():
        assert (str(arrays[variable].dtype), list(arrays[variable].shape)) == (entry["dtype"], entry["shape"])
        assert arrays[variable].tobytes() == base64.b64decode(entry["base64"])
    for table, entry in model["tables"].items():
        assert arrays[f"{table}.ids"].tolist() == entry["ids"]
        if entry["ids"]:
            assert arrays[f"{table}.vectors"].tobytes() == base64.b64decode(entry["vectors_base64"])
    imported = import_arrays(str(output), str(tmp_path / "run"), 5, 3)
    assert imported.fingerprint == result.fingerprint
    errors = {f.code for f in verify_version(only(tmp_path / "run")).findings if f.severity == "error"}
    assert errors == BEYOND_ELASTICDL.get(case, set())
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert fingerprint_checkpoint(checkpoint).text == result.fingerprint


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_dtype_of_a_table_without_rows(tmp_path: Path, name: str) -> None:
    """A table without rows keeps the dtype that its info names."""
    need(name)
    model = Model(7, tables={f"no {dtype}": OracleTable(3, "zeros", dtype) for dtype in ("float64", "int64", "int8")})
    write_checkpoint(tmp_path / "run", model, 2)
    output = tmp_path / OUTPUTS[name]
    export_version(only(tmp_path / "run"), str(output))
    import_arrays(str(output), str(tmp_path / "new"), 7, 3)
    with open_checkpoint(only(tmp_path / "new")) as checkpoint:
        dtypes = {name: checkpoint.written_dtype(name).name for name in checkpoint.table_names}
    assert dtypes == {"no float64": "float64", "no int64": "int64", "no int8": "int8"}


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_many_parts(tmp_path: Path, name: str) -> None:
    """A table that is written in many parts is whole, and bfloat16 is where the framework has it."""
    need(name)
    ids = np.arange(5000, dtype=np.int64) * 7
    rows = np.arange(20_000, dtype=np.float32).reshape(5000, 4)
    run = save_checkpoint(
        str(tmp_path / "run"), 1, 3, variables={"v": np.ones((3, 2))}, tables={"a/t": Table(ids, rows)}
    )
    export_version(run, str(tmp_path / OUTPUTS[name]), part_bytes=3000)
    arrays = load(name, tmp_path / OUTPUTS[name])
    assert np.array_equal(arrays["a/t.ids"], ids)
    assert np.array_equal(arrays["a/t.vectors"], rows)
    half = tmp_path / f"half-{OUTPUTS[name]}"
    if name == "pyarrow":
        with pytest.raises(UnsupportedError, match="bfloat16"):
            export_version(run, str(half), selection=Selection(dtype="bfloat16"))
        return
    export_version(run, str(half), selection=Selection(dtype="bfloat16"))
    loaded = need("torch").load(half, weights_only=True)
    assert str(loaded["a/t.vectors"].dtype) == "torch.bfloat16"
    assert loaded["a/t.vectors"][0].tolist() == [0, 1, 2, 3]


def test_torch_archive_is_sound(tmp_path: Path) -> None:
    """The archive's checksums are right, it can be mapped, and a matrix is what an Embedding layer takes."""
    import zipfile

    torch = need("torch")
    version = only(GOLDEN / "current/ps2")
    export_version(version, str(tmp_path / "m.pt"))
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        assert archive.testzip() is None
    assert torch.load(tmp_path / "m.pt", weights_only=True, mmap=True)["conv/kernel:0"].shape == (2, 3, 4, 5)


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_loads_a_state_dict(tmp_path: Path, mmap: bool) -> None:
    """A module takes the file by `load_state_dict`, strictly: its keys are those of the parameters, and no more."""
    torch = need("torch")
    chance = np.random.default_rng(3)
    variables: dict[str, np.ndarray[Any, Any]] = {
        "head.weight": chance.standard_normal((2, 4)).astype(np.float32),
        "head.bias": np.ones(2, np.float32),
        "norm.weight": np.ones(4, np.float32),
        "norm.bias": np.zeros(4, np.float32),
        "norm.running_mean": np.zeros(4, np.float32),
        "norm.running_var": np.ones(4, np.float32),
        "norm.num_batches_tracked": np.array(9, np.int64),
    }
    rows = chance.standard_normal((10, 4)).astype(np.float32)
    ids = chance.permutation(10)
    tables = {"emb.weight": Table(ids, rows), "bag.weight": Table(ids[:7], rows[:7], "zeros")}
    run = save_checkpoint(str(tmp_path / "run"), 1, 3, variables=variables, tables=tables)
    export_version(run, str(tmp_path / "m.pt"), selection=Selection(dense_rows=10))
    module = torch.nn.Module()
    module.emb, module.bag = torch.nn.Embedding(10, 4), torch.nn.EmbeddingBag(10, 4)
    module.head, module.norm = torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(4)
    module.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True, mmap=mmap), strict=True)
    assert np.array_equal(module.emb.weight.detach().numpy()[ids], rows)
    assert not module.bag.weight.detach().numpy()[ids[7:]].any()
    assert np.array_equal(module.head.weight.detach().numpy(), variables["head.weight"])
    assert module.norm.num_batches_tracked.item() == 9
    exported = export_version(run, str(tmp_path / "tables.pt"))
    imported = import_arrays(str(tmp_path / "tables.pt"), str(tmp_path / "new"), 1, 2)
    assert imported.fingerprint == exported.fingerprint
    with open_checkpoint(only(tmp_path / "new")) as checkpoint:
        assert checkpoint.table("bag.weight").initializer == "zeros"


def test_torch_notes_of_earlier_files(tmp_path: Path) -> None:
    """A file that has its notes as a tensor of the state_dict, as earlier files have, is imported with them."""
    torch = need("torch")
    notes = {"tables": {"t": {"ids": "a", "vectors": "b", "initializer": "ones"}}}
    bytes_ = torch.frombuffer(bytearray(json.dumps(notes).encode()), dtype=torch.uint8)
    torch.save({"a": torch.arange(3), "b": torch.ones(3, 2), "__edl_ckpt__": bytes_}, tmp_path / "m.pt")
    import_arrays(str(tmp_path / "m.pt"), str(tmp_path / "run"), 1, 2)
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert (checkpoint.table("t").initializer, checkpoint.variable_names) == ("ones", [])
    assert verify_version(only(tmp_path / "run")).ok


def test_torch_reads_safetensors(tmp_path: Path) -> None:
    """PyTorch gets its tensors from a file and from the bytes of a pipe; the `format` is the one that it looks for."""
    need("torch")
    from safetensors import safe_open
    from safetensors.torch import load, load_file

    version = only(GOLDEN / "current/ps2")
    export_version(version, str(tmp_path / "m.safetensors"))
    tensors = load_file(str(tmp_path / "m.safetensors"))
    assert tensors["conv/kernel:0"].shape == (2, 3, 4, 5)
    assert set(load((tmp_path / "m.safetensors").read_bytes())) == set(tensors)
    with safe_open(str(tmp_path / "m.safetensors"), "pt") as file:
        assert file.metadata()["format"] == "pt"


@pytest.mark.parametrize("what", ["bomb", "object", "text", "cut"])
def test_bad_torch_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A pickle that would run something, a file of other things, a damaged one: refused, and nothing is run."""
    torch = need("torch")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.pt"
    if what == "bomb":
        path.write_bytes(pickle.dumps(Bomb()))
    elif what == "object":
        torch.save({"a": Bomb()}, path)
    elif what == "text":
        torch.save({"a": "text"}, path)
    else:
        torch.save({"a": torch.ones(1000)}, path)
        path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(EdlCkptError) as caught:
        import_arrays(str(path), str(tmp_path / "run"), 1, 1)
    assert caught.value.exit_code in {5, 15}
    assert os.listdir(tmp_path) == ["m.pt"]


class Bomb:
    """Unpickling it would make a directory."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("pickled",)


@pytest.mark.parametrize("rows", [0, 1, 65_536, 200_000])
@pytest.mark.parametrize("tables", [1, 2])
def test_row_groups_are_those_of_pyarrow(tmp_path: Path, rows: int, tables: int) -> None:
    """A file whose row groups were encoded by several threads is that which pyarrow's own writer makes of them.

    That holds for every byte: of many row groups and of none, with dictionaries and without.
    """
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    ids = np.random.default_rng(1).permutation(2 * rows)[:rows]
    vectors = np.repeat(np.arange(rows, dtype=np.float32).reshape(-1, 1), 2, axis=1)
    named = {f"t{k}": Table(ids, vectors) for k in range(tables)}
    run = save_checkpoint(str(tmp_path / "run"), 7, 3, variables={}, tables=named)
    export_version(run, str(tmp_path / "m.parquet"), part_bytes=1 << 20)
    path = tmp_path / ("m.parquet" if tables == 1 else "m.parquet/t1.parquet")
    file = parquet.ParquetFile(path)
    groups = file.metadata.num_row_groups
    assert groups == min(rows, 1) or (groups > 3 and rows > 10**5)
    again = io.BytesIO()
    options = {"use_dictionary": ["table"], "write_statistics": ["id"]}
    columns = [("id", arrow.int64()), ("vector", arrow.list_(arrow.float32(), 2))]
    if tables > 1:
        columns[1:] = [
            ("vector", arrow.list_(arrow.float32())),
            ("table", arrow.dictionary(arrow.int32(), arrow.string())),
        ]
    schema = arrow.schema(columns, metadata={"table": f"t{tables - 1}"})
    with parquet.ParquetWriter(again, schema, **options) as writer:
        for number in range(groups):
            writer.write_table(file.read_row_group(number).cast(schema))
        writer.add_key_value_metadata({"edl-ckpt": file.metadata.metadata[b"edl-ckpt"].decode()})
    assert again.getvalue() == path.read_bytes()
    assert parquet.read_table(path)["id"].to_pylist() == np.sort(ids).tolist()


def test_bad_parquet(tmp_path: Path) -> None:
    """Parquet of another shape, with nulls, or none at all, is refused."""
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    (tmp_path / "m").mkdir()
    good = arrow.FixedSizeListArray.from_arrays(arrow.array([1.0, 2.0, 3.0, 4.0], arrow.float32()), 2)
    tables = [
        (arrow.table({"id": [1, 2]}), UnsupportedError),
        (arrow.table({"id": [1, 2], "vector": [[1.0], [2.0, 3.0]]}), CorruptError),
        (arrow.table({"id": [1, 2], "vector": [1.0, 2.0]}), UnsupportedError),
        (arrow.table({"id": arrow.array([1, None], arrow.int64()), "vector": good}), CorruptError),
        (arrow.table({"id": ["a", "b"], "vector": good}), UnsupportedError),
    ]
    for table, error in tables:
        parquet.write_table(table, tmp_path / "m/t.parquet")
        with pytest.raises(error):
            import_arrays(str(tmp_path / "m"), str(tmp_path / "run"), 1, 1)
    (tmp_path / "m/t.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptError):
        import_arrays(str(tmp_path / "m"), str(tmp_path / "run"), 1, 1)


def test_tensorflow_variables(tmp_path: Path) -> None:
    """A checkpoint that TensorFlow saved itself is imported; what is no array of numbers is left out."""
    tf = need("tensorflow")
    checkpoint = tf.train.Checkpoint(w=tf.Variable(np.arange(6.0).reshape(2, 3)), step=tf.Variable(5, dtype=tf.int64))
    prefix = checkpoint.write(str(tmp_path / "ck"))
    names = tmp_path / "map.json"
    names.write_text(json.dumps({}))
    import_arrays(prefix, str(tmp_path / "run"), 1, 2)
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert checkpoint.variable("w/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the error names the extra, and nothing is left. PyTorch is not asked for."""
    for module in [m for m in sys.modules if m.partition(".")[0] in {"pyarrow", "torch"}]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError) as caught:
        export_version(only(GOLDEN / "current/ps2"), str(tmp_path / OUTPUTS["pyarrow"]))
    assert ".[arrow]" in str(caught.value.hint)
    assert os.listdir(tmp_path) == []
    export_version(only(GOLDEN / "current/ps2"), str(tmp_path / OUTPUTS["torch"]))
