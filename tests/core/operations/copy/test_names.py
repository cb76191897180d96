"""Versions that only their names tell from others, copied, sealed and written anew: the name stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bundle_files import write_bundle
from edl_ckpt.core import (
    Changes,
    CopyResult,
    add_tag,
    convert_version,
    execute_copy,
    list_versions,
    plan_copy,
    recover,
    resolve,
    seal_version,
    set_metrics,
    verify_version,
)
from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.commit.journal import Journal, parse_journal
from edl_ckpt.core.commit.repair.recovery import forget_gone, location_lock
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.copy import execute
from edl_ckpt.core.state.paths import (
    is_resumable,
    metadata_owner,
    resumable_stage,
    resumed_number,
    seal_file,
    sealed_version,
    stored_key,
    version_file,
)
from edl_ckpt.core.storage import Location
from s3_fixtures import Bucket

_NAMES = ("weights.01-0.71", "weights.02-0.35", "weights.10-0.32")


@pytest.fixture
def keras(tmp_path: Path) -> Path:
    """A location as Keras' ModelCheckpoint leaves it, with TensorFlow's record."""
    place = tmp_path / "keras"
    place.mkdir()
    for number, name in enumerate(_NAMES):
        write_bundle(place / name, {"w": np.full(3, number, "<f4")})
        for file in place.glob(f"{name}.*"):
            os.utime(file, (1e9 + number, 1e9 + number))
    (place / "checkpoint").write_text(f'model_checkpoint_path: "{_NAMES[-1]}"')
    return place


def copy_versions(versions: Sequence[Version], out: str | Path) -> CopyResult:
    return execute_copy(plan_copy(versions, str(out)))


def seal(version: Version) -> None:
    """Seal a version as `verify --seal` does."""
    seal_version(version, verify_version(version, level="deep").fingerprint or "")


def _keys(place: object) -> list[int | str]:
    return [version.key for version in list_versions(str(place)).versions]


def test_the_name_stays_on_copy(keras: Path, tmp_path: Path) -> None:
    """Files, metadata and a seal go along under the name; the same copy again has nothing to do."""
    wanted = resolve(f"{keras}@{_NAMES[2]}")
    add_tag(wanted, "good")
    set_metrics(wanted, {"auc": 0.5})
    out = tmp_path / "out"
    copy_versions([resolve(f"{keras}@{_NAMES[2]}")], out)
    (copied,) = list_versions(str(out)).versions
    assert (copied.key, copied.tags, copied.metrics) == (_NAMES[2], ("good",), {"auc": 0.5})
    assert copied.fingerprint
    assert copied.sizes == wanted.sizes
    checked = verify_version(copied, level="deep")
    assert (checked.ok, checked.sealed) == (True, True)
    again = copy_versions([resolve(f"{keras}@good")], out)
    assert [one.skipped for one in again.copied] == [True]


@pytest.mark.parametrize("far", [False, True])
def test_all_of_them_are_copied(keras: Path, tmp_path: Path, s3: Bucket, far: bool) -> None:
    """To a disk and to object storage: each by itself, in an order, and nothing of ours is left half done."""
    out = s3.url if far else str(tmp_path / "out")
    copy_versions(list(list_versions(str(keras)).versions), out)
    assert sorted(map(str, _keys(out))) == sorted(_NAMES)
    assert all(version.fingerprint for version in list_versions(out).versions)
    copy_versions(list(list_versions(out).versions), tmp_path / "back")
    assert {p.name: p.read_bytes() for p in (tmp_path / "back").glob("weights*")} == {
        p.name: p.read_bytes() for p in keras.glob("weights*")
    }


def test_an_interrupted_copy_resumes(keras: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits under its name, `recover` keeps it and says so, and `--drop-copies` discards it."""
    version, out = resolve(f"{keras}@{_NAMES[0]}"), tmp_path / "out"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for drop in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(execute, "confirm_sums", killed)
            with pytest.raises(KeyboardInterrupt):
                copy_versions([version], out)
        stages = os.listdir(out / ".edl-ckpt-0/stage-0")
        assert stages == [f"copy-named-{_NAMES[0]}"]
        done = recover(str(out), drop_copies=drop)
        assert any(_NAMES[0] in line for line in (*done.done, *done.kept))
        assert (out / ".edl-ckpt-0/stage-0").exists() is not drop
    copy_versions([version], out)
    assert _keys(out) == [_NAMES[0]]


