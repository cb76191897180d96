"""Files of torch.save written anew: other tensors in their pickles, for other ranks, and all else as it was.

torch itself as the judge: EDL_CKPT_TEST_TORCH_PYTHON=PYTHON pytest -n 0 -m frameworks THIS_FILE
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import convert_version, diff_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import Changes
from edl_ckpt.core.sources.torch.machine import Items, Made, Persistent, read
from edl_ckpt.core.sources.torch.rewriting import written
from foreign import run_judge
from torch_files import dtensor, save, shard

PYTHON, JUDGE = "EDL_CKPT_TEST_TORCH_PYTHON", "torch_rewritten.py"
FIXTURES = Path(__file__).parents[3] / "data/systems/torch"
WHOLE = np.arange(7 * 4, dtype=np.float32).reshape(7, 4)


def pickle_of(path: Path) -> bytes:
    """Return the pickle in a file of torch.save."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        return archive.read(name)


def storages(value: object) -> Iterator[str]:
    """Yield the keys of all storages of a pickle in the order in which they come."""
    if isinstance(value, Persistent):
        yield str(value.id.values[2])
    elif isinstance(value, Items):
        for one in [value.args, *value.values, value.state]:
            yield from storages(one)
    elif isinstance(value, Made):
        for one in (value.args, value.state):
            yield from storages(one)


def fingerprint(path: Path | str) -> str | None:
    """The fingerprint of a version in which nothing is wrong."""
    result = verify_version(str(path), level="deep")
    assert result.own_errors == []
    return result.fingerprint


def test_pickles_are_written_as_torch_does() -> None:
    """A pickle that nothing changes in is the same, byte for byte, but for texts that DTensors share."""
    checked = 0
    for path in sorted(FIXTURES.rglob("*.pt")):
        data = pickle_of(path) if zipfile.is_zipfile(path) else b""
        if data and path.parent.name == "files":
            assert written(read(data)[0], data[1], lambda key: key) == data, path
            checked += 1
    assert checked >= 6


