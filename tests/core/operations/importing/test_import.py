from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import elasticdl_rules
from builders import models, write_checkpoint
from checkpoints import only
from edl_ckpt.core import fingerprint_checkpoint, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export import export_version
from edl_ckpt.core.operations.importing import NameMap, import_arrays, read_map
from golden_cases import BEYOND_ELASTICDL
from oracle import Model
from places import GOLDEN


def fingerprint(version: Version) -> str:
    """Return the fingerprint of a version."""
    with open_checkpoint(version) as checkpoint:
        return fingerprint_checkpoint(checkpoint).text


@pytest.mark.parametrize("ending", ["safetensors", "npz", "npy"])
@pytest.mark.parametrize("case", ["current/ps3", "legacy/v1", "legacy/v3", "legacy/v0d", "legacy/v1c-slots"])
def test_golden_round_trip(tmp_path: Path, ending: str, case: str) -> None:
    """What is exported and imported again has the same fingerprint, and the errors that its content has."""
    source = only(GOLDEN / case)
    export_version(source, str(tmp_path / f"m.{ending}"))
    result = import_arrays(str(tmp_path / f"m.{ending}"), str(tmp_path / "new"), 77, 4, layout="elasticdl")
    version = only(tmp_path / "new")
    assert (version.version, version.ps_num, version.layout.name) == (77, 4, "elasticdl")
    assert result.fingerprint == fingerprint(version) == fingerprint(source)
    errors = {f.code for f in verify_version(version).findings if f.severity == "error"}
    assert errors == BEYOND_ELASTICDL.get(case, set())
    assert elasticdl_rules.visible(tmp_path / "new") == {"version-77"}


@given(models(), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["safetensors", "npz", "npy"]))
def test_any_model_round_trip(
    tmp_path_factory: pytest.TempPathFactory, model: Model, before: int, after: int, ending: str
) -> None:
    """Any model, exported from N servers and imported for M, has the same fingerprint."""
    place = tmp_path_factory.mktemp("m")
    names = [*model.dense, *(f"{t}.{k}" for t in model.tables for k in ("ids", "vectors"))]
    if len(set(names)) == len(names):
        write_checkpoint(place / "run", model, before)
        export_version(only(place / "run"), str(place / f"m.{ending}"), part_bytes=100)
        result = import_arrays(str(place / f"m.{ending}"), str(place / "new"), 5, after)
        assert result.fingerprint == fingerprint(only(place / "run")) == fingerprint(only(place / "new"))
    shutil.rmtree(place)


def test_foreign_arrays(tmp_path: Path) -> None:
    """Arrays of another tool become tables and variables by a map, or by their names; ids in any order and width."""
    ids = np.array([9, 2, 5], np.uint16)
    save_file(
        {"emb.idx": ids, "emb.w": np.ones((3, 2), np.float32), "net.0.bias": np.zeros(4, np.float32)},
        str(tmp_path / "m.safetensors"),
    )
    names = tmp_path / "map.toml"
    names.write_text(
        '[rename]\n"net.0.bias" = "dense/bias:0"\n'
        '[tables.user]\nids = "emb.idx"\nvectors = "emb.w"\ninitializer = "zeros"\n'
    )
    import_arrays(str(tmp_path / "m.safetensors"), str(tmp_path / "run"), 1, 2, names=read_map(str(names)))
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert checkpoint.variable_names == ["dense/bias:0"]
        assert checkpoint.infos["user"].initializer == "zeros"
        rows = [row for batch in checkpoint.table("user") for row in batch.ids.tolist()]
        assert rows == [2, 9, 5]
    arrays: dict[str, Any] = {"t.ids": np.arange(3), "t.vectors": np.ones((3, 1)), "v": np.ones(2)}
    np.savez_compressed(tmp_path / "m.npz", **arrays)
    import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 2, 3)
    with open_checkpoint(f"{tmp_path}/run@2") as checkpoint:
        assert (checkpoint.table_names, checkpoint.variable_names) == (["t"], ["v"])


def test_wrong_tables(tmp_path: Path) -> None:
    """Ids that are floats, that occur twice or are not as many as vectors, and unknown names, are errors."""
    good: dict[str, Any] = {"t.vectors": np.ones((3, 2), np.float32)}
    cases: list[tuple[dict[str, Any], NameMap, type[EdlCkptError]]] = [
        ({"t.ids": np.array([1.0, np.nan, 2.0])}, NameMap(), UsageError),
        ({"t.ids": np.array([1, 2])}, NameMap(), UsageError),
        ({"t.ids": np.array([[1, 2, 3]])}, NameMap(), UsageError),
        ({"t.ids": np.array([7, 1, 7])}, NameMap(), CorruptError),
        ({"t.ids": np.arange(3)}, NameMap({"none": "x"}), NotFoundError),
        ({"t.ids": np.arange(3)}, NameMap({}, {"t": {"ids": "t.ids", "vectors": "none"}}), NotFoundError),
        ({"t.ids": np.arange(3), "a": np.ones(1), "b": np.ones(1)}, NameMap({"a": "b"}), UsageError),
    ]
    for arrays, names, error in cases:
        np.savez(tmp_path / "m.npz", **good, **arrays)
        with pytest.raises(error):
            import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 2, names=names)
        assert not (tmp_path / "run").exists()


