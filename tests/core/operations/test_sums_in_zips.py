"""Zips have a CRC-32 of each member: files beside a model, .pt and .npz are compared before a seal is made of them."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import convert_version, execute_copy, import_arrays, plan_copy
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import Location, open_store
from reporters import Recorder


def _zip(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)


def _flip(path: Path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 0x10
    path.write_bytes(data)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _history(place: Path, number: int) -> list[str]:
    seal = read_seal(open_store(Location.of(str(place))), number)
    return [one.why for one in seal.history] if seal is not None else []


def _reshard(run: Path, out: Path, force: bool) -> str | None:
    return convert_version(f"{run}@3", 2, output=str(out), force=force, reporter=Recorder()).forced


def _in_place(run: Path, out: Path, force: bool) -> str | None:
    del out
    return convert_version(f"{run}@3", 2, force=force, reporter=Recorder()).forced


def _copy(run: Path, out: Path, force: bool) -> str | None:
    return execute_copy(plan_copy([f"{run}@3"], str(out), force=force), reporter=Recorder()).copied[0].forced


WAYS = {"reshard": _reshard, "reshard in place": _in_place, "copy": _copy}
Way = Callable[[Path, Path, bool], str | None]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_flipped_bit_in_a_zip_beside_a_model(tmp_path: Path, way: Way) -> None:
    """What torch.save wrote beside a model goes along only if its members are what they were."""
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (tmp_path / "run/checkpoint-3").mkdir(parents=True)
    model = len(header).to_bytes(8, "little") + header + np.ones(2, np.float32).tobytes()
    (tmp_path / "run/checkpoint-3/model.safetensors").write_bytes(model)
    beside = tmp_path / "run/checkpoint-3/optimizer.pt"
    _zip(beside, optimizer__data__0=b"exp_avg" * 1000, optimizer__version=b"3\n")
    assert way(tmp_path / "run", tmp_path / "sound", False) is None
    _flip(beside, b"exp_avg")
    shutil.rmtree(tmp_path / "run/.edl-ckpt-0", ignore_errors=True)  # a seal says it, too
    before = _tree(tmp_path / "run")
    with pytest.raises(CorruptError, match=r"'optimizer\.pt'.*CRC-32") as raised:
        way(tmp_path / "run", tmp_path / "out", False)
    assert raised.value.path == str(beside)
    assert _tree(tmp_path / "run") == before
    assert "optimizer.pt" in str(way(tmp_path / "run", tmp_path / "out", True))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_an_npz(tmp_path: Path, save: Callable[..., None]) -> None:
    """The error names the array; force goes on with the values that are there, and the seal keeps why."""
    path = tmp_path / "m.npz"
    save(path, w=np.arange(1000, dtype=np.float32), b=np.ones(3))
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        crc = archive.getinfo("w.npy").CRC.to_bytes(4, "little")
    for at in (data.index(crc), data.rindex(crc)):
        data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"'w': the values have the crc32") as raised:
        import_arrays(str(path), str(tmp_path / "run"), 1, 2, reporter=Recorder())
    assert raised.value.path == str(path)
    assert "--force" in str(raised.value.hint)
    assert not (tmp_path / "run").exists()
    done = import_arrays(str(path), str(tmp_path / "run"), 1, 2, force=True, reporter=Recorder())
    assert "'w'" in str(done.forced)
    assert done.checksums.compared == 2
    assert len(_history(tmp_path / "run", 1)) == 1


def test_a_flipped_bit_in_a_pt(tmp_path: Path) -> None:
    """The members of what torch.save wrote are compared before torch, which compares none, reads them."""
    path = tmp_path / "m.pt"
    _zip(path, m__data__0=b"a tensor" * 100, m__version=b"3\n")
    _flip(path, b"a tensor")
    with pytest.raises(CorruptError, match=r"'m\.pt': .*CRC-32 for file 'm/data/0'") as raised:
        import_arrays(str(path), str(tmp_path / "run"), 1, 2, reporter=Recorder())
    assert raised.value.code == "checksum-mismatch"


def test_sound_archives_are_counted(tmp_path: Path) -> None:
    """Without damage the result says how many checksums were compared."""
    np.savez(tmp_path / "m.npz", w=np.arange(9, dtype=np.float32))
    done = import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "run"), 1, 2, reporter=Recorder())
    assert (done.checksums.compared, done.forced) == (1, None)
