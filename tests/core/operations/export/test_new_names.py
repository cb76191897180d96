"""Exports under other names (`rename`), and of tables as matrices with a row for each id that there is (`remap`)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints import only
from edl_ckpt.core import fingerprint_checkpoint, open_checkpoint, resolve, save_checkpoint, verify_version
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.base.errors import NoSpaceError, NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import Selection, export_version, plan_export
from edl_ckpt.core.operations.export.formats.dcp import numbered_tables
from edl_ckpt.core.operations.importing import import_arrays
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.storage.local import LocalReader
from foreign import SYSTEMS
from frameworks import need

IDS = np.array([1 << 60, 5, -3, 1 << 44, 7, 0], np.int64)
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
ASCENDING = np.argsort(IDS)
ENDINGS = (".safetensors", ".npz", ".npy")


def load(path: Path) -> dict[str, Any]:
    """Return the arrays of a file or a directory by their names."""
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files if name != "__edl_ckpt__"}
    tensors = json.loads((path / "index.json").read_text())["tensors"]
    return {name: np.load(path / entry["file"]) for name, entry in tensors.items()}


@pytest.fixture
def run(tmp_path: Path) -> Version:
    """A version with ids that are spread over all of int64, a table without rows, and variables."""
    tables = {"users": Table(IDS, ROWS, "ones"), "none": Table(IDS[:0], ROWS[:0])}
    variables = {"head/kernel:0": np.ones((2, 3)), "step": np.array(7)}
    return save_checkpoint(str(tmp_path / "run"), 1, 3, variables=variables, tables=tables)


def back(path: Path, new: Path) -> str:
    """Import a file, check the new version, and return its fingerprint."""
    import_arrays(str(path), str(new), 1, 2)
    assert verify_version(only(new)).ok
    with open_checkpoint(only(new)) as checkpoint:
        return fingerprint_checkpoint(checkpoint).text


@pytest.mark.parametrize("part_bytes", [50, 1 << 20])
@pytest.mark.parametrize("ending", ENDINGS)
def test_remapped_tables(run: Version, tmp_path: Path, ending: str, part_bytes: int) -> None:
    """NAME is the matrix of all rows by ascending ids, NAME.ids are these; imported again it is the same content."""
    output = tmp_path / f"m{ending}"
    done = export_version(run, str(output), selection=Selection(remap=True), part_bytes=part_bytes)
    assert done.proved
    arrays = load(output)
    assert set(arrays) == {"users", "users.ids", "none", "none.ids", "head/kernel:0", "step"}
    assert np.array_equal(arrays["users.ids"], IDS[ASCENDING])
    assert np.array_equal(arrays["users"], ROWS[ASCENDING])
    assert len(arrays["none.ids"]) == 0
    assert back(output, tmp_path / "new") == done.fingerprint
    with open_checkpoint(only(tmp_path / "new")) as checkpoint:
        assert checkpoint.table("users").initializer == "ones"


@pytest.mark.parametrize("ending", ENDINGS)
def test_new_names_of_arrays(run: Version, tmp_path: Path, ending: str) -> None:
    """Variables and tables have their new names, and so has the version that is made of them."""
    names = (("*/kernel:0", "*.weight"), ("users", "emb.users"))
    done = export_version(run, str(tmp_path / f"m{ending}"), rename=names)
    assert not done.proved
    arrays = load(tmp_path / f"m{ending}")
    assert set(arrays) == {"emb.users.ids", "emb.users.vectors", "none.ids", "none.vectors", "head.weight", "step"}
    assert np.array_equal(arrays["emb.users.vectors"], ROWS[ASCENDING])
    assert np.array_equal(arrays["head.weight"], np.ones((2, 3)))
    other = save_checkpoint(
        str(tmp_path / "other"),
        1,
        1,
        variables={"head.weight": np.ones((2, 3)), "step": np.array(7)},
        tables={"emb.users": Table(IDS, ROWS, "ones"), "none": Table(IDS[:0], ROWS[:0])},
    )
    with open_checkpoint(other) as checkpoint:
        assert back(tmp_path / f"m{ending}", tmp_path / "new") == fingerprint_checkpoint(checkpoint).text


def test_new_names_of_matrices_and_rows(run: Version, tmp_path: Path) -> None:
    """They go with every other choice: matrices, casts, one file of several, TensorFlow, rows of text, a plan."""
    names = (("users", "u.weight"), ("step", "s"))
    chosen = Selection(("users",), ("step",), "float16", remap=True)
    planned = plan_export(run, str(tmp_path / "m"), format_name="tensorflow", selection=chosen, rename=names)
    done = export_version(run, str(tmp_path / "m"), format_name="tensorflow", selection=chosen, rename=names)
    assert [file.size_bytes for file in planned.files] == [file.size_bytes for file in done.files]
    with open_checkpoint(str(tmp_path / "m")) as checkpoint:
        read = {name: checkpoint.variable(name) for name in checkpoint.variable_names}
    assert set(read) == {"u.weight", "u.ids", "s"}
    assert np.array_equal(read["u.weight"], ROWS[ASCENDING].astype(np.float16))
    export_version(run, str(tmp_path / "parts"), format_name="safetensors", max_shard_bytes=64, rename=names)
    index = json.loads((tmp_path / "parts/model.safetensors.index.json").read_text())
    assert {"u.weight.ids", "u.weight.vectors", "s"} < set(index["weight_map"])
    dense = Selection(("none",), ("step",), dense_rows=4)
    export_version(run, str(tmp_path / "d.npz"), selection=dense, rename=(("none", "zeros"), ("step", "s")))
    assert {name: array.shape for name, array in load(tmp_path / "d.npz").items()} == {"zeros": (4, 2), "s": ()}
    export_version(run, str(tmp_path / "m.csv"), selection=Selection(("users",)), rename=names)
    with (tmp_path / "m.csv").open() as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == sorted(IDS.tolist())
    export_version(run, str(tmp_path / "p"), format_name="projector", selection=Selection(("users",)), rename=names)
    assert 'tensor_name: "u.weight"' in (tmp_path / "p/projector_config.pbtxt").read_text()


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["torch", "pyarrow"])
def test_new_names_of_frameworks(run: Version, tmp_path: Path, name: str) -> None:
    """Parquet has the new names of tables and files; a matrix of PyTorch is NAME.weight, or just as it was renamed."""
    library = need(name)
    if name == "pyarrow":
        parquet = need("pyarrow.parquet")
        export_version(run, str(tmp_path / "m.parquet"), rename=(("users", "u"), ("step", "s")))
        assert set(parquet.read_table(tmp_path / "m.parquet/u.parquet")["table"].to_pylist()) == {"u"}
        back(tmp_path / "m.parquet", tmp_path / "new")
        with open_checkpoint(only(tmp_path / "new")) as checkpoint:
            assert (checkpoint.table_names, checkpoint.variable_names) == (["none", "u"], ["head/kernel:0", "s"])
        return
    done = export_version(run, str(tmp_path / "m.pt"), selection=Selection(remap=True))
    state = library.load(tmp_path / "m.pt", weights_only=True)
    assert set(state) == {"users.weight", "users.ids", "none.weight", "none.ids", "head/kernel:0", "step"}
    assert np.array_equal(state["users.weight"].numpy(), ROWS[ASCENDING])
    assert done.proved
    assert back(tmp_path / "m.pt", tmp_path / "new") == done.fingerprint
    names = (("users", "exact"), ("none", "m.weight"))
    export_version(run, str(tmp_path / "n.pt"), selection=Selection(remap=True), rename=names)
    assert set(library.load(tmp_path / "n.pt")) == {"exact", "exact.ids", "m.weight", "m.ids", "head/kernel:0", "step"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rename": (("nothing", "x"),)}, NotFoundError, "no table or variable matches 'nothing'"),
        ({"rename": (("*", "x"),)}, UsageError, "would all be named 'x'"),
        ({"rename": (("step", "users.ids"),)}, UnsupportedError, "two tensors would be named 'users.ids'"),
        ({"rename": (("users", "none"),)}, UnsupportedError, "two tensors would be named 'none.ids'"),
        ({"rename": (("users", ""),)}, UsageError, "needs a name"),
        ({"selection": Selection(dense_rows=8), "rename": (("step", "none"),)}, UsageError, "outside of 0 to 7"),
        ({"format_name": "checkpoint", "rename": (("step", "s"),)}, UsageError, "its own names"),
        ({"selection": Selection(("users",), dense_rows="auto")}, UsageError, "outside"),
    ],
)
def test_wrong_names(run: Version, tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str) -> None:
    """Names that nothing has or that two would have are refused before anything is written."""
    with pytest.raises(error, match=words):
        export_version(run, str(tmp_path / "m.npz"), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_remap_is_for_arrays(run: Version, tmp_path: Path) -> None:
    """Formats that have ids in their rows, or in their own files, refuse `remap`; so do two orders at once."""
    takes = {"safetensors", "npz", "npy", "torch", "tensorflow", "dcp"}
    for name in set(get_args(FormatName)) - takes:
        with pytest.raises(UsageError, match=r"`remap` is for .*safetensors.*torch.*dcp"):
            export_version(run, str(tmp_path / "m"), format_name=name, selection=Selection(remap=True))
    with pytest.raises(UsageError, match="remap"):
        export_version(run, str(tmp_path / "m"), format_name="tensorflow", selection=Selection(remap=True), ranks=2)
    with pytest.raises(UsageError, match="no order 'stored'"):
        Selection(remap=True, order="stored")
    with pytest.raises(UsageError, match="choose one"):
        Selection(remap=True, dense_rows=5)


def test_hashed_ids_as_row_numbers(tmp_path: Path) -> None:
    """A matrix that needs too much room, or that cannot have an id, says which forms are compact."""
    run = save_checkpoint(str(tmp_path / "run"), 1, 2, variables={}, tables={"users": Table(IDS[:2], ROWS[:2])})
    with pytest.raises(NoSpaceError, match=r"needs .* [EPT]iB") as caught:
        export_version(run, str(tmp_path / "m.npz"), selection=Selection(dense_rows="auto"))
    with pytest.raises(UsageError) as outside:
        export_version(run, str(tmp_path / "m.npz"), selection=Selection(dense_rows=4))
    for hint in (caught.value.hint, outside.value.hint):
        assert "the compact form is NAME.ids and NAME.vectors" in str(hint)
        assert "--remap" in str(hint)
    with pytest.raises(NoSpaceError) as other:
        export_version(run, str(tmp_path / "m.npz"), selection=Selection(("users",), dense_rows=1 << 62))
    assert "--remap" in str(other.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_numbered_rows_for_torchrec(run: Version, tmp_path: Path) -> None:
    """A table with hashed ids goes to DCP as a matrix of its numbered rows, with the ids as a tensor next to it."""
    chosen = Selection(("users",))
    with pytest.raises(UnsupportedError, match="a matrix has ids 0 to 5") as caught:
        export_version(run, str(tmp_path / "none"), format_name="dcp", selection=chosen)
    assert "--remap" in str(caught.value.hint)
    export_version(run, str(tmp_path / "n.safetensors"), selection=Selection(("users",), remap=True))
    names = NameMap({}, {"users": {"ids": "rows", "vectors": "users"}})
    source = resolve(f"{tmp_path}/n.safetensors")
    export_version(source, str(tmp_path / "moved"), format_name="dcp", ranks=2, names=names)
    with open_checkpoint(str(tmp_path / "moved")) as checkpoint:
        rows = checkpoint.table("embedding_bags.users.weight").to_numpy()
        assert np.array_equal(checkpoint.variable("users.ids"), IDS[ASCENDING])
    assert rows.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(rows.vectors, ROWS[ASCENDING])
    assert verify_version(resolve(str(tmp_path / "moved"))).ok


def test_numbered_tables_for_torch(run: Version, tmp_path: Path) -> None:
    """`--format dcp --remap` numbers the rows in the order of their ids, which go along as a tensor, in one step."""
    done = export_version(
        run, str(tmp_path / "m"), format_name="dcp", selection=Selection(remap=True), ranks=2, rename=(("users", "u"),)
    )
    assert done.ref == run.ref
    planned = plan_export(run, str(tmp_path / "n"), format_name="dcp", selection=Selection(remap=True), ranks=2)
    assert len(planned.files) == len(done.files)
    assert not (tmp_path / "n").exists()
    with open_checkpoint(run) as source, open_checkpoint(str(tmp_path / "m")) as result:
        rows = source.table("users").to_numpy()
        order = np.argsort(rows.ids)
        numbered = result.table("embedding_bags.u.weight").to_numpy()
        assert np.array_equal(np.sort(numbered.ids), np.arange(len(rows.ids)))
        assert np.array_equal(numbered.vectors[np.argsort(numbered.ids)], rows.vectors[order])
        assert np.array_equal(result.variable("u.ids"), rows.ids[order])


def test_companions_stay_companions_when_rows_are_numbered(tmp_path: Path) -> None:
    """DeepRec's frequencies and versions go out as state of their table: its rows, its ids once, and no table more."""
    source = SYSTEMS / "bundle/deeprec"
    export_version(str(source), str(tmp_path / "d"), format_name="dcp", selection=Selection(remap=True))
    with open_checkpoint(str(source)) as before, open_checkpoint(str(tmp_path / "d")) as after:
        (owner,) = (name for name, info in after.infos.items() if not info.companion_of)
        assert {info.slot: info.companion_of for info in after.infos.values() if info.companion_of} == {
            "freqs": owner, "versions": owner,
        }  # fmt: skip
        assert [name for name in after.variable_names if name.endswith(".ids")] == ["item_emb.ids"]
        order = np.argsort(before.table("item_emb").to_numpy()[0])
        names = {name: after.infos[name].slot for name in after.table_names}
        for name, slot in names.items():
            old = before.table(f"item_emb-{slot}" if slot else "item_emb").to_numpy()[1][order]
            assert after.table(name).to_numpy()[1].tobytes() == old.tobytes()
    assert verify_version(str(tmp_path / "d"), level="deep").ok


def test_a_companion_with_other_ids_stays_a_table(tmp_path: Path) -> None:
    """Rows of other ids than those of the table are no state of its numbered rows: their own ids go along."""
    rows = {"u": np.array([1, 2, 3]), "u-freqs": np.array([1, 2, 4])}
    header = {}
    data = b""
    for name, ids in rows.items():
        for key, array in ((f"{name}.ids", ids), (name, np.ones((3, 1 + (name == "u")), np.float32))):
            tag = "I64" if array.dtype == np.int64 else "F32"
            header[key] = {"dtype": tag, "shape": [*array.shape], "data_offsets": [len(data), len(data) + array.nbytes]}
            data += array.tobytes()
    note = {"companion_of": "u", "slot": "freqs"}
    notes = {name: {"ids": f"{name}.ids", "vectors": name, **(note if "-" in name else {})} for name in rows}
    head = json.dumps({"__metadata__": {"tables": json.dumps(notes)}, **header}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    with LocalReader(str(path)) as reader:
        tables = numbered_tables(reader)
    assert tables == {name: {"ids": "rows", "vectors": name} for name in rows}
