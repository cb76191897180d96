"""The checkpoints of `FileSystemCheckpointManager`: versions that appear whole, or not at all, on any storage."""

from __future__ import annotations

import io
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from checkpoints import drop_seal, files_of, numbers
from descriptors import opened_below
from edl_ckpt.core import (
    AuthError,
    EdlCkptError,
    IncompleteError,
    Latest,
    NotFoundError,
    Policy,
    RefusedError,
    UsageError,
    add_tag,
    execute_copy,
    list_versions,
    plan_copy,
    reshard_version,
    save_checkpoint,
    store_policy,
    verify_version,
)
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.training.elastic import FileSystemCheckpoint, FileSystemCheckpointManager
from members import Members
from s3_fixtures import Bucket
from s3_proxy import Fault, status


def commit(manager: FileSystemCheckpointManager, **streams: bytes) -> FileSystemCheckpoint:
    """Commit a checkpoint of these streams."""
    checkpoint = manager.create_checkpoint()
    for key, content in streams.items():
        with checkpoint.open_output_stream(key) as stream:
            stream.write(content)
    try:
        checkpoint.commit()
    except EdlCkptError:
        checkpoint.discard()
        raise
    return checkpoint


def latest(manager: FileSystemCheckpointManager, key: str = "state") -> bytes:
    """Return a stream of the latest checkpoint."""
    checkpoint = manager.get_latest_checkpoint()
    assert checkpoint is not None
    with checkpoint.open_input_stream(key) as stream:
        return stream.read()


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def manager(location: Path) -> FileSystemCheckpointManager:
    return FileSystemCheckpointManager(location)


def test_a_commit_is_a_sealed_version(manager: FileSystemCheckpointManager, location: Path) -> None:
    """Nothing is at the location before the commit; after it, one sealed version that `verify` finds faultless."""
    checkpoint = manager.create_checkpoint()
    with checkpoint.open_output_stream() as stream:
        stream.write(b"weights")
    assert not location.exists()
    checkpoint.commit()
    checkpoint.commit()
    (version,) = list_versions(location).versions
    result = verify_version(version, level="deep")
    assert (version.version, version.ps_num, checkpoint.sequence_id) == (1, 1, 1)
    assert (result.sealed, result.findings) == (True, ())
    assert latest(manager) == b"weights"


