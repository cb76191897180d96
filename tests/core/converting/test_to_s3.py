"""Files of other systems in a bucket, and from a cluster: the bytes of a disk, proved, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bucket_parts import killed_midway, nothing_is_left, with_parts
from checkpoints import at, files_of, only, save_large
from edl_ckpt.core import (
    Changes,
    EdlCkptError,
    UnsupportedError,
    Version,
    convert_version,
    list_versions,
    recover,
    verify_version,
)
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.storage.files import PreallocatedFile
from foreign import SYSTEMS
from reporters import Recorder
from s3_fixtures import Bucket

STEPS = [
    ("dcp/torchrec", 2),
    ("dcp/everything", 3),
    ("dcp/mch", 6),
    ("bundle/deeprec", 100),
    ("bundle/partitioned", 30),
    ("tfra", 3),
    ("dynamicemb", 3),
    ("safetensors", 200),
]
IDS = [f"{folder}-{number}" for folder, number in STEPS]


def files_in(s3: Bucket, prefix: str) -> dict[str, bytes]:
    """Return the files of versions below a prefix of a bucket."""
    return {key.removeprefix(prefix): s3.get(key) for key in s3.keys(prefix) if ".edl-ckpt-0" not in key}


def versions_in(place: Path) -> dict[str, bytes]:
    """Return the files of versions below a directory."""
    return {name: data for name, data in files_of(place).items() if ".edl-ckpt-0" not in name}


def converted(version: Version, **how: Any) -> Any:
    """Convert a step for 3 ranks; safetensors have none."""
    is_set = version.layout.system == "safetensors"
    sized: dict[str, Any] = {"most_file_bytes": 512} if is_set else {}
    return convert_version(version, None if is_set else 3, **sized, **how)


@pytest.mark.parametrize(("folder", "number"), STEPS, ids=IDS)
def test_the_files_of_a_disk(s3: Bucket, tmp_path: Path, folder: str, number: int, small_parts: None) -> None:
    """A bucket gets the files that a disk gets, byte by byte, with a seal and the same result; and it is listed."""
    version = at(SYSTEMS / folder, number)
    here = converted(version, output=tmp_path / "out")
    there = converted(version, output=s3.url)
    assert files_in(s3, "run/") == versions_in(tmp_path / "out")
    assert (there.fingerprint, there.rows, there.items) == (here.fingerprint, here.rows, here.items)
    assert (there.untouched, there.checksums) == (here.untouched, here.checksums)
    nothing_is_left(s3)
    (made,) = list_versions(s3.url).versions
    found = verify_version(made, level="deep")
    assert (found.ok, found.sealed, found.fingerprint) == (True, True, here.fingerprint)


def test_what_differs_is_not_published(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new files do not read back as they were meant, the bucket has nothing of them."""

    def broken(*_: object) -> bytes:
        raise EdlCkptError("reads back differently")

    monkeypatch.setattr("edl_ckpt.core.moving.write.prove", broken)
    with pytest.raises(EdlCkptError, match="reads back differently"):
        converted(at(SYSTEMS / "dcp/torchrec", 2), output=s3.url)
    assert files_in(s3, "run/") == {}
    nothing_is_left(s3)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location with a step of dynamicemb whose files are several parts of an upload."""
    place = tmp_path_factory.mktemp("large")
    save_large(place / "run")
    changes = Changes(tables=("users",))
    convert_version(only(place / "run"), 2, output=place / "steps", system="dynamicemb", changes=changes)
    return place / "steps"


def test_a_killed_command(s3: Bucket, large: Path) -> None:
    """After a command that is killed nothing is visible; `recover` removes what it left, and the next one succeeds."""
    killed_midway(s3, "reshard", f"{large}@7", "--ranks", "1", "--output", s3.url)
    assert list_versions(s3.url).versions == ()
    recover(s3.url)
    nothing_is_left(s3)
    done = convert_version(only(large), 1, output=s3.url)
    here = convert_version(only(large), 1, output=large.parent / "here")
    assert files_in(s3, "run/") == versions_in(large.parent / "here")
    assert done.fingerprint == here.fingerprint


def test_in_place_is_refused(s3: Bucket) -> None:
    """On object storage old and new files of one name cannot both be there, so nothing is replaced."""
    converted(at(SYSTEMS / "dcp/torchrec", 2), output=s3.url)
    before = files_in(s3, "run/")
    (made,) = list_versions(s3.url).versions
    with pytest.raises(UnsupportedError, match="not replaced on object storage"):
        convert_version(made, 2)
    assert files_in(s3, "run/") == before


def test_what_is_there_stays(s3: Bucket) -> None:
    """A step of the same number in a bucket is never replaced by another one."""
    version = at(SYSTEMS / "dcp/torchrec", 2)
    converted(version, output=s3.url)
    before = files_in(s3, "run/")
    with pytest.raises(EdlCkptError, match="exists there already"):
        converted(version, output=s3.url)
    assert files_in(s3, "run/") == before


@pytest.mark.parametrize(("folder", "number"), STEPS, ids=IDS)
def test_a_cluster(tmp_path: Path, folder: str, number: int, client: Any) -> None:
    """The processes of a cluster write the same files."""
    version = at(SYSTEMS / folder, number)
    executor = ClusterExecutor(client)
    changes = Changes(cast=(("*", "float64"),)) if folder == "dcp/torchrec" else None
    here = converted(version, output=tmp_path / "here", changes=changes)
    there = converted(version, output=tmp_path / "there", changes=changes, executor=executor)
    assert versions_in(tmp_path / "there") == versions_in(tmp_path / "here")
    assert (there.fingerprint, there.untouched, there.overflowed) == (here.fingerprint, here.untouched, here.overflowed)
    every = here.checksums.compared + here.checksums.not_compared  # a cluster's own process reads them all by itself
    assert there.checksums.compared == every


def test_tables_of_a_bundle_in_many_tasks(
    large: Path, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task sums the rows that it writes, so that nobody reads a table again for its one checksum."""
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 18)
    version = only(large)
    convert_version(version, 2, output=tmp_path / "here", system="tensorflow")
    read: list[int] = []
    real = PreallocatedFile.read_into

    def counted(self: PreallocatedFile, offset: int, buffer: memoryview) -> None:
        read.append(len(buffer))
        real(self, offset, buffer)

    monkeypatch.setattr(PreallocatedFile, "read_into", counted)
    made = convert_version(version, 2, output=tmp_path / "there", system="tensorflow", executor=client)
    assert versions_in(tmp_path / "there") == versions_in(tmp_path / "here")
    assert read == [4 * 1001] * 2  # where the groups of DeepRec begin in each part, which no task writes
    assert verify_version(only(tmp_path / "there"), level="deep").fingerprint == made.fingerprint


