"""Damage never gets a new checksum: what files say of their own values is compared in every way out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import torch_items
from bundle_files import write_bundle
from edl_ckpt.core import export_version, import_arrays, import_checkpoint, list_versions, reshard_version
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.converting.changes import Changes
from edl_ckpt.core.operations.convert import convert_version, strip_versions
from edl_ckpt.core.operations.copy.execute import CopyResult, execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.operations.export.interface import Selection
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import Location, open_store
from program import document, edl
from reporters import Recorder

USER = "model.ebc.embedding_bags.user.weight"
SLOT = f"optim.state.{USER}.user.momentum1"


@dataclass(frozen=True)
class Way:
    """A way out of a version: `run` writes it to a folder, or in its own place."""

    run: Callable[[Path, int, Path, bool], object]
    in_place: bool = False
    result: str = "out"


def _copied(source: Path, number: int, folder: Path, force: bool) -> object:
    plan = plan_copy([f"{source}@{number}"], str(folder / "out"), force=force)
    return execute_copy(plan, reporter=Recorder())


def _convert(source: Path, number: int, folder: Path | None, force: bool, **how: object) -> object:
    output = None if folder is None else str(folder / "out")
    options: dict[str, object] = {"output": output, "force": force, "reporter": Recorder(), **how}
    return convert_version(f"{source}@{number}", **options)  # type: ignore[arg-type]


def _export(name: str, ending: str = "", **chosen: object) -> Way:
    def run(source: Path, number: int, folder: Path, force: bool) -> object:
        selection, goal = Selection(**chosen), str(folder / f"out{ending}")  # type: ignore[arg-type]
        how = {"format_name": name, "selection": selection, "use_seal": not force, "reporter": Recorder()}
        return export_version(f"{source}@{number}", goal, **how)  # type: ignore[arg-type]

    return Way(run, result=f"out{ending}")


WAYS = {
    "reshard in place": Way(lambda s, n, f, force: _convert(s, n, None, force, ranks=2), in_place=True),
    "reshard": Way(lambda s, n, f, force: _convert(s, n, f, force, ranks=2)),
    "reshard to ElasticDL": Way(
        lambda s, n, f, force: reshard_version(f"{s}@{n}", 2, output=str(f / "out"), force=force, reporter=Recorder())
    ),
    "edit": Way(lambda s, n, f, force: _convert(s, n, f, force, changes=Changes(drop=("over.weight",)))),
    "edit in place": Way(
        lambda s, n, f, force: _convert(s, n, None, force, changes=Changes(drop=("over.weight",))), in_place=True
    ),
    "copy": Way(_copied),
    "export safetensors": _export("safetensors", ".safetensors"),
    "export npz": _export("npz", ".npz"),
    "export a matrix": _export("safetensors", ".safetensors", dense_rows="auto"),
    "export another table": _export("npz", ".npz", tables=(), variables=("over.weight",)),
    "export jsonl": _export("jsonl", ".jsonl", tables=(USER,)),
    "export dcp": _export("dcp"),
    "export tensorflow": _export("tensorflow"),
    "export elasticdl": _export("checkpoint"),
}
BUNDLE_WAYS = {name: WAYS[name] for name in ("reshard", "reshard to ElasticDL", "copy", "export npz", "export dcp")}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """A table of several pieces with a companion, and a variable."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40_000, 32), np.float32)
    return {USER: rows, SLOT: rows[:, :1].copy(), "over.weight": rng.standard_normal((3, 4), np.float32)}


