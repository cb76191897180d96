"""Files that are none of a checkpoint say what they are: 15, never damage, and their version is not complete."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions, open_checkpoint, resolve, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.recognised import POINTER_BYTES, recognised
from foreign import SYSTEMS

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4988025760\n" % (b"0123456789abcdef" * 4)
CONTENT = {
    "Git LFS pointer": POINTER,
    "HTML page": b"\n <!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n" + b" " * 5000,
    "XML document": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "GGUF file": b"GGUF\3\0\0\0" + bytes(1000),
    "HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(1000),
    "zip": b"PK\3\4\0\0\x08\x08" + bytes(1000),
    "before torch 1.6": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(1000),
    "gzip": b"\x1f\x8b\x08" + bytes(100),
    "numpy": b"\x93NUMPY\1\0" + bytes(1000),
    "Parquet file": b"PAR1" + bytes(1000),
}
LONG_AGO = 1_000_000_000


def listed(location: Path) -> Version:
    """Return the version of a location whose files are old."""
    for path in [location, *location.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    (version,) = list_versions(str(location)).versions
    return version


@pytest.mark.parametrize("what", CONTENT)
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_file_of_tensors_that_is_none(what: str, size: str, tmp_path: Path) -> None:
    """A `model.safetensors` that is something else says what; a small one does so in a listing already."""
    (tmp_path / "step_1").mkdir()
    more = bytes(1 << 20) if size == "large" else b""
    (tmp_path / "step_1/model.safetensors").write_bytes(CONTENT[what] + more)
    version = listed(tmp_path)
    if size == "small":
        assert version.state is State.UNREADABLE
        assert what in version.why_unreadable
    with pytest.raises(UnsupportedError, match=what):
        open_checkpoint(version)
    with pytest.raises(UnsupportedError, match=what):
        open_checkpoint(str(tmp_path / "step_1/model.safetensors"))
    (finding,) = (f for f in verify_version(version).findings if what in f.message)
    assert finding.code in {"other-format", "missing-file"}


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("safetensors/checkpoint-200", "model-00002-of-00003.safetensors"),
        ("safetensors/checkpoint-200", "model.safetensors.index.json"),
        ("dcp/torchrec/step_2", "__1_0.distcp"),
        ("dcp/torchrec/step_2", ".metadata"),
        ("tfra/step_3", "*-keys"),
        ("dynamicemb/step_2", "*_emb_values.rank_1*"),
        ("bundle/sharded", "model.ckpt-40.index"),
        ("bundle/sharded", "model.ckpt-40.data-00000-of-*"),
    ],
)
def test_a_pointer_in_a_step_tears_nothing(system: str, name: str, tmp_path: Path) -> None:
    """A clone without its large files is unreadable with the words of what to do, whichever file is a pointer."""
    step = Path(shutil.copytree(SYSTEMS / system, tmp_path / "step_2"))
    next(step.rglob(name)).write_bytes(POINTER)
    version = listed(tmp_path)
    assert version.state is State.UNREADABLE
    assert "run git lfs pull" in version.why_unreadable
    with pytest.raises(UnsupportedError, match="git lfs pull"):
        open_checkpoint(resolve(f"{tmp_path}@2"))


def test_a_clone_without_any_file(tmp_path: Path) -> None:
    """Where every large file of a step of torch is a pointer, its index too, it is no torn step."""
    step = Path(shutil.copytree(SYSTEMS / "dcp/torchrec/step_2", tmp_path / "step_2"))
    for path in step.iterdir():
        path.write_bytes(POINTER)
    assert listed(tmp_path).state is State.UNREADABLE


def test_pointers_have_the_size_of_pointers() -> None:
    """A pointer to a file of any size is one that is looked for, and tensors are nothing that is recognised."""
    for size in (1, 1 << 62):
        assert len(POINTER.replace(b"4988025760", b"%d" % size)) in POINTER_BYTES
    assert not recognised(b"")
    assert not recognised((1000).to_bytes(8, "little") + b'{"__metadata__": {}}')


ARCHIVES = {
    "a program of TorchScript": ("m/data/0", "m/data.pkl", "m/code/__torch__/m.py", "m/constants.pkl", "m/version"),
    "a program of torch.export": ("m/data/weights/weight_0", "m/models/model.json", "m/archive_format"),
    r"a \.keras archive": ("metadata.json", "config.json", "model.weights.h5"),
    r"a \.npz file of numpy": ("user.ids.npy", "bias.npy"),
    "a zip": ("a.txt", "b.txt"),
}


@pytest.mark.parametrize("what", ARCHIVES)
@pytest.mark.parametrize("name", ["model.pt", "model.bin", "model.zip"])
def test_a_zip_of_another_tool(what: str, name: str, tmp_path: Path) -> None:
    """Zips are told apart by the names of their members, whatever name the file has."""
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for member in ARCHIVES[what]:
            archive.writestr(member, bytes(600))
    with pytest.raises(UnsupportedError, match=f"this is {what}"):
        open_checkpoint(str(tmp_path / name))
