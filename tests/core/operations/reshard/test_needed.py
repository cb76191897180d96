"""A reshard that was made before is found, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from checkpoints import only
from edl_ckpt.core import (
    convert_version,
    find_resharded,
    list_versions,
    open_checkpoint,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.operations.verify.check import verify_and_seal
from edl_ckpt.core.reading.part_records import records_of
from foreign import SYSTEMS
from places import GOLDEN
from program import document, edl
from reporters import Recorder


@pytest.fixture
def run(tmp_path: Path) -> Version:
    """Return a version with two shards."""
    tables = {"t": Table(np.arange(100), np.ones((100, 4), np.float32))}
    return save_checkpoint(str(tmp_path / "run"), 7, 2, variables={"v": np.ones(3)}, tables=tables)


def state(place: Path) -> dict[str, tuple[int, int]]:
    """Return the inodes and times of all files below a directory."""
    found = ((p, p.stat()) for p in place.rglob("*") if p.is_file())
    return {str(p): (stat.st_ino, stat.st_mtime_ns) for p, stat in found}


def test_in_place(run: Version, tmp_path: Path) -> None:
    """A version with the right number of shards is left as it is; with another number there is work to do."""
    assert find_resharded(run, 4) is None
    before = state(tmp_path)
    made = find_resharded(run, 2)
    assert made is not None
    assert (made.needed, made.from_ps, made.to_ps, made.rows, made.bytes_written) == (False, 2, 2, 100, 0)
    assert made.fingerprint == run.fingerprint
    assert [shard.path for shard in made.shards] == [shard.path for shard in run.shards]
    assert find_resharded(run, 2, layout="elasticdl") is None
    assert state(tmp_path) == before


def test_old_generations() -> None:
    """Shards that ElasticDL of today cannot read are work to do, although their number is right."""
    assert find_resharded(only(GOLDEN / "legacy/v1"), only(GOLDEN / "legacy/v1").ps_num or 0) is None


def test_at_an_output(run: Version, tmp_path: Path) -> None:
    """At an output, the version of this number is the same content, with a seal or without; another one is not."""
    out = str(tmp_path / "out")
    assert find_resharded(run, 3, output=out) is None
    reshard_version(run, 3, output=out)
    made = find_resharded(run, 3, output=out)
    assert made is not None
    assert made.from_ps == 2
    for seal in tmp_path.rglob("7.seal.json"):
        seal.unlink()
    assert find_resharded(only(tmp_path / "run"), 3, output=out) is not None
    assert find_resharded(run, 4, output=out) is None
    save_checkpoint(str(tmp_path / "other"), 7, 3, variables={"v": np.zeros(3)}, tables={})
    assert find_resharded(run, 3, output=str(tmp_path / "other")) is None


def test_damage_is_not_taken_for_work_done(run: Version) -> None:
    """A shard that was cut is an error, not the right number of shards."""
    os.truncate(run.shards[1].path, 20)
    with pytest.raises(CorruptError):
        find_resharded(only(Path(run.location.url)), 2)


def test_command(run: Version, tmp_path: Path) -> None:
    """An init container that runs twice reshards once, and ends with 0; the document says that nothing was needed."""
    place = tmp_path / "run"
    first = document("reshard", place, "--ps", "4", "--if-needed")
    before = state(place)
    second = document("reshard", place, "--ps", "4", "--if-needed")
    assert (first["needed"], second["needed"]) == (True, False)
    assert (second["fingerprint"], second["shards"]) == (first["fingerprint"], first["shards"])
    assert state(place) == before
    assert "has 4 shards already: nothing to do" in edl("reshard", place, "--ps", "4", "--if-needed").stdout
    words = ("reshard", place, "--ps", "3", "--output", tmp_path / "out", "--if-needed")
    assert [document(*words)["needed"] for _ in range(2)] == [True, False]
    assert verify_version(only(place)).ok
    assert verify_version(only(tmp_path / "out")).ok
    failed = edl("reshard", place, "--ps", "0", "--if-needed", "--json")
    assert (failed.returncode, json.loads(failed.stderr)["id"]) == (2, "usage")


@pytest.mark.parametrize("system", ["bundle/objects", "bundle/deeprec"])
def test_another_system_has_what_it_can_hold(tmp_path: Path, system: str) -> None:
    """Items and records of parts stay behind in another system: the reshard was made all the same."""
    shutil.copytree(SYSTEMS / system, tmp_path / "in")
    version = list_versions(str(tmp_path / "in")).versions[0]
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.item_names or records_of(checkpoint)
    out = str(tmp_path / "out")
    assert find_resharded(version, 2, output=out) is None
    reshard_version(version, 2, output=out, reporter=Recorder())
    assert find_resharded(version, 2, output=out) is not None
    verify_and_seal(version)
    assert find_resharded(list_versions(str(tmp_path / "in")).versions[0], 2, output=out) is not None


def test_other_parts_of_a_bundle_are_the_same_content(tmp_path: Path) -> None:
    """A bundle that was cut into other parts has other records, and nothing else that is new."""
    shutil.copytree(SYSTEMS / "bundle/deeprec", tmp_path / "in")
    version = list_versions(str(tmp_path / "in")).versions[0]
    convert_version(version, 3, output=str(tmp_path / "out"), reporter=Recorder())
    assert find_resharded(version, 3, output=str(tmp_path / "out")) is not None
