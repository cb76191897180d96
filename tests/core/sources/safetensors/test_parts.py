"""Parts of tensors, as torch's HuggingFaceStorageWriter saves them: joined by boxes, or left for whole tensors."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edl_ckpt.core import Latest, Policy, export_version, list_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.plan import plan_prune

LONG_AGO = 1_000_000_000
Arrays = Mapping[str, npt.NDArray[Any]]
VALUES: Arrays = {
    "0.weight": np.arange(66, dtype=np.float32).reshape(11, 6),
    "1.bias": np.arange(7, dtype=np.float32),
    "grid": np.arange(60, dtype=np.float32).reshape(3, 4, 5),
}


def write(path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Write a file of float32 tensors."""
    document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, values in arrays.items():
        octets = np.ascontiguousarray(values).tobytes()
        span = [len(data), len(data) + len(octets)]
        document[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": span}
        data += octets
    text = json.dumps(document).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def save_parts(folder: Path, values: Arrays, ranks: int, *, total: int = 1, axis: int = 0) -> None:
    """Save arrays cut along an axis, as torch cuts a tensor: later ranks have less, and the last ones nothing."""
    for rank, number in product(range(ranks), range(total)):
        mine, begins = {}, {}
        for name, array in list(values.items())[number::total]:
            along = min(axis, array.ndim - 1)
            size = -(-array.shape[along] // ranks)
            rows = range(array.shape[along])[rank * size : (rank + 1) * size]
            part = array.take(rows, along)
            if part.size:
                mine[name] = part
                begins[name] = {"saved_offsets": [rank * size if n == along else 0 for n in range(array.ndim)]}
        info = {"DCP_VERSION": "1.0", "format": "pt", "DCP_SHARDING_INFO": json.dumps(begins)}
        if mine:
            write(folder / f"shard-{rank + 1:05}-model-{number + 1:05}-of-{total:05}.safetensors", mine, info)


def listed(location: Path) -> Version:
    """Return the version of a location whose files are old."""
    for path in [location, *location.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    (version,) = list_versions(str(location)).versions
    return version


def assert_values(version: Version) -> None:
    """Fail unless a version has the values, each tensor once and whole."""
    with open_checkpoint(version) as checkpoint:
        assert sorted(checkpoint.variable_names) == sorted(VALUES)
        for name, array in VALUES.items():
            assert checkpoint[name].shape == array.shape
            assert checkpoint[name].tolist() == array.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("total", [1, 2])
def test_parts_are_joined(ranks: int, axis: int, total: int, tmp_path: Path) -> None:
    """The parts of all ranks are whole tensors, however they are cut; a rank is a shard, and exports are whole."""
    save_parts(tmp_path / "step_1", VALUES, ranks, axis=axis, total=total)
    version = listed(tmp_path)
    assert (version.state, version.lacks) == (State.COMPLETE, ())
    assert_values(version)
    assert verify_version(version, level="deep").findings == ()
    export_version(version, str(tmp_path / "whole.npz"))
    with np.load(tmp_path / "whole.npz") as arrays:
        assert all((arrays[name] == array).all() for name, array in VALUES.items())


@pytest.mark.parametrize("folder", ["", "sharded/"])
@pytest.mark.parametrize("is_set", [False, True])
def test_whole_tensors_beside_their_parts(folder: str, is_set: bool, tmp_path: Path) -> None:
    """Where torch has consolidated the files, the whole tensors are read, and a warning names the parts."""
    step = tmp_path / "step_1"
    save_parts(step / folder, VALUES, 2)
    if is_set:
        for number, (name, array) in enumerate(VALUES.items()):
            write(step / f"model-{number + 1:05}-of-00003.safetensors", {name: array}, {})
        weights = {name: f"model-{number + 1:05}-of-00003.safetensors" for number, name in enumerate(VALUES)}
        (step / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    else:
        write(step / "model.safetensors", VALUES, {})
    version = listed(tmp_path)
    assert (version.state, version.ps_num) == (State.COMPLETE, 3 if is_set else 1)
    assert_values(version)
    findings = verify_version(version, level="deep").findings
    assert [(finding.severity, finding.code) for finding in findings] == [("warning", "passed-over")]
    assert "shard-00001-model" in findings[0].message
    names = {version.name_of(file.path) for file in version.files}
    assert names >= {f"{folder}{path.name}" for path in (step / folder).glob("shard*")}


def test_a_gap_between_parts_is_incomplete(tmp_path: Path) -> None:
    """A lost rank leaves a gap in the tensors: the step is torn, and no tensor is read as if it were whole."""
    save_parts(tmp_path / "step_1", VALUES, 3)
    (tmp_path / "step_1/shard-00002-model-00001-of-00001.safetensors").unlink()
    version = listed(tmp_path)
    assert version.state is State.INCOMPLETE
    assert "0.weight: its 2 boxes do not tile [11, 6]" in version.lacks
    with open_checkpoint(version, partial=True) as checkpoint:
        assert not {"0.weight", "1.bias"} & set(checkpoint.variable_names)


def test_a_file_that_no_rank_has(tmp_path: Path) -> None:
    """Files are numbered: one that no rank has is missing."""
    save_parts(tmp_path / "step_1", VALUES, 2, total=3)
    for path in (tmp_path / "step_1").glob("*-00003-of-00003.safetensors"):
        path.unlink()
    assert listed(tmp_path).lacks == ("shard-*-model-00003-of-00003.safetensors is missing",)


@pytest.mark.parametrize(
    "info",
    [
        *("", "[]", "{", "{}", '{"w": {}}', '{"w": {"saved_offsets": [-1, 0]}}', '{"w": {"saved_offsets": [0]}}'),
        *('{"w": {"saved_offsets": [0.5, 0]}}', '{"w": {"saved_offsets": "00"}}'),
        '{"w": {"saved_offsets": [4611686018427387904, 0]}}',
    ],
)
def test_damaged_offsets(info: str, tmp_path: Path) -> None:
    """A header that does not say where its boxes begin is damaged, and is never read as if they were whole."""
    path = tmp_path / "step_1/shard-00001-model-00001-of-00001.safetensors"
    write(path, {"w": np.zeros((2, 2), np.float32)}, {"DCP_SHARDING_INFO": info})
    version = listed(tmp_path)
    assert version.state is State.INCOMPLETE
    with open_checkpoint(version, partial=True) as checkpoint:
        assert not checkpoint.variable_names
        assert "DCP_SHARDING_INFO" in checkpoint.lost[0].message


def test_a_file_that_is_only_named_like_parts(tmp_path: Path) -> None:
    """A file with the name of parts, whose header says nothing of boxes, has whole tensors."""
    write(tmp_path / "step_1/shard-00001-model-00001-of-00001.safetensors", VALUES, {"format": "pt"})
    assert_values(listed(tmp_path))


def test_a_file_beside_a_set(tmp_path: Path) -> None:
    """`model.safetensors` beside a set with its index is a warning: transformers loads the file."""
    step = tmp_path / "step_1"
    write(step / "model-00001-of-00001.safetensors", VALUES, {})
    write(step / "model.safetensors", {name: array + 1 for name, array in VALUES.items()}, {})
    weights = dict.fromkeys(VALUES, "model-00001-of-00001.safetensors")
    (step / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    version = listed(tmp_path)
    assert_values(version)
    (finding,) = verify_version(version).findings
    assert (finding.code, finding.subject, finding.severity) == ("passed-over", "model.safetensors", "warning")
    assert "transformers loads this file" in finding.message


def test_an_index_that_names_files_in_directories(tmp_path: Path) -> None:
    """An index may name files below its directory, and none above it."""
    step = tmp_path / "step_1"
    write(step / "shards/one.safetensors", VALUES, {})
    index = step / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(VALUES, "shards/one.safetensors")}))
    assert_values(listed(tmp_path))
    for wrong in (
        "../one.safetensors",
        "/one.safetensors",
        "shards//one.safetensors",
        "./one.safetensors",
        "a\\b.safetensors",
    ):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(VALUES, wrong)}))
        assert listed(tmp_path).state is State.INCOMPLETE