@pytest.mark.parametrize("when", ["written", "open", "failed"])
def test_a_discard_leaves_nothing(
    manager: FileSystemCheckpointManager, location: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whenever it is discarded, also after a commit that failed: the location and $TMPDIR are as they were."""
    commit(manager, state=b"old")
    spools = location.parent / "spools"
    spools.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spools))
    before, open_before = files_of(location), opened_below(location.parent)
    checkpoint = manager.create_checkpoint(1 if when == "failed" else None)
    stream = checkpoint.open_output_stream()
    stream.write(b"new")
    if when != "open":
        stream.close()
    if when == "failed":
        with pytest.raises(RefusedError, match="exists there already"):
            checkpoint.commit()
    checkpoint.discard()
    checkpoint.discard()
    assert files_of(location) == before
    assert (list(spools.iterdir()), stream.closed) == ([], True)
    assert opened_below(location.parent) == open_before
    with pytest.raises(UsageError, match="discarded"):
        checkpoint.commit()
    assert latest(manager) == b"old"


def test_streams_are_files(manager: FileSystemCheckpointManager) -> None:
    """Libraries that seek can write and read their own formats; a stream opened again replaces what it had."""
    arrays = {"a": np.arange(1000), "b": np.ones((3, 4), np.float32)}
    checkpoint = manager.create_checkpoint()
    with checkpoint.open_output_stream() as stream:
        stream.write(b"x" * 100_000)
    with checkpoint.open_output_stream() as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
    with checkpoint.open_output_stream("other") as stream:
        stream.write(b"0123456789")
    checkpoint.commit()
    with checkpoint.open_input_stream() as stream, np.load(stream) as loaded:
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)
    with checkpoint.open_input_stream("other") as stream:
        assert (stream.seek(-3, io.SEEK_END), stream.read(), stream.read()) == (7, b"789", b"")
        assert (stream.seek(20), stream.read(), stream.seek(2), stream.read(2)) == (20, b"", 2, b"23")
    with pytest.raises(NotFoundError, match="no stream 'none'") as error:
        checkpoint.open_input_stream("none")
    assert error.value.hint == "streams there: other, state"


def test_checkpoints_are_found(manager: FileSystemCheckpointManager, location: Path) -> None:
    """By number, the newest first, and none where there is none; versions of other things are passed over."""
    assert manager.get_latest_checkpoint() is None
    assert (manager.get_checkpoint(1), manager.list_checkpoints()) == (None, [])
    for content in (b"one", b"two"):
        commit(manager, state=content)
    save_checkpoint(location, 9, 2, variables={"b": np.zeros(3)}, tables={})
    commit(manager, state=b"ten")
    assert [c.sequence_id for c in manager.list_checkpoints() if isinstance(c, FileSystemCheckpoint)] == [10, 2, 1]
    second = manager.get_checkpoint(2)
    assert second is not None
    with second.open_input_stream() as stream:
        assert stream.read() == b"two"
    assert manager.get_checkpoint(9) is None
    (location / "file").touch()
    with pytest.raises(NotFoundError, match="a file, and not the directory"):
        FileSystemCheckpointManager(location / "file").get_latest_checkpoint()
    with pytest.raises(RefusedError, match="cannot be discarded"):
        second.discard()
    with pytest.raises(UsageError, match="committed"):
        second.open_output_stream()


@pytest.mark.parametrize("sealed", [True, False])
def test_damage_is_never_loaded(
    manager: FileSystemCheckpointManager, location: Path, caplog: pytest.LogCaptureFixture, sealed: bool
) -> None:
    """Damage in the newest makes the older one the latest, with a warning; if all are damaged, it is an error."""
    for content in (b"old" * 9, b"new" * 9):
        commit(manager, state=content)
    first, second = list_versions(location).versions
    for version, expected in ((second, b"old" * 9), (first, None)):
        shard = Path(version.shards[0].path)
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 4
        shard.write_bytes(data if sealed else data[:-1])
        if not sealed:
            drop_seal(location, version.version)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "edl_ckpt"):
            if expected is None:
                with pytest.raises(IncompleteError, match=r"no checkpoint is whole: version 2: .*version 1: "):
                    manager.get_latest_checkpoint()
            else:
                assert latest(manager) == expected
        assert f"{version.ref} is damaged" in caplog.text


def test_old_checkpoints_are_pruned(location: Path, caplog: pytest.LogCaptureFixture) -> None:
    """keep_checkpoint_max are kept, and tagged ones; 0 keeps all; a policy of the location replaces the rule."""
    manager = FileSystemCheckpointManager(location, keep_checkpoint_max=2)
    for _ in range(4):
        commit(manager, state=b"x")
    assert numbers(location) == [3, 4]
    add_tag(list_versions(location).versions[0], "serving")
    commit(manager, state=b"x")
    commit(manager, state=b"x")
    assert numbers(location) == [3, 5, 6]
    commit(FileSystemCheckpointManager(location), state=b"x")
    assert numbers(location) == [3, 5, 6, 7]
    store_policy(location, Policy((Latest(1),)))
    commit(manager, state=b"x")
    assert numbers(location) == [3, 8]
    with pytest.raises(UsageError):
        FileSystemCheckpointManager(location, keep_checkpoint_max=-1)


def test_a_failed_prune_does_not_undo_a_commit(
    location: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is committed all the same, and the log has a warning."""
    manager = FileSystemCheckpointManager(location, keep_checkpoint_max=1)
    commit(manager, state=b"old")
    (location / ".edl-ckpt-0" / "meta-0" / "location.json").write_text("damaged")
    with caplog.at_level(logging.WARNING, "edl_ckpt"):
        assert commit(manager, state=b"new").sequence_id == 2
    assert "older checkpoints could not be deleted" in caplog.text
    assert latest(manager) == b"new"


def test_the_commands_work_on_checkpoints(manager: FileSystemCheckpointManager, tmp_path: Path) -> None:
    """A copy, and a reshard to several servers, have the same streams."""
    commit(manager, state=b"state", other=b"other")
    (version,) = list_versions(manager.location).versions
    execute_copy(plan_copy([version], tmp_path / "copy"))
    reshard_version(version, 3, output=tmp_path / "wide")
    for place in ("copy", "wide"):
        elsewhere = FileSystemCheckpointManager(tmp_path / place)
        assert (latest(elsewhere), latest(elsewhere, "other")) == (b"state", b"other")


@pytest.mark.hours
def test_a_large_checkpoint(manager: FileSystemCheckpointManager, tmp_path: Path) -> None:
    """A state of more than 2 GiB is saved and loaded in the memory of a few buffers."""
    piece = np.random.default_rng(0).integers(0, 256, 16 << 20, np.uint8).tobytes()
    count = 130

    def work(note: Callable[[str], None]) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = peak_memory_bytes()
        checkpoint = manager.create_checkpoint()
        with checkpoint.open_output_stream() as stream:
            stream.writelines(piece for _ in range(count))
        checkpoint.commit()
        newest = manager.get_latest_checkpoint()
        assert newest is not None
        with newest.open_input_stream() as stream:
            assert all(stream.read(len(piece)) == piece for _ in range(count))
            assert stream.read() == b""
        note(str(peak_memory_bytes() - before))

    with Members(tmp_path) as members:
        assert members.wait(members.start("worker", work), seconds=600) == [0]
        assert int(members.lines("worker")[0]) < 128 << 20


def test_on_s3(s3: Bucket) -> None:
    """Commit, discard, prune and load work on object storage; a commit that fails at its last step leaves nothing."""
    manager = FileSystemCheckpointManager(s3.url, keep_checkpoint_max=2)
    for number in range(3):
        commit(manager, state=b"%d" % number)
    before = s3.objects()
    checkpoint = manager.create_checkpoint()
    with checkpoint.open_output_stream() as stream:
        stream.write(b"never")
    checkpoint.discard()
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="complete", times=None))
    with pytest.raises(AuthError):
        commit(manager, state=b"never")
    s3.proxy.heal()
    assert s3.objects() == before
    assert numbers(s3.url) == [2, 3]
    assert latest(manager) == b"2"
    assert s3.open_uploads() == []


def test_on_other_storage() -> None:
    """Any storage of fsspec is a location."""
    manager = FileSystemCheckpointManager(f"memory://elastic-{os.getpid()}/run", keep_checkpoint_max=1)
    for content in (b"one", b"two"):
        commit(manager, state=content, empty=b"")
    assert (latest(manager), latest(manager, "empty")) == (b"two", b"")
    assert numbers(manager.location.url) == [2]
