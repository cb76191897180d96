"""What is a version, which number it has, and which is the newest: names, records and neighbours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from bundle_files import write_bundle
from edl_ckpt.core import add_tag, list_versions, resolve
from edl_ckpt.core.base.errors import IncompleteError, NotFoundError, UsageError
from edl_ckpt.core.catalog.files import directory_alone
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state.paths import described_key, stored_key, version_file
from edl_ckpt.core.storage import Location
from places import TOP


def bundle(folder: Path, prefix: str) -> None:
    """Write a bundle of one variable."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder / prefix, {"w": np.arange(3, dtype="<f4")})


def keys(folder: Path) -> list[int | str]:
    return [version.key for version in list_versions(str(folder)).versions]


def record(folder: Path, text: str) -> None:
    (folder / "checkpoint").write_text(text)


def safe(folder: Path) -> None:
    """Write a file of safetensors with one tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    header = b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
    data = np.arange(3, dtype="<f4").tobytes()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def latest_checkpoint(folder: Path) -> str | None:
    """Return what tf.train.latest_checkpoint does: tensorflow/python/checkpoint/checkpoint_management.py."""
    from edl_ckpt.core.sources.bundle.state_file import parse_state

    file = folder / "checkpoint"
    try:
        newest = parse_state(file.read_bytes()).newest if file.exists() else ""
    except ValueError:
        return None
    path = os.path.join(folder, newest)
    return path if newest and os.path.exists(f"{path}.index") else None


def latest(folder: Path) -> Version:
    return resolve(f"{folder}@latest")


def test_the_record_decides_among_names_without_numbers(tmp_path: Path) -> None:
    """Keras' names with a loss have no number, and the newest is the one that TensorFlow would load."""
    for name in ("weights.01-0.71", "weights.10-0.32", "weights.02-0.35"):
        bundle(tmp_path, name)
    record(tmp_path, 'model_checkpoint_path : "weights.10-0.32"')
    assert latest(tmp_path).path == latest_checkpoint(tmp_path)
    assert latest(tmp_path).key == "weights.10-0.32"
    assert {version.number for version in list_versions(str(tmp_path)).versions} == {None}
    assert resolve(f"{tmp_path}@weights.02-0.35").name == "weights.02-0.35"


def test_without_a_record_names_without_numbers_are_in_order_of_time(tmp_path: Path) -> None:
    """The one that was written last is the newest; none is hidden."""
    for age, name in enumerate(("critic", "actor", "value")):
        bundle(tmp_path, name)
        for file in tmp_path.glob(f"{name}.*"):
            os.utime(file, (1e9 - age, 1e9 - age))
    assert keys(tmp_path) == ["value", "actor", "critic"]


def test_a_record_wins_over_a_higher_number(tmp_path: Path) -> None:
    """After a restart with a lower count, the newest is what TensorFlow says."""
    for number in (5, 7, 90):
        bundle(tmp_path, f"ckpt-{number}")
    record(tmp_path, 'model_checkpoint_path: "ckpt-7" all_model_checkpoint_paths: ["ckpt-90", "ckpt-5", "ckpt-7"]')
    assert keys(tmp_path) == [90, 5, 7]
    assert latest(tmp_path).path == latest_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('model_checkpoint_path: "ckpt-8"', "which is not there"),
        ('model_checkpoint_path: "other/ckpt-7"', "which is not there"),
        ("ckpt-7", "TensorFlow cannot read this file"),
        ("", "names no newest"),
    ],
)
def test_where_tensorflow_loads_nothing_there_is_no_latest(tmp_path: Path, text: str, words: str) -> None:
    """The error has the reason; a number still names a version."""
    bundle(tmp_path, "ckpt-7")
    bundle(tmp_path, "ckpt-6")
    record(tmp_path, text)
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(NotFoundError, match=words):
        latest(tmp_path)
    assert list_versions(str(tmp_path)).newest is None
    assert resolve(f"{tmp_path}@7").version == 7


def test_a_record_of_a_version_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """TensorFlow would try to load it; the whole one before it is not what was asked for."""
    bundle(tmp_path, "ckpt-6")
    bundle(tmp_path, "ckpt-7")
    record(tmp_path, 'model_checkpoint_path: "ckpt-7"')
    next(tmp_path.glob("ckpt-7.data-*")).unlink()
    with pytest.raises(IncompleteError, match="names 7"):
        latest(tmp_path)


def test_a_record_of_another_place_is_refused_while_that_is_there(tmp_path: Path) -> None:
    """An absolute path counts as TensorFlow takes it; only when it leads to nothing was the location moved."""
    bundle(tmp_path / "old", "ckpt-7")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    record(tmp_path / "new", f'model_checkpoint_path: "{tmp_path}/old/ckpt-7"')
    with pytest.raises(NotFoundError, match="in another place"):
        latest(tmp_path / "new")
    shutil.rmtree(tmp_path / "old")
    assert latest(tmp_path / "new").version == 7