def test_targets(tmp_path: Path) -> None:
    """A version that exists is never written over; numbers that make no sense are refused."""
    np.savez(tmp_path / "m.npz", v=np.ones(2))
    import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 2)
    before = (tmp_path / "run/version_1/variables-0-of-2.chkpt").read_bytes()
    for layout in ("design", "elasticdl"):
        with pytest.raises(RefusedError):
            import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 3, layout=layout)
    assert (tmp_path / "run/version_1/variables-0-of-2.chkpt").read_bytes() == before
    for version, ps_num in ((2**31, 1), (-1, 1), (2, 0)):
        with pytest.raises(UsageError):
            import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), version, ps_num)


def header(entries: dict[str, Any], data: bytes = b"\0" * 16) -> bytes:
    """Return a safetensors file of some header."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 10**9) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"{{{",
        header({"a": {**ENTRY, "data_offsets": [0, 17]}}),
        header({"a": {**ENTRY, "data_offsets": [8, 4]}}),
        header({"a": {**ENTRY, "data_offsets": [-4, 12]}}),
        header({"a": {**ENTRY, "data_offsets": [0, 2**70]}}),
        header({"a": {**ENTRY, "shape": [5]}}),
        header({"a": {**ENTRY, "shape": [2**40, 2**40]}}),
        header({"a": {**ENTRY, "shape": [-4]}}),
        header({"a": {**ENTRY, "shape": [True]}}),
        header({"a": 7}),
        header({"a": ENTRY, "b": {**ENTRY, "shape": [2], "data_offsets": [4, 12]}}),
        header({"__metadata__": {"tables": '{"t": {"ids": 5}}'}, "a": ENTRY}),
        header({"__metadata__": {"tables": "{"}, "a": ENTRY}),
    ],
)
def test_lying_safetensors(tmp_path: Path, data: bytes) -> None:
    """A header that lies is an error with the file and an offset, before anything is allocated or made."""
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(CorruptError) as caught:
        import_arrays(str(tmp_path / "m.safetensors"), str(tmp_path / "run"), 1, 1)
    assert caught.value.path
    assert not (tmp_path / "run").exists()


def test_a_dtype_of_safetensors_that_nothing_knows(tmp_path: Path) -> None:
    """A tensor of a dtype that no format here has is refused with the dtype, and nothing is made."""
    (tmp_path / "m.safetensors").write_bytes(header({"a": {**ENTRY, "dtype": "F31"}}))
    with pytest.raises(UnsupportedError, match="F31"):
        import_arrays(str(tmp_path / "m.safetensors"), str(tmp_path / "run"), 1, 1)
    assert not (tmp_path / "run").exists()


class Bomb:
    """Unpickling it would make a file."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("pickled",)


def npy(array: Any) -> bytes:
    """Return an .npy file's bytes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptError),
        (b"\x93NUMPY\x01\x00\xff\xff", CorruptError),
        (b"\x93NUMPY\x09\x00\x10\x00", CorruptError),
        (npy(np.ones(4))[:-1], CorruptError),
        (npy(np.ones(4)) + b"x", CorruptError),
        (npy(np.array([Bomb()], object)), UnsupportedError),
        (pickle.dumps(Bomb()), CorruptError),
        (npy(np.array(["text"])), UnsupportedError),
        (npy(np.ones(2, np.complex64)), UnsupportedError),
    ],
)
def test_bad_npy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, error: type[EdlCkptError]) -> None:
    """Damaged .npy files, objects and texts are refused as files and in archives; nothing unpickles."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays").mkdir()
    (tmp_path / "arrays/a.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("a.npy", data)
    for source in ("arrays", "m.npz"):
        with pytest.raises(error):
            import_arrays(str(tmp_path / source), str(tmp_path / "run"), 1, 1)
    assert sorted(os.listdir(tmp_path)) == ["arrays", "m.npz"]


def test_bad_archives(tmp_path: Path) -> None:
    """An archive with a flipped bit, cut short, or that is none, is refused; so is one without arrays."""
    np.savez(tmp_path / "good.npz", a=np.arange(1000))
    good = bytearray((tmp_path / "good.npz").read_bytes())
    flipped = bytes(good[:2000]) + bytes([good[2000] ^ 1]) + bytes(good[2001:])
    for data in (flipped, bytes(good[:3000]), b"PK\x03\x04", b""):
        (tmp_path / "m.npz").write_bytes(data)
        with pytest.raises(CorruptError):
            import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 1)
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(NotFoundError):
        import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 1)


def test_hostile_index(tmp_path: Path) -> None:
    """An index that names files elsewhere is refused."""
    (tmp_path / "m").mkdir()
    for document in ({"weight_map": {"a": "../../etc/passwd"}}, {"weight_map": {"a": ".."}}, {"weight_map": [1]}, {}):
        (tmp_path / "m/model.safetensors.index.json").write_text(json.dumps(document))
        with pytest.raises(CorruptError):
            import_arrays(str(tmp_path / "m"), str(tmp_path / "run"), 1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[renames]\n",
        "[rename]\na = 1\n",
        "[tables.t]\nids = 'a'\n",
        "[tables.t]\nids='a'\nvectors=3\n",
        "tables = 3\n",
    ],
)
def test_bad_maps(tmp_path: Path, text: str) -> None:
    """A map with anything but names is a usage error that names its file."""
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_map(str(tmp_path / "map.toml"))
    assert caught.value.path
