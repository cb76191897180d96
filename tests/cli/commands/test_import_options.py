"""`import` with its options for files of other tools: tables, columns and keys at the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import only
from edl_ckpt.core import open_checkpoint, save_checkpoint, verify_version
from program import document, edl

ROWS: Any = np.arange(12, dtype=np.float32).reshape(4, 3)


def rows_of(place: Path) -> dict[str, list[int]]:
    """Return the ids of the tables of the one version there, which is whole."""
    assert verify_version(only(place), level="deep").ok
    with open_checkpoint(only(place)) as checkpoint:
        return {name: sorted(table.to_numpy()[0].tolist()) for name, table in checkpoint.tables.items()}


def test_tables_beside_a_map(tmp_path: Path) -> None:
    """`--table` adds to the tables of `--map`, and wins where both have the name."""
    np.savez(tmp_path / "own.npz", keys=np.arange(9, 5, -1), a=ROWS, b=ROWS, c=ROWS, step=np.array(3))
    (tmp_path / "map.toml").write_text(
        '[rename]\nstep = "global_step"\n[tables.x]\nids = "keys"\nvectors = "a"\n'
        '[tables.y]\nids = "rows"\nvectors = "b"\n'
    )
    options = ("--map", tmp_path / "map.toml", "--table", "y=keys,b", "--table", "z=c")
    command = ("import", tmp_path / "own.npz", f"{tmp_path / 'run'}@1", "--ps", "2", *options)
    planned = document(*command, "--dry-run")
    assert planned["rows"] == 12
    assert not (tmp_path / "run").exists()
    assert document(*command)["fingerprint"].startswith("edl1:")
    assert rows_of(tmp_path / "run") == {"x": [6, 7, 8, 9], "y": [6, 7, 8, 9], "z": [0, 1, 2, 3]}
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert checkpoint.variable_names == ["global_step"]


def test_a_matrix_of_a_checkpoint(tmp_path: Path) -> None:
    """The variables of a checkpoint become tables by the same option; columns and keys are not for checkpoints."""
    save_checkpoint(tmp_path / "run", 10, 1, variables={"w": ROWS, "b": np.ones(2)}, tables={}, layout="elasticdl")
    command = ("import", f"{tmp_path / 'run'}@10", f"{tmp_path / 'new'}@1", "--ps", "2")
    for option in (("--key", "w"), ("--id-column", "w"), ("--vector-column", "w")):
        done = edl(*command, *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--map and --table" in done.stderr
    assert not (tmp_path / "new").exists()
    assert edl(*command, "--table", "user=w").returncode == 0
    assert rows_of(tmp_path / "new") == {"user": [0, 1, 2, 3]}


def test_columns(tmp_path: Path) -> None:
    """A file whose columns do not tell is refused with the options, and imported with them."""
    text = "user,w1,w10,w2,clicks\n" + "".join(f"{k},1,10,2,7\n" for k in range(5))
    (tmp_path / "users.csv").write_text(text)
    command = ("import", tmp_path / "users.csv", f"{tmp_path / 'run'}@1", "--ps", "2")
    done = edl(*command)
    assert done.returncode == 15
    assert "--id-column NAME --vector-column NAME" in done.stderr
    assert edl(*command, "--id-column", "user", "--vector-column", "w*").returncode == 0
    assert rows_of(tmp_path / "run") == {"users": [0, 1, 2, 3, 4]}
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert checkpoint.tables["users"].to_numpy()[1].tolist() == [[1, 2, 10]] * 5


@pytest.mark.parametrize("option", ["nothing", "x=", "=m", "x=a,"])
def test_a_table_in_no_form(tmp_path: Path, option: str) -> None:
    """A value of no form is a wrong use, with both forms; as a variable of the environment it does not count."""
    np.savez(tmp_path / "own.npz", a=ROWS)
    done = edl("import", tmp_path / "own.npz", f"{tmp_path / 'run'}@1", "--ps", "2", "--table", option, "--json")
    assert done.returncode == 2
    assert "NAME=IDS,VECTORS or NAME=MATRIX" in json.loads(done.stderr.splitlines()[-1])["message"]
    assert not (tmp_path / "run").exists()


def test_help_names_all_formats() -> None:
    """The help of import names what it reads, and each option that says how."""
    text = edl("import", "--help").stdout
    for word in ("safetensors", ".npz", ".npy", ".pt", "Parquet", "CSV", ".jsonl", "word2vec", "TensorFlow"):
        assert word in text
    for option in ("--table", "--id-column", "--vector-column", "--key", "--map"):
        assert option in text