@pytest.mark.parametrize(("folder", "number"), STEPS, ids=IDS)
def test_a_cluster_and_a_bucket(
    s3: Bucket, tmp_path: Path, folder: str, number: int, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of a cluster send the parts of the same files, each byte once."""
    with_parts(monkeypatch, 1 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.file_parts.EXACT_BYTES", 5000)
    version = at(SYSTEMS / folder, number)
    changes = Changes(cast=(("*", "float64"),)) if folder == "dcp/torchrec" else None
    here = converted(version, output=tmp_path / "here", changes=changes)
    s3.proxy.reset()
    there = converted(version, output=s3.url, changes=changes, executor=ClusterExecutor(client))
    assert files_in(s3, "run/") == versions_in(tmp_path / "here")
    assert s3.proxy.request_bytes("upload_part") == there.bytes_written
    assert (there.fingerprint, there.rows, there.items) == (here.fingerprint, here.rows, here.items)
    assert there.untouched == here.untouched
    nothing_is_left(s3)
    assert verify_version(list_versions(s3.url).versions[0], level="deep").sealed


@pytest.mark.parametrize("system", ["tensorflow", "dynamicemb", "tfra"])
def test_large_tables_of_a_cluster_and_a_bucket(
    s3: Bucket, large: Path, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """Many tasks send parts of one table, whose rows have each bucket in one order, or groups in one file."""
    with_parts(monkeypatch, 64 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.file_parts.MOST_BYTES", 2 << 20)
    monkeypatch.setattr("edl_ckpt.core.moving.version_input.PIECE_BYTES", 64 << 10)
    rows = ("users where id < 500000000000",) if system == "dynamicemb" else ()
    changes = Changes(tables=("users",), rows=rows)
    here = converted(only(large), output=tmp_path / "here", system=system, changes=changes)
    there = converted(only(large), output=s3.url, system=system, changes=changes, executor=client)
    assert (there.fingerprint, there.rows, there.left_out) == (here.fingerprint, here.rows, here.left_out)
    found, wanted = files_in(s3, "run/"), versions_in(tmp_path / "here")
    assert found.keys() == wanted.keys()
    assert [name for name in found if found[name] != wanted[name]] == []
    nothing_is_left(s3)


def test_parts_that_wait_are_a_warning(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose framing has checksums of all values wait on the local disk, and the command says so."""
    monkeypatch.setattr("edl_ckpt.core.operations.convert.PART_MEMORY_BYTES", 2000)
    for folder, number, waits in (("dcp/torchrec", 2, True), ("safetensors", 200, False)):
        heard = Recorder()
        converted(at(SYSTEMS / folder, number), output=f"{s3.url}/{folder}", reporter=heard)
        assert any("wait on the local disk" in line for line in heard.warnings) == waits
        converted(at(SYSTEMS / folder, number), output=tmp_path / folder, reporter=(here := Recorder()))
        assert not any("wait on the local disk" in line for line in here.warnings)