def ranks(folder: Path, count: int) -> None:
    """Write the files of ranks: a tensor cut by rows, and what all ranks have alike."""
    folder.mkdir(parents=True)
    cut = -(-7 // count)
    for rank in range(count):
        value = {
            "w": dtensor(WHOLE[rank * cut : (rank + 1) * cut], (7, 4), (count,), (rank,), [shard(0)]),
            "plain": np.ones(2, np.float32),
            "groups": [{"lr": 0.5, "names": [str(n) for n in range(20)]}],
        }
        save(folder / f"model_world_size_{count}_rank_{rank}.pt", value)


@pytest.mark.parametrize("fixture", ["ranks2/2", "ranks4/0"])
def test_files_of_ranks_of_torch(fixture: str, tmp_path: Path) -> None:
    """As many ranks keep their parts, on any mesh that is cut by rows, or the refusal names what has no rule."""
    shutil.copytree(FIXTURES / fixture, tmp_path / "runs/step_5")
    wanted = fingerprint(tmp_path / "runs/step_5")
    with suppress(UnsupportedError):
        convert_version(f"{tmp_path / 'runs'}@5", output=str(tmp_path / "new"))
        assert fingerprint(tmp_path / "new/step_5") == wanted
        return
    assert not list((tmp_path / "new").glob("step_*"))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_other_ranks(count: int, tmp_path: Path) -> None:
    """Files of real ranks go to other ranks and back, with the same fingerprint, other values included."""
    shutil.copytree(FIXTURES / "verl2", tmp_path / "runs/global_step_5")
    wanted = fingerprint(f"{tmp_path / 'runs'}@5")
    convert_version(f"{tmp_path / 'runs'}@5", count, output=str(tmp_path / "new"))
    files = {path.name for path in (tmp_path / "new/global_step_5").iterdir()}
    assert files == {f"{n}_world_size_{count}_rank_{r}.pt" for n in ("model", "optim") for r in range(count)}
    assert fingerprint(f"{tmp_path / 'new'}@5") == wanted
    convert_version(f"{tmp_path / 'new'}@5", 2, output=str(tmp_path / "again"))
    assert fingerprint(f"{tmp_path / 'again'}@5") == wanted


def test_an_edit_keeps_all_else(tmp_path: Path) -> None:
    """Tensors are dropped, renamed and cast, values are dropped and renamed; what is in a list is refused by name."""
    value = {
        "model": {"a": WHOLE, "b": np.arange(3)},
        "groups": [{"lr": 0.5, "names": [str(n) for n in range(20)]}],
        "step": 7,
        "text": "x" * 300,
        "list": [1, 2.5],
    }
    (tmp_path / "runs").mkdir()
    save(tmp_path / "runs/step_3.pt", value)
    source, new = f"{tmp_path / 'runs'}@3", str(tmp_path / "new")
    changes = Changes(
        rename=(("model.a", "model.c.d"), ("step", "global_step")),
        drop=("model.b", "text"),
        cast=(("model.a", "float16"),),
    )
    done = convert_version(source, output=new, changes=changes)
    assert done.left_out != ()
    with open_checkpoint(f"{new}@3") as checkpoint:
        np.testing.assert_array_equal(checkpoint["model.c.d"], WHOLE.astype(np.float16))
        names = sorted((*checkpoint.variable_names, *checkpoint.item_names))
    assert names == ["global_step", "groups.0.lr", "groups.0.names", "list.0", "list.1", "model.c.d"]
    for change, words in (
        (Changes(drop=("list.0",)), "is in a list"),
        (Changes(rename=(("model.a", "other.a"),)), "keeps the begin of its name"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            convert_version(source, output=str(tmp_path / "no"), changes=change)
    with pytest.raises(UnsupportedError, match="of no rank"):
        convert_version(source, 3, output=str(tmp_path / "no"))


def test_in_place(tmp_path: Path) -> None:
    """A directory of files of ranks is written anew in its place, and what no rule says is refused."""
    ranks(tmp_path / "global_step_1", 2)
    wanted = fingerprint(f"{tmp_path}@1")
    convert_version(f"{tmp_path}@1", changes=Changes(drop=("plain",)))
    with open_checkpoint(f"{tmp_path}@1") as checkpoint:
        assert list(checkpoint.variable_names) == ["w"]
        np.testing.assert_array_equal(checkpoint["w"], WHOLE)
    assert fingerprint(f"{tmp_path}@1") != wanted


def test_what_differs_by_rank(tmp_path: Path) -> None:
    """A value of each rank stays with as many ranks, and has no place among others."""
    for rank in range(2):
        save(tmp_path / f"runs/step_1/model_world_size_2_rank_{rank}.pt", {"w": WHOLE, "seed": np.array([rank])})
    source = f"{tmp_path / 'runs'}@1"
    convert_version(source, output=str(tmp_path / "same"))
    assert diff_versions(source, f"{tmp_path / 'same'}@1").equal
    with pytest.raises(UnsupportedError, match=r"'seed\.rank_0' differs from rank to rank"):
        convert_version(source, 3, output=str(tmp_path / "other"))
    convert_version(source, 3, output=str(tmp_path / "other"), changes=Changes(drop=("seed*",)))


def test_storages_are_in_the_order_of_the_pickle(tmp_path: Path) -> None:
    """Readers that compute where storages lie find them: meshes among them too, each where its number says."""
    shutil.copytree(FIXTURES / "verl2", tmp_path / "runs/global_step_5")
    convert_version(f"{tmp_path / 'runs'}@5", 3, output=str(tmp_path / "new"))
    for path in sorted((tmp_path / "new/global_step_5").iterdir()):
        with zipfile.ZipFile(path) as archive:
            places = {one.filename.rpartition("/")[2]: one.header_offset for one in archive.infolist()}
        keys = list(dict.fromkeys(storages(read(pickle_of(path))[0])))
        assert keys == [str(number) for number in range(len(keys))]
        assert [places[key] for key in keys] == sorted(places[key] for key in keys)


@pytest.mark.frameworks
def test_torch_loads_them(tmp_path: Path) -> None:
    """torch.load reads the same from what was written, bit for bit, and DTensors of 1, 2, 3 and 8 ranks."""
    run_judge(PYTHON, JUDGE, "save", str(tmp_path))
    convert_version(str(tmp_path / "full.pt"), output=str(tmp_path / "new"))
    run_judge(PYTHON, JUDGE, "compare", str(tmp_path / "full.pt"), str(tmp_path / "new/step_0/full.pt"))
    shutil.copytree(FIXTURES / "verl2", tmp_path / "runs/global_step_5")
    for count in (1, 2, 3, 8):
        convert_version(f"{tmp_path / 'runs'}@5", count, output=str(tmp_path / f"r{count}"))
        place = str(tmp_path / f"r{count}/global_step_5")
        run_judge(PYTHON, JUDGE, "ranks", place, str(count), str(FIXTURES / "verl2.full.pt"))


def test_a_file_that_is_a_version_becomes_a_directory(tmp_path: Path) -> None:
    """Lightning's names are those of files, not of directories: the new version has a directory of its own name."""
    (tmp_path / "runs").mkdir()
    save(tmp_path / "runs/epoch=0-step=3.ckpt", {"state_dict": {"w": WHOLE}})
    for number, source in enumerate((f"{tmp_path / 'runs'}@3", str(tmp_path / "runs/epoch=0-step=3.ckpt"))):
        new = tmp_path / f"new{number}"
        convert_version(source, output=str(new), changes=Changes(cast=(("*.w", "float16"),)))
        assert (new / "step_3/epoch=0-step=3.ckpt").is_file()