def test_a_dtype_that_nothing_knows(tmp_path: Path) -> None:
    """A tensor of a dtype of tomorrow is an item of so many bytes, and the others are read."""
    text = json.dumps({
        "odd": {"dtype": "I4", "shape": [4], "data_offsets": [0, 2]},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
    }).encode()  # fmt: skip
    path = tmp_path / "step_1/model.safetensors"
    path.parent.mkdir()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\1\2" + np.float32(3).tobytes())
    version = listed(tmp_path)
    assert version.state is State.COMPLETE
    with open_checkpoint(version) as checkpoint:
        assert checkpoint["w"].tolist() == [3]
    assert verify_version(version, level="deep").findings == ()


@pytest.mark.parametrize("is_joined", [True, False])
def test_files_of_ranks_with_a_pickle_that_joins_them(is_joined: bool, tmp_path: Path) -> None:
    """torch_checkpointing's files of ranks are not shown as whole tensors; any other `metadata.pkl` changes nothing."""
    for rank in range(2):
        write(tmp_path / f"step_1/weights_{rank}.safetensors", {f"w{rank}": np.zeros((2, 2), np.float32)}, {})
    content: dict[str, Any] = {"nested_path_to_metadata": {}} if is_joined else {"loss": 0.5}
    (tmp_path / "step_1/metadata.pkl").write_bytes(pickle.dumps(content))
    version = listed(tmp_path)
    if not is_joined:
        assert version.state is State.COMPLETE
        return
    assert (version.state, version.lacks) == (State.UNREADABLE, ())
    with pytest.raises(UnsupportedError, match="torch_checkpointing"):
        open_checkpoint(version)