def test_two_versions_of_one_number_share_nothing(tmp_path: Path) -> None:
    """Each is named in a warning, can be referred to by its name, and has tags of its own."""
    safe(tmp_path / "step_5")
    safe(tmp_path / "checkpoint-5")
    with pytest.raises(UsageError, match="version 5 exists twice"):
        resolve(f"{tmp_path}@5")
    add_tag(resolve(f"{tmp_path}@step_5"), "good")
    add_tag(resolve(str(tmp_path / "checkpoint-5")), "other")
    tags = {version.name: version.tags for version in list_versions(str(tmp_path)).versions}
    assert tags == {"step_5": ("good",), "checkpoint-5": ("other",)}
    assert any("step_5" in problem and "checkpoint-5" in problem for problem in list_versions(str(tmp_path)).problems)


def test_a_directory_with_steps_below_it_is_no_step_and_no_checkpoint(tmp_path: Path) -> None:
    """Numbered runs, and runs of any name, are parents: nothing of them is one complete version."""
    for run in ("0", "1", "run_1"):
        for step in (100, 200):
            safe(tmp_path / run / "checkpoints" / f"step_{step}")
    assert keys(tmp_path) == []
    assert directory_alone(Location(str(tmp_path))) is None
    assert keys(tmp_path / "run_1" / "checkpoints") == [100, 200]


def test_directories_of_unknown_names_are_versions_by_themselves(tmp_path: Path) -> None:
    """They are not merged into one; links, parts and empty directories are none."""
    for name in ("final", "2024-01-02", "step_3"):
        safe(tmp_path / name)
    (tmp_path / "logs").mkdir()
    (tmp_path / "latest").symlink_to("step_3")
    assert set(keys(tmp_path)) == {"final", "2024-01-02", 3}
    assert latest(tmp_path).version == 3
    safe(tmp_path / "parts" / "unet")
    safe(tmp_path / "parts" / "vae")
    assert keys(tmp_path / "parts") == []
    assert directory_alone(Location(str(tmp_path / "parts"))) is not None


def test_a_directory_of_elasticdls_name_without_a_shard_is_no_version(tmp_path: Path) -> None:
    """Lightning's logs are named so; an empty directory may be a version that begins."""
    (tmp_path / "version_0" / "checkpoints").mkdir(parents=True)
    (tmp_path / "version_0" / "hparams.yaml").write_text("{}")
    (tmp_path / "version_1").mkdir()
    assert keys(tmp_path) == [1]


def test_a_time_in_the_future_is_not_written_for_ever(tmp_path: Path) -> None:
    """A clock that was wrong leaves an incomplete step, and no step that is being written."""
    bundle(tmp_path, "ckpt-7")
    next(tmp_path.glob("ckpt-7.data-*")).unlink()
    os.utime(tmp_path / "ckpt-7.index", (4e9, 4e9))
    assert [version.state for version in list_versions(str(tmp_path)).versions] == [State.INCOMPLETE]


@pytest.mark.parametrize("name", ["weights.10-0.32", "location", "index", "100", "100.seal", "模型", "a b", "x" * 255])
def test_metadata_of_a_name_is_in_a_file_of_its_own(name: str) -> None:
    """No name is that of a number, of a seal or of the location, and each is found again."""
    file = version_file(name).rpartition("/")[2]
    assert file.isascii()
    assert len(file) < 255
    assert file.startswith("named-")
    assert described_key(file) == stored_key(name)


def test_the_page_on_names_has_every_spelling() -> None:
    """What people read is what the program does."""
    from edl_ckpt.core.sources.steps.spellings import DIRECTORIES, PREFIXES

    page = (TOP / "docs" / "names-of-versions.md").read_text()
    for spelling in (*DIRECTORIES, *PREFIXES):
        assert all(f"`{name}`" in page for name in spelling.examples), spelling.family


def test_an_unreadable_entry_with_a_bare_number_is_a_version_only_where_others_are(tmp_path: Path) -> None:
    """The open files of a process in /proc are links by numbers that cannot be followed."""
    place = tmp_path / "fd"
    place.mkdir()
    for number in (0, 1, 2):
        (place / str(number)).symlink_to(str(number))  # it leads to itself, so it cannot be looked at
    assert not list_versions(place).versions
    shutil.copytree(TOP / "tests/data/systems/dcp/torchrec/step_2", place / "7")
    assert [(v.version, v.state) for v in list_versions(place).versions] == [
        (0, State.UNREADABLE),
        (1, State.UNREADABLE),
        (2, State.UNREADABLE),
        (7, State.COMPLETE),
    ]
