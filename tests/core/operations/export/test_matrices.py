"""A table that is a matrix in its source goes out as that matrix: loaders find it under its own name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checkpoints import at, save_small
from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.operations.export import FORMATS, Selection, export_version
from foreign import copied
from program import document, edl

USER = "model.ebc.embedding_bags.user.weight"
STATE = "optim.state.ebc.embedding_bags.user.weight.user.momentum1"


@pytest.fixture
def step(tmp_path: Path) -> str:
    """Return a reference of a checkpoint of TorchRec, whose tables are matrices spread over two ranks."""
    return at(copied("dcp/torchrec", 2, tmp_path / "run").parent, 2).ref


def values_of(ref: str, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the rows of a table in the order of their ids."""
    with open_checkpoint(ref) as checkpoint:
        rows = checkpoint.table(name).to_numpy()
    return np.asarray(rows.vectors)[np.argsort(rows.ids)]


def has_same_tensors(one: str, other: str) -> bool:
    """Say whether all tables and variables of two checkpoints are equal; Python values of the first may be lacking."""
    found = document("diff", one, other, code=3)
    return {entry["status"] for entry in (*found["tables"], *found["variables"])} == {"equal"}


def test_a_matrix_keeps_its_name(tmp_path: Path, step: str) -> None:
    """Each array has the name and the shape that the job knows; ids are implied."""
    export_version(step, str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert not [name for name in arrays if name.endswith((".ids", ".vectors"))]
        for name in (USER, STATE):
            assert np.array_equal(arrays[name], values_of(step, name))


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.traits.keeps_matrices])
def test_it_comes_back_as_a_table(tmp_path: Path, step: str, name: str) -> None:
    """An import reads the notes, and makes the table again: the content has the fingerprint of the source."""
    if name == "torch":
        pytest.importorskip("torch", reason="an import of .pt needs torch")
    output = tmp_path / f"out{(*FORMATS[name].traits.endings, '')[0]}" if name != "npy" else tmp_path / "npy"
    exported = edl("export", step, output, "--format", name)
    assert exported.returncode == 0, exported.stderr
    done = edl("import", output, f"{tmp_path / 'back'}@2", "--ps", "2", "--layout", "elasticdl")
    assert done.returncode == 0, done.stderr
    assert has_same_tensors(step, f"{tmp_path / 'back'}@2")


def test_a_file_of_safetensors_is_read_in_place(tmp_path: Path, step: str) -> None:
    """The notes in the header tell tables from other matrices; a set has them in each file."""
    for output, size in ((tmp_path / "one.safetensors", []), (tmp_path / "set", ["--max-shard-size", "50KB"])):
        assert edl("export", step, output, "--format", "safetensors", *size).returncode == 0
        assert has_same_tensors(step, str(output))


def test_a_part_of_a_table_has_its_ids(tmp_path: Path) -> None:
    """Ids that are stored go out as they are, also where they happen to be 0 to n - 1."""
    save_small(tmp_path / "run", 5)
    export_version(f"{tmp_path / 'run'}@5", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert {"t.ids", "t.vectors"} <= set(arrays)


def test_other_forms_are_as_they_were(tmp_path: Path, step: str) -> None:
    """Quantized rows, rows in stored order and remapped ids have ids beside them; a cast keeps the matrix."""
    export_version(step, str(tmp_path / "q.npz"), selection=Selection(quantize="int8-fbgemm"))
    export_version(step, str(tmp_path / "s.npz"), selection=Selection(order="stored"))
    export_version(step, str(tmp_path / "h.npz"), selection=Selection(dtype="float16"))
    with np.load(tmp_path / "q.npz") as arrays:
        assert f"{USER}.ids" in arrays
    with np.load(tmp_path / "s.npz") as arrays:
        assert f"{USER}.ids" in arrays
    with np.load(tmp_path / "h.npz") as arrays:
        assert np.array_equal(arrays[USER], values_of(step, USER).astype(np.float16))
