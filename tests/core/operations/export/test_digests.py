"""An export has the digests of the version that it read: they are those of `verify --deep`, whatever goes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import Table, save_checkpoint, verify_version
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.operations.export import FORMATS, Selection, export_version
from program import edl
from torch_files import save

NEEDS = {"parquet": "pyarrow", "torch": "numpy", "tensorflow": "numpy"}


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A version with two variables and a table."""
    variables = {"w": np.arange(6.0), "b": np.zeros(2, np.float32)}
    tables = {"user": Table(np.arange(4), np.ones((4, 2), np.float32))}
    return save_checkpoint(str(tmp_path / "run"), 1, 2, variables=variables, tables=tables).ref


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format(name: Any, run: str, tmp_path: Path) -> None:
    """Each format has the digests of the whole version, also one that contains only a table."""
    pytest.importorskip(NEEDS.get(name, "numpy"))
    known = verify_version(run, level="deep").content
    assert known is not None
    assert export_version(run, str(tmp_path / "out"), format_name=name, digests=True).content == known


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dcp", {"rename": (("w", "x"),)}),
        ("dcp", {"selection": Selection(remap=True)}),
        ("dcp", {"names": NameMap(rename={"w": "x"})}),
        ("torch-checkpointing", {"selection": Selection(dtype="float16")}),
        ("safetensors", {"selection": Selection(variables=("w",)), "rename": (("w", "x"),)}),
    ],
    ids=["renamed", "numbered", "mapped", "cast", "chosen"],
)
def test_other_content_goes_out(name: Any, options: dict[str, Any], run: str, tmp_path: Path) -> None:
    """The digests are those of the version also where another content goes out."""
    known = verify_version(run, level="deep").content
    assert known is not None
    assert export_version(run, str(tmp_path / "out"), format_name=name, digests=True, **options).content == known


def test_items_stay_behind(tmp_path: Path) -> None:
    """A merged shard has no place for items: the digests have them all the same."""
    version = str(tmp_path / "x.pt")
    save(Path(version), {"w": np.arange(6, dtype=np.float32), "lr": 0.1, "steps": [1, 2]})
    known = verify_version(version, level="deep").content
    done = export_version(version, str(tmp_path / "merged"), format_name="checkpoint", digests=True)
    assert done.left_out
    assert done.content == known


def test_file(run: str, tmp_path: Path) -> None:
    """The file is the one that `verify --digests` writes, and a version is compared with it; a dry run writes none."""
    own, theirs = str(tmp_path / "own.json"), str(tmp_path / "theirs.json")
    output = str(tmp_path / "out.safetensors")
    assert edl("export", run, output, "--digests", own, "--dry-run").returncode == 0
    assert not Path(own).exists()
    assert edl("export", run, output, "--digests", own).returncode == 0
    assert edl("verify", run, "--digests", theirs).returncode == 0
    assert Path(own).read_bytes() == Path(theirs).read_bytes()
    assert edl("verify", run, "--against", own).returncode == 0
    assert "content" not in json.loads(edl("export", run, output, "--force", "--json").stdout)


@pytest.mark.parametrize(
    ("file", "more", "words"),
    [
        ("out.npz", [], "name one file"),
        ("no/d.json", [], "directory that exists"),
        (".", [], "directory that exists"),
        ("d.json", ["--partial"], "of a whole version"),
    ],
    ids=["output", "nowhere", "directory", "partial"],
)
def test_refused_before(file: str, more: list[str], words: str, run: str, tmp_path: Path) -> None:
    """What cannot be written is refused before hours of reading."""
    output = tmp_path / "out.npz"
    result = edl("export", run, str(output), "--digests", str(tmp_path / file), *more)
    assert result.returncode == 2
    assert words in result.stderr
    assert not output.exists()