def test_a_version_with_a_name_is_sealed(keras: Path) -> None:
    """`verify --seal` seals it by its name; then a changed byte is an error, and its neighbours have no seal."""
    version = resolve(f"{keras}@{_NAMES[1]}")
    seal(version)
    sealed = {v.name: bool(v.fingerprint) for v in list_versions(str(keras)).versions}
    assert sealed == {_NAMES[0]: False, _NAMES[1]: True, _NAMES[2]: False}
    data = keras / f"{_NAMES[1]}.data-00000-of-00001"
    data.write_bytes(data.read_bytes() + b"x")
    assert resolve(f"{keras}@{_NAMES[1]}").seal_fault
    assert not verify_version(resolve(f"{keras}@{_NAMES[1]}")).ok


def test_a_seal_goes_with_its_name(keras: Path) -> None:
    """What forgets the metadata of a gone name forgets its seal, and no seal of another name."""
    for name in _NAMES[:2]:
        seal(resolve(f"{keras}@{name}"))
    for file in keras.glob(f"{_NAMES[0]}.*"):
        file.unlink()
    with location_lock(Location(str(keras)), "test") as locked:
        assert forget_gone(locked.store, ()) == []
    names = {name for name in os.listdir(keras / ".edl-ckpt-0/meta-0") if name.startswith("sealed-")}
    assert names == {f"sealed-{_NAMES[1]}.json"}


def test_a_reshard_keeps_the_name(keras: Path, tmp_path: Path) -> None:
    """Written at another location it has the name, its metadata and a seal; in its own place it is refused."""
    version = resolve(f"{keras}@{_NAMES[2]}")
    add_tag(version, "good")
    out = tmp_path / "out"
    result = convert_version(resolve(f"{keras}@good"), 2, output=out, changes=Changes())
    assert (result.ref, result.version) == (f"{out}@{_NAMES[2]}", None)
    (written,) = list_versions(str(out)).versions
    assert (written.key, written.tags) == (_NAMES[2], ("good",))
    assert verify_version(written, level="deep").sealed
    with pytest.raises(RefusedError, match="exists there already"):
        convert_version(resolve(f"{keras}@good"), 2, output=out)
    for place in (keras, out):
        with pytest.raises(RefusedError, match="no number of its own"):
            convert_version(resolve(f"{place}@{_NAMES[2]}"), 1)


def test_one_bundle_of_a_location_with_state_has_its_name(keras: Path) -> None:
    """A directory with one bundle is a checkpoint by itself only until somebody has recorded something there."""
    for name in _NAMES[:2]:
        for file in keras.glob(f"{name}.*"):
            file.unlink()
    assert _keys(keras) == []
    shutil.copytree(keras, keras / "../other")
    (keras / ".edl-ckpt-0").mkdir()
    assert _keys(keras) == [_NAMES[2]]


@pytest.mark.parametrize("name", ["final", "x.seal", "copy-3", "a~b", "a%b", "x" * 250, "ü"])
def test_files_of_names_are_of_one_name(name: str) -> None:
    """The seal of a name is the metadata of no other one, and no number is read out of a name."""
    seal, own = (file(name).rpartition("/")[2] for file in (seal_file, version_file))
    assert sealed_version(seal) == stored_key(name)
    assert sealed_version(own) is None
    assert metadata_owner(seal) is None
    assert seal != own
    stage = resumable_stage(name)
    assert is_resumable(stage)
    assert resumed_number(stage) is None


@pytest.mark.parametrize(
    "journal",
    [
        Journal(-1, "src", deletes=("a",)),
        Journal(-1, "src", old=("a",)),
        Journal(-1, "src/main", sizes={"a": 1}),
        Journal(-1, "..", sizes={"a": 1}),
        Journal(-1, ".edl-ckpt-0", sizes={"a": 1}),
        Journal(-1, "src", sizes={"a": 1}, trash="x"),
    ],
)
def test_no_journal_of_a_name_deletes(journal: Journal) -> None:
    """The journal of a version without a number is one of a new copy, right in the location, and nothing else."""
    with pytest.raises(ValueError, match="damaged journal"):
        parse_journal(journal.to_bytes())
    assert parse_journal(Journal(-1, "src", sizes={"a": 1}).to_bytes()).key == "src"
