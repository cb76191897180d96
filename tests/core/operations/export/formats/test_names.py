"""The names of an export: of files and of members of an archive, whatever the names of variables are."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core import save_checkpoint
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.operations.export import export_version
from edl_ckpt.core.operations.export.formats.arrays import escaped_file_name, file_names, member_names, original_name
from edl_ckpt.core.operations.importing import import_arrays


@given(st.text(max_size=30))
def test_file_names(name: str) -> None:
    """Any name becomes one harmless component of a path, and back."""
    if any(0xD800 <= ord(c) < 0xE000 for c in name):
        return
    written = escaped_file_name(name)
    assert original_name(written) == name
    assert "/" not in written
    assert "\\" not in written
    assert "\0" not in written
    assert written[0] != "."
    assert written.isascii() or not name.isascii()
    assert written.partition(".")[0].upper() not in {"CON", "NUL", "COM1", "LPT9"}


NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=600), st.sampled_from(["a", "A", "x" * 500, ".."])
)


@given(st.lists(NAMES, unique=True, max_size=8))
def test_files_of_any_names(names: list[str]) -> None:
    """Any names become names of different files, where case does not count too, and none is too long."""
    files = file_names(names)
    assert list(files) == names
    assert len({file.casefold() for file in files.values()}) == len(names)
    for name, file in files.items():
        assert file == escaped_file_name(name) or "~" in file
        assert 0 < len(file.encode()) <= 200
        assert not {"/", "\\", "\0"} & set(file)
        assert file not in {".", ".."}
    assert file_names(reversed(names)).keys() == files.keys()


HOSTILE = {
    "dense/kernel:0": "dense/kernel:0",
    "../../etc/passwd": "%2E./%2E./etc/passwd",
    "/etc/passwd": "%2Fetc/passwd",
    "a/./b/..": "a/%2E/b/%2E.",
    "...": "...",
    "..a/.b": "..a/.b",
    "a\\b": "a%5Cb",
    "a\0b": "a%00b",
    "a%00b": "a%00b~",
    "a": "a",
    "a.npy": "a%2Enpy",
    "b.npy": "b.npy",
    "__edl_ckpt__": "%5F_edl_ckpt__",
    "index.json": "index.json",
    "": "",
    "密集/核:0": "密集/核:0",
    "CON": "CON",
    "A": "A",
    "x" * 70_000: "x" * 79 + "~",
}
"""Names, and the keys that numpy has for them; what ends in ~ goes on with a digest."""


def test_keys_of_npz(tmp_path: Path) -> None:
    """The keys of an .npz are the names themselves, but for what an archive cannot have, and each is an array.

    Who unpacks it gets no file outside of the directory, and what is imported again is equal.
    """
    variables = {name: np.full(2, k) for k, name in enumerate(HOSTILE)}
    run = save_checkpoint(str(tmp_path / "run"), 1, 2, variables=variables, tables={})
    export_version(run, str(tmp_path / "m.npz"))
    with np.load(tmp_path / "m.npz") as archive:
        assert all(isinstance(array, np.ndarray) for array in archive.values())
        index = json.loads(archive["__edl_ckpt__"].tobytes())["tensors"]
        for name, key in HOSTILE.items():
            written = index[name]["file"].removesuffix(".npy")
            assert written.startswith(key) if key.endswith("~") else written == key
            assert archive[written].tolist() == variables[name].tolist()
    with zipfile.ZipFile(tmp_path / "m.npz") as file:
        assert not any(".." in name.split("/") or name.startswith("/") for name in file.namelist())
    imported = import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "new"), 1, 3)
    assert imported.fingerprint == run.fingerprint


@given(st.lists(NAMES | st.sampled_from(list(HOSTILE)), unique=True, max_size=8))
def test_members_of_any_names(names: list[str]) -> None:
    """Any names become keys that numpy tells apart, and the members of no two are one."""
    members = member_names(names)
    assert list(members) == names
    files = {f"{key}.npy" for key in members.values()}
    assert len(files) == len(names)
    assert files.isdisjoint(members.values())
    assert not any("\0" in key or "\\" in key or key.startswith("/") for key in members.values())


def test_a_name_that_is_the_short_one_of_another() -> None:
    """A name that looks like the shortened one of another gets a file of its own, in either order."""
    long = "x" * 500
    short = file_names([long])[long]
    for names in ([short, long], [long, short]):
        files = file_names(names)
        assert len({file.casefold() for file in files.values()}) == 2


@pytest.mark.parametrize("sharded", [False, True])
def test_the_key_of_the_header_is_no_name(tmp_path: Path, sharded: bool) -> None:
    """A tensor named as safetensors' own texts would make a file that nothing reads: refused before it is written."""
    values = {"__metadata__": np.zeros(4, np.float32), "w": np.ones(4, np.float32)}
    save_checkpoint(str(tmp_path / "run"), 1, 1, variables=values, tables={}, layout="elasticdl")
    limit = 20 if sharded else None
    with pytest.raises(UnsupportedError, match="safetensors cannot have a tensor named '__metadata__'"):
        export_version(f"{tmp_path / 'run'}@1", str(tmp_path / "m.safetensors"), max_shard_bytes=limit)
    assert not (tmp_path / "m.safetensors").exists()
    renamed = export_version(
        f"{tmp_path / 'run'}@1", str(tmp_path / "m.safetensors"), rename=(("__metadata__", "texts"),)
    )
    assert renamed.variables == 2


def test_half_of_a_surrogate_pair_is_escaped_in_an_archive() -> None:
    """Half of a surrogate pair, which UTF-8 lacks, is escaped in an archive."""
    assert member_names(["a\udc80"]) == {"a\udc80": "a%DC80"}
