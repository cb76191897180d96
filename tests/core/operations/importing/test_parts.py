"""Importing what a cluster has exported: tables whose rows are in several files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import only, save_mixed
from edl_ckpt.core import CorruptError, EdlCkptError, UnsupportedError, import_arrays
from edl_ckpt.core.operations.export import Selection, export_version
from exported_parts import cut_small
from frameworks import need


@pytest.fixture
def exported(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what exports a version as many files, and returns their directory and the fingerprint."""
    cut_small(monkeypatch, 64 << 10)
    save_mixed(tmp_path / "run")

    def export(name: str, where: str = "out", **options: Any) -> tuple[Path, str]:
        if name.endswith("parquet"):
            need("pyarrow")
        (tmp_path / where).mkdir(exist_ok=True)
        output = tmp_path / where / name
        result = export_version(only(tmp_path / "run"), output, executor=client, **options)
        return output, result.fingerprint

    return export


@pytest.mark.parametrize("order", ["id", "stored"])
@pytest.mark.parametrize("name", ["m.safetensors", "m.parquet"])
def test_the_same_content(tmp_path: Path, client: Any, exported: Any, name: str, order: str) -> None:
    """The new version has the fingerprint of the old one, whether this process reads the files or workers do."""
    output, fingerprint = exported(name, selection=Selection(order=order))
    for number, executor in enumerate((None, client)):
        where = str(tmp_path / f"in-{number}")
        if executor is not None and name == "m.parquet":
            with pytest.raises(UnsupportedError, match="the workers of a cluster import"):
                import_arrays(str(output), where, 7, 4, executor=executor, layout="elasticdl")
            continue
        result = import_arrays(str(output), where, 7, 4, executor=executor, layout="elasticdl")
        assert result.fingerprint == fingerprint


@pytest.mark.parametrize(("name", "glob"), [("m.safetensors", "model-00003-*"), ("m.parquet", "wide-00002-*")])
def test_a_missing_file(tmp_path: Path, exported: Any, name: str, glob: str) -> None:
    """A directory that lacks a file is refused."""
    output, _ = exported(name)
    next(output.glob(glob)).unlink()
    with pytest.raises(EdlCkptError):
        import_arrays(str(output), str(tmp_path / "in"), 7, 4, layout="elasticdl")
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize(
    ("name", "file"), [("m.safetensors", "model-00003-*"), ("m.parquet", "wide-00002-*"), ("m.parquet", "dense")]
)
def test_a_file_of_another_export(tmp_path: Path, exported: Any, name: str, file: str) -> None:
    """Files of two exports are no version, even of the same one."""
    first, _ = exported(name)
    second, _ = exported(name, where="again")
    if file == "dense":
        sources = [path.with_suffix(".dense") / "dense.safetensors" for path in (second, first)]
    else:
        sources = [next(path.glob(file)) for path in (second, first)]
    sources[1].write_bytes(sources[0].read_bytes())
    with pytest.raises(CorruptError, match="not of the same export"):
        import_arrays(str(first), str(tmp_path / "in"), 7, 4, layout="elasticdl")


@pytest.mark.parametrize(
    "note",
    [
        3,
        {},
        {"ids": "wide.ids", "vectors": ["b"]},
        {"ids": [], "vectors": []},
        {"ids": [1], "vectors": [2]},
        {"ids": ["nothing"], "vectors": ["b"]},
        {"ids": ["b", "w"], "vectors": ["w"]},
        {"ids": ["b", "b"], "vectors": ["w"]},
    ],
)
def test_hostile_notes(tmp_path: Path, exported: Any, note: Any) -> None:
    """Notes on parts that are none are damage, and no error of ours."""
    output, _ = exported("m.safetensors")
    index = output / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["metadata"]["tables"]["more"] = note
    index.write_text(json.dumps(document))
    with pytest.raises(CorruptError):
        import_arrays(str(output), str(tmp_path / "in"), 7, 4, layout="elasticdl")