MANY: Arrays = {f"l{n}.weight": np.arange(11.0 * (n + 3), dtype=np.float32).reshape(11, -1) for n in range(4)}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_file_of_a_rank_is_lost(ranks: int, which: str, tmp_path: Path) -> None:
    """A set without one of its files is never complete, although nothing but the parts of others shows it."""
    save_parts(tmp_path / "step_100", MANY, ranks, total=2)
    save_parts(tmp_path / "step_200", MANY, ranks, total=2)
    files = sorted((tmp_path / "step_200").iterdir())
    of_number = [path for path in files if path.name.endswith("00001-of-00002.safetensors")]
    (of_number[0] if which == "first" else of_number[-1]).unlink()
    for path in tmp_path.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    states = {version.number: version.state for version in list_versions(str(tmp_path)).versions}
    assert states == {100: State.COMPLETE, 200: State.INCOMPLETE}
    assert not verify_version(f"{tmp_path}@200").ok
    if which == "last":
        (finding,) = verify_version(f"{tmp_path}@200").findings
        assert finding.message.endswith("is missing: 'l0.weight' ends early")
    entries = plan_prune([str(tmp_path)], Policy((Latest(1),))).entries
    assert [entry.action.value for entry in entries if entry.version == 100] == ["keep"]


def test_ranks_without_rows_have_lost_nothing(tmp_path: Path) -> None:
    """A rank has no file of tensors that are too small for all ranks; whole tensors of one rank are no parts."""
    save_parts(tmp_path / "step_100", {"a": np.arange(40.0, dtype=np.float32), "b": np.ones(3, np.float32)}, 4, total=2)
    assert len(list((tmp_path / "step_100").iterdir())) == 7
    for rank, number, name in ((1, 1, "x"), (2, 2, "y"), (1, 2, "z")):
        info = {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": [0]}})}
        path = tmp_path / "step_200" / f"shard-{rank:05}-model-{number:05}-of-00002.safetensors"
        write(path, {name: np.ones(5, np.float32)}, info)
    for path in tmp_path.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    states = {version.number: version.state for version in list_versions(str(tmp_path)).versions}
    assert states == {100: State.COMPLETE, 200: State.COMPLETE}


@pytest.mark.parametrize("ranks", range(2, 12))
def test_all_files_of_the_last_rank_are_never_missed(ranks: int) -> None:
    """Without them the others are what one rank less saves of fewer rows, so no header can show the loss."""
    for rows in range(1, 60):
        left = cut_by_rows(rows, ranks)[: ranks - 1]
        assert left == cut_by_rows(sum(left), ranks - 1)


def cut_by_rows(rows: int, ranks: int) -> list[int]:
    """Return how many rows each rank has, as torch cuts them."""
    step = -(-rows // ranks)
    return [max(min(step, rows - rank * step), 0) for rank in range(ranks)]
