"""Hidden files, files of a host, and links in a step: no format claims them, and they tear nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions, open_checkpoint, resolve
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.catalog.files import directory_alone
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.location import Location
from foreign import SYSTEMS

STEPS = {
    "dcp": ("dcp/torchrec/step_2", "__0_0.distcp"),
    "safetensors": ("safetensors/checkpoint-200", "model-00001-of-00003.safetensors"),
    "tfra": ("tfra/step_3", ""),
    "dynamicemb": ("dynamicemb/step_2", ""),
}
HOST = ["._{}", ".nfs0000000000a1{}", ".fuse_hidden00{}", ".{}", ".{}.Xa3f9"]


def step_of(system: str, tmp_path: Path) -> Path:
    """Return a copy of a step, in a location of its own."""
    return Path(shutil.copytree(SYSTEMS / STEPS[system][0], tmp_path / "run/step_7"))


def listed(step: Path) -> Version:
    """Return the version of a location that has one."""
    (version,) = list_versions(str(step.parent)).versions
    return version


def facts(version: Version) -> tuple[object, ...]:
    """Return what formats say of a version."""
    names = [[version.name_of(file.path) for file in shard.files[:1]] for shard in version.shards]
    return version.state, version.ps_num, version.lacks, names


@pytest.mark.parametrize("system", STEPS)
@pytest.mark.parametrize("spelling", HOST)
def test_files_of_a_host_are_not_claimed(system: str, spelling: str, tmp_path: Path) -> None:
    """A file that a Mac or a file server has put beside each file of a step changes nothing that is said or read."""
    step = step_of(system, tmp_path)
    before, names = facts(listed(step)), open_names(step)
    for path in [path for path in step.rglob("*") if path.is_file()]:
        path.with_name(spelling.format(path.name)).write_bytes(b"\0\5\x16\7" + bytes(4092))
    (step / "Thumbs.db").write_bytes(b"x")
    (step / ".DS_Store").write_bytes(b"x")
    assert facts(listed(step)) == before
    assert open_names(step) == names
    inside = {listed(step).name_of(file.path) for file in listed(step).files}
    assert not [name for name in inside if "._" in name or ".nfs" in name or name in {"Thumbs.db", ".DS_Store"}]


def open_names(step: Path) -> list[str]:
    """Return the names of all variables and tables of a step."""
    with open_checkpoint(listed(step)) as checkpoint:
        return [*checkpoint.variable_names, *checkpoint.table_names]


def test_files_of_a_host_beside_a_bundle(tmp_path: Path) -> None:
    """`._model.ckpt-7.index` beside a bundle in a location is no second version of the number."""
    source = next((SYSTEMS / "bundle").rglob("*.index"))
    for path in source.parent.glob(f"{source.stem}*"):
        shutil.copy(path, tmp_path / path.name.replace(source.stem, "model.ckpt-7"))
        (tmp_path / f"._{path.name.replace(source.stem, 'model.ckpt-7')}").write_bytes(bytes(4096))
    assert [version.version for version in list_versions(str(tmp_path)).versions] == [7]


@pytest.mark.parametrize("system", STEPS)
def test_a_link_that_leads_nowhere(system: str, tmp_path: Path) -> None:
    """A link that no format claims, and that leads nowhere or in a circle, makes no step unreadable."""
    step = step_of(system, tmp_path)
    before = facts(listed(step))
    (step / "wandb").mkdir()
    (step / "wandb/latest-run").symlink_to("gone")
    (step / "circle").symlink_to("circle")
    assert facts(listed(step)) == before
    assert open_names(step)


@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata"])
def test_a_link_to_values_that_leads_nowhere(name: str, tmp_path: Path) -> None:
    """A link to a file of the format, whose target is gone, makes a step unreadable: its disk may come back."""
    step = step_of("dcp", tmp_path)
    shutil.move(step / name, tmp_path / "away")
    (step / name).symlink_to(tmp_path / "away")
    assert listed(step).state is State.COMPLETE
    shutil.move(tmp_path / "away", tmp_path / "gone")
    assert listed(step).state is State.UNREADABLE
    with pytest.raises(NotFoundError):
        open_checkpoint(listed(step))


def test_links_to_directories_are_not_followed(tmp_path: Path) -> None:
    """A link to a directory, to one above it among them, adds nothing to a step, and a listing ends."""
    step = step_of("dcp", tmp_path)
    before = facts(listed(step)), listed(step).size_bytes
    (step / "up").symlink_to("..")
    (step / "all").symlink_to("/")
    for number in range(6):
        (step / f"l{number}").symlink_to(".")
    assert (facts(listed(step)), listed(step).size_bytes) == before
    assert len(open_store(str(step.parent)).entries(lambda _: True)) < 40
    alone = directory_alone(Location(str(step)))
    assert alone is not None
    assert (alone.state, alone.size_bytes) == (State.COMPLETE, before[1])


def test_a_version_that_is_a_link_is_followed(tmp_path: Path) -> None:
    """A step that is itself a link is a version, as before."""
    step = step_of("dcp", tmp_path)
    (step.parent / "step_9").symlink_to("step_7")
    assert [v.version for v in list_versions(str(step.parent)).versions] == [7, 9]
    assert resolve(f"{step.parent}@9").linked
    os.unlink(step.parent / "step_9")
    (step.parent / "step_9").symlink_to("gone")
    with pytest.raises(EdlCkptError):
        open_checkpoint(f"{step.parent}@9")