@pytest.fixture
def run(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Two steps of three ranks of torch."""
    for number in (5, 6):
        parts = [part for name, array in arrays.items() for part in torch_items.boxes(name, array, _cuts(array), 3)]
        torch_items.write_step(tmp_path / f"run/step_{number}", parts)
    return tmp_path / "run"


def _cuts(array: np.ndarray) -> list[list[int]]:
    third = len(array) // 3
    return [[third, 2 * third], []] if len(array) > 100 else [[], []]


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def _tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".edl-ckpt-0" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _histories(place: Path) -> Iterator[str]:
    """Yield what the seals of a location say of decisions."""
    store = open_store(Location.of(str(place)))
    for version in list_versions(place).versions:
        seal = read_seal(store, version.version)
        if seal is not None:
            yield from (f"{one.command}: {one.why}" for one in seal.history)


def _forced(result: object) -> object:
    return result.copied[0].forced if isinstance(result, CopyResult) else getattr(result, "forced", None)


@pytest.mark.parametrize("name", WAYS)
def test_a_flipped_bit_of_torch_ends_each_way_out(run: Path, tmp_path: Path, name: str) -> None:
    """The error names the tensor, its file and offset; nothing is replaced; force goes on and says so."""
    way = WAYS[name]
    _flip(run / "step_5/__1_0.distcp", 1_200_000)
    before = _tree(run)
    with pytest.raises(CorruptError, match="crc32") as raised:
        way.run(run, 5, tmp_path, False)
    assert f"{USER!r} in shard 1" in raised.value.message
    assert raised.value.exit_code == 5
    assert raised.value.path == str(run / "step_5/__1_0.distcp")
    assert raised.value.offset is not None
    assert _tree(run) == before
    out = tmp_path / way.result
    assert not (out.is_dir() and _tree(out))
    assert not out.is_file()
    result = way.run(run, 5, tmp_path, True)
    assert "crc32" in str(_forced(result))
    if not name.startswith("export"):
        (line,) = _histories(run if way.in_place else out)
        assert "crc32" in line


@pytest.mark.parametrize("name", WAYS)
def test_sound_files_go_every_way(run: Path, tmp_path: Path, name: str) -> None:
    """Without damage every way ends well, and says how many checksums it has compared, and how many it has not."""
    result = WAYS[name].run(run, 5, tmp_path, False)
    sums = getattr(result, "checksums", None) or result.copied[0].checksums  # type: ignore[attr-defined]
    left = {"edit": 1, "edit in place": 1}.get(name, 0)
    assert (sums.compared, sums.not_compared) == (7 - left, left)


def test_a_stripped_version_keeps_its_damage(run: Path) -> None:
    """A strip rewrites nothing where a value that stays is damaged; one in what it leaves out does not matter."""
    _flip(run / "step_5/__1_0.distcp", 1_200_000)
    before = _tree(run)
    with pytest.raises(CorruptError, match="crc32"):
        strip_versions([str(run)], 1, reporter=Recorder())
    assert _tree(run) == before


def test_a_bundle_is_compared_too(tmp_path: Path) -> None:
    """CRC-32C of a tensor of TensorFlow: each way out ends with the tensor's name; so does an import of its arrays."""
    arrays = {"emb": np.random.default_rng(1).standard_normal((30_000, 64), np.float32), "bias": np.ones(8, np.float32)}
    write_bundle(tmp_path / "run/model.ckpt-7", arrays)
    _flip(tmp_path / "run/model.ckpt-7.data-00000-of-00001", 5_000_000)
    before = _tree(tmp_path / "run")
    for name, way in BUNDLE_WAYS.items():
        place = tmp_path / name
        place.mkdir()
        with pytest.raises(CorruptError, match="crc32c") as raised:
            way.run(tmp_path / "run", 7, place, False)
        assert "'emb'" in raised.value.message, name
        assert "crc32c" in str(_forced(way.run(tmp_path / "run", 7, place, True))), name
    assert _tree(tmp_path / "run") == before
    source, goal = str(tmp_path / "run/model.ckpt-7"), str(tmp_path / "imported")
    with pytest.raises(CorruptError, match="crc32c"):
        import_arrays(source, goal, 1, 2, reporter=Recorder())
    assert not list_versions(goal).versions if Path(goal).exists() else True
    assert "crc32c" in str(import_arrays(source, goal, 1, 2, force=True, reporter=Recorder()).forced)
    assert [line.partition(":")[0] for line in _histories(Path(goal))] == ["import"]


def test_an_import_of_a_step_of_torch_compares(run: Path, tmp_path: Path) -> None:
    """A checkpoint that becomes a version of another location is compared as a reshard is."""
    _flip(run / "step_5/__1_0.distcp", 1_200_000)
    with pytest.raises(CorruptError, match="crc32"):
        import_checkpoint(f"{run}@5", str(tmp_path / "new"), 1, 2, reporter=Recorder())
    done = import_checkpoint(f"{run}@5", str(tmp_path / "new"), 1, 2, force=True, reporter=Recorder())
    assert done.forced
    assert list(_histories(tmp_path / "new"))


def test_the_command_ends_with_5(run: Path, tmp_path: Path) -> None:
    """The command line says 5, the tensor and the place; the JSON of a sound version counts what was compared."""
    _flip(run / "step_5/__1_0.distcp", 1_200_000)
    done = edl("reshard", f"{run}@5", "--ranks", "2")
    assert done.returncode == 5
    assert USER in done.stderr
    assert "__1_0.distcp" in done.stderr
    assert "--force" in done.stderr
    found = document("reshard", f"{run}@6", "--ranks", "2", "--json")
    assert found["checksums"] == {"compared": 7, "not_compared": 0, "names": []}
