"""What cannot be read now is not absent, and one version that nobody can read ends nothing but its own line."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import list_versions, open_checkpoint, resolve, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.catalog.files import alone_at, directory_alone
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.sources.bundle import format as bundle_format
from edl_ckpt.core.sources.hostile import hostile_bytes
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import Location
from fault_sweep import run_here
from foreign import SYSTEMS
from program import edl
from torch_checkpoints import SAVED
from torch_items import Saved, write_step
from zoo import settle, step_of

INNER = {
    "tfra": ("tfra/step_3", "TFRADynamicEmbedding"),
    "dynamicemb": ("dynamicemb/step_2", "dynamicemb"),
    "dcp": ("dcp/torchrec/step_2", "model"),
}


def unlistable(monkeypatch: pytest.MonkeyPatch, ending: str, error: int) -> None:
    """Let no directory whose path has this ending be listed."""
    scandir = os.scandir

    def failing(path: Any = ".") -> Any:
        if isinstance(path, str) and path.endswith(ending):
            raise OSError(error, os.strerror(error), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)


def two_steps(system: str, tmp_path: Path) -> tuple[Path, str]:
    """Return a location with the same step twice, in directories inside, and the name of the newer one's inner one."""
    source, inner = INNER[system]
    found = next(path for path in [SYSTEMS / source, *sorted((SYSTEMS / source).parent.glob("*"))] if path.is_dir())
    for number in (3, 5):
        step = tmp_path / f"step_{number}"
        shutil.copytree(found, step / inner if not (found / inner).exists() else step)
    return tmp_path, f"step_5/{inner}"


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("system", INNER)
def test_an_inner_directory_that_cannot_be_listed(
    system: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose inner directory cannot be listed is unreadable, and not absent; the others are as they were."""
    location, inner = two_steps(system, tmp_path)
    assert [version.state for version in list_versions(str(location)).versions] == [State.COMPLETE] * 2
    unlistable(monkeypatch, inner, error)
    listing = list_versions(str(location))
    assert [(v.version, v.state) for v in listing.versions] == [(3, State.COMPLETE), (5, State.UNREADABLE)]
    assert listing.unread


@pytest.mark.parametrize("system", INNER)
def test_a_location_is_no_checkpoint_for_a_fault(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A location is not taken for one checkpoint because its only step cannot be listed."""
    location, inner = two_steps(system, tmp_path)
    shutil.rmtree(location / "step_3")
    unlistable(monkeypatch, inner, errno.EIO)
    with pytest.raises(EdlCkptError):
        resolve(str(location))
    assert directory_alone(Location(str(location))) is None


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_an_index_that_cannot_be_read(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose index cannot be read now is unreadable, with the reason once, and nothing of it is called torn."""
    location, _ = two_steps("dcp", tmp_path)
    real = os.open

    def failing(path: Any, *words: Any, **more: Any) -> int:
        if str(path).endswith("step_5/model/.metadata"):
            raise OSError(error, os.strerror(error), path)
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", failing)
    _, version = list_versions(str(location)).versions
    assert (version.state, version.lacks) == (State.UNREADABLE, ())
    assert version.why_unreadable.count(".metadata") == 1
    assert "torn" not in version.why_not_good
    assert version.why_unreadable.lower().count("input/output error") == (error == errno.EIO)


def poisoned() -> Iterator[bytes]:
    """Yield an index of torch with each of its calls of a name replaced by another way to make an object."""
    data = (SAVED / "torchrec/step_2/.metadata").read_bytes()
    at = data.find(b"R", 128)
    while at >= 0:
        yield data[:at] + b"\x81" + data[at + 1 :]
        at = data.find(b"R", at + 1)


def test_one_poison_version_ends_nothing_but_its_own_line(tmp_path: Path) -> None:
    """Whatever the index of one step has, a listing shows all others, and its readers say that it is damaged."""
    for number in (1, 2):
        shutil.copytree(SAVED / "torchrec/step_2", tmp_path / f"step_{number}")
    for data in poisoned():
        (tmp_path / "step_2/.metadata").write_bytes(data)
        first, second = list_versions(str(tmp_path)).versions
        assert first.state is State.COMPLETE
        try:
            open_checkpoint(second).close()
            verify_version(second)
        except EdlCkptError:
            pass


def test_only_what_bytes_can_raise_is_damage() -> None:
    """Errors that bytes can cause name the file; errors that only code can cause stay what they are."""
    words = r"step_2: damaged in a way that its reader does not know \(KeyError\)"
    with pytest.raises(CorruptError, match=words), hostile_bytes("step_2"):
        raise KeyError("x")
    for error in (AssertionError(), NameError(), ImportError(), OSError(), MemoryError()):
        with pytest.raises(type(error)), hostile_bytes("step_2"):
            raise error


def test_a_tensor_without_elements_in_two_boxes(tmp_path: Path) -> None:
    """A tensor that has no elements, and that two ranks have a box of, is read; so is the rest of the step."""
    none, w = np.zeros((2, 0), np.float32), np.arange(6, dtype=np.float32)
    write_step(
        tmp_path / "step_1",
        [
            Saved("z", (4, 0), (0, 0), (2, 0), none, rank=0),
            Saved("z", (4, 0), (2, 0), (2, 0), none, rank=1),
            Saved("w", (6,), (0,), (6,), w, rank=1),
        ],
    )
    with open_checkpoint(f"{tmp_path}@1") as checkpoint:
        assert checkpoint["z"].shape == (4, 0)
        assert checkpoint["w"].tolist() == w.tolist()


def test_commands_about_all_versions_pass_a_poison_one(tmp_path: Path) -> None:
    """A version whose index is damaged in a way of its own ends no command about all versions of its location."""
    run = tmp_path / "run"
    for number in (1, 2, 3):
        shutil.copytree(SAVED / "torchrec/step_2", run / f"step_{number}")
    data = (run / "step_2/.metadata").read_bytes()
    (run / "step_2/.metadata").write_bytes(data.replace(b"storage_data", b"storage_datX"))
    for path in [run, *run.rglob("*")]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    for arguments in (
        ("list", run),
        ("verify", run, "--all"),
        ("copy", run, tmp_path / "copy", "--all"),
        ("prune", run, "--keep", "1", "--yes"),
    ):
        done = edl(*arguments)
        assert done.returncode in {0, 3, 5}, done.stderr
        assert "Traceback" not in done.stderr
    assert [version.version for version in list_versions(str(tmp_path / "copy")).versions] == [1, 3]
    assert 3 in [version.version for version in list_versions(str(run)).versions]


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_index_that_cannot_be_read_by_verify_is_no_missing_shard(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the storage while a bundle is opened ends the verification; it is no finding about the shards."""
    shutil.copytree(SYSTEMS / "bundle/deeprec", tmp_path / "step_1")
    (version,) = list_versions(str(tmp_path)).versions
    name = f"{version.name_of(version.shards[0].path).partition('.data')[0]}.index"

    def failing(reader: Any) -> Any:
        assert reader.path.endswith(name)
        with storage_errors(reader.path):
            raise OSError(error, os.strerror(error), reader.path)

    monkeypatch.setattr(bundle_format, "read_index_of", failing)
    with pytest.raises(EdlCkptError) as raised:
        verify_version(version, remember=False)
    assert raised.value.exit_code in {1, 11, 12}


@pytest.mark.parametrize("system", ["tfra", "safetensors"])
def test_a_step_that_cannot_be_listed_is_not_of_another_system(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step is cannot be said while it cannot be listed: `reshard` and `repair` say the error."""
    for number in (3, 5):
        step_of(system, tmp_path / "run", number)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    settle(tmp_path / "run")
    unlistable(monkeypatch, "step_5", errno.EIO)
    words = ("--max-shard-size", "1KiB") if system == "safetensors" else ("--ranks", "3")
    for command in (
        ("reshard", f"{tmp_path}/run@5", *words),
        ("repair", f"{tmp_path}/run@3", "--from", f"{tmp_path}/other@5", "--mix"),
    ):
        code, told = run_here(tmp_path, command)
        assert (code, "input/output error" in told) == (1, True), told


def test_the_files_that_were_written_are_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in a written step that cannot be listed once is listed again; when it stays so, that is the error."""
    step_of("tfra", tmp_path, 3)
    faults = [errno.EIO]
    scandir = os.scandir

    def failing(path: Any = ".") -> Any:
        if isinstance(path, str) and path.endswith("TFRADynamicEmbedding") and faults:
            raise OSError(faults.pop(), "Input/output error", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert alone_at(str(tmp_path / "step_3")).layout.system == "tfra"
    faults += [errno.EIO] * 9
    with pytest.raises(EdlCkptError, match="input/output error") as raised:
        alone_at(str(tmp_path / "step_3"))
    assert raised.value.exit_code == 1
