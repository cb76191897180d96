"""What a listing remembers of small files: what was read, and never that something could not be read."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions
from edl_ckpt.core.catalog import remembered_digests, small_reads
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state import user_cache
from edl_ckpt.core.storage.local import LocalReader
from s3_fixtures import Bucket
from s3_proxy import Call, Fault, Forward, Reply
from torch_checkpoints import SAVED

LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in which listings remember."""
    folder = tmp_path / "cache"
    user_cache.remember_in(str(folder))
    yield folder
    user_cache.remember_in("")


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A location with a sound step of two ranks, which is old."""
    step = Path(shutil.copytree(SAVED / "torchrec/step_2", tmp_path / "run/step_2"))
    for path in [step, *step.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    return step.parent


def listed(location: Path) -> Version:
    """Return the version of a location that has one."""
    (version,) = list_versions(str(location)).versions
    return version


class FlippedReads:
    """Flips a bit of what is read of `.metadata`, as often as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, at: int) -> None:
        self.left, self.reads, read = times, 0, LocalReader.read

        def flipped(reader: LocalReader, offset: int, size: int) -> bytes:
            data = read(reader, offset, size)
            if not reader.path.endswith(".metadata") or not offset <= at < offset + size:
                return data
            self.reads += 1
            self.left -= 1
            return data if self.left < 0 else data[: at - offset] + b"\xfe" + data[at - offset + 1 :]

        monkeypatch.setattr(LocalReader, "read", flipped)


@pytest.mark.parametrize("at", [0, 400])
def test_one_bad_read_is_no_fact(at: int, location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose index is damaged in one read, and in the next is not, is complete."""
    FlippedReads(monkeypatch, 1, at)
    assert listed(location).state is State.COMPLETE


@pytest.mark.parametrize("at", [0, 400])
def test_errors_are_not_remembered(at: int, location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose index cannot be read in one listing is looked at anew by the next one."""
    FlippedReads(monkeypatch, 2 if at else 4, at)  # how it begins is read twice in each look
    assert listed(location).state is State.INCOMPLETE
    assert listed(location).state is State.COMPLETE


def test_what_was_read_is_remembered(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a step that has not changed is read by the first listing only."""
    assert listed(location).state is State.COMPLETE
    reads = FlippedReads(monkeypatch, 0, 400)
    assert listed(location).state is State.COMPLETE
    assert not reads.reads


def test_a_remembered_index_is_read_again_before_a_step_is_torn(location: Path, memory: Path) -> None:
    """What is remembered wrongly of an index makes no step torn: it is read again."""
    listed(location)
    (file,) = memory.iterdir()
    _, _, text = file.read_bytes().partition(b"\n")
    digests = json.loads(text)
    (digest,) = digests.values()
    digest["is"]["__9_0.distcp"] = 10
    remembered_digests.save_digests(str(file), digests)
    assert listed(location).lacks == ()


WRONG = {
    "nothing": b"",
    "no file of this program": b"hello\n{}",
    "a number": b"5",
    "a list": b"[]",
    "not whole": None,
    "another value": b'{"is": 5}',
    "an empty value": b"{}",
    "a fault": b'{"fault": 1}',
    "no error": b'{"error": "CorruptError", "message": "torn", "offset": 0}',
}


@pytest.mark.parametrize("name", WRONG)
def test_a_memory_of_another_shape_is_none(name: str, location: Path, memory: Path) -> None:
    """A file of what is remembered that is damaged, or that something else wrote, counts as none."""
    listed(location)
    (file,) = memory.iterdir()
    head, _, text = file.read_bytes().partition(b"\n")
    wrong = WRONG[name]
    keys = list(json.loads(text))
    for data in (
        text[:-9] if wrong is None else wrong,
        head + b"\n" + (text[:-9] if wrong is None else json.dumps(dict.fromkeys(keys, "VALUE")).encode()),
        head + b"\n" + b"{%b: %b}" % (json.dumps(keys[0]).encode(), wrong or b"["),
    ):
        file.write_bytes(data)
        assert listed(location).state is State.COMPLETE


def test_a_pipe_for_a_memory_is_none(location: Path, memory: Path) -> None:
    """A pipe in the place of what is remembered neither blocks a listing nor changes it."""
    listed(location)
    (file,) = memory.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert listed(location).state is State.COMPLETE


def test_other_code_has_another_memory(location: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another revision of the formats' code remembered is not believed."""
    listed(location)
    monkeypatch.setattr(small_reads, "code_revision", lambda _modules: "another")
    listed(location)
    assert len(list(memory.iterdir())) == 2


def with_another_first_byte(call: Call, forward: Forward) -> Reply | None:
    """Reply with another first byte than the store has."""
    reply = forward(call)
    return reply and replace(reply, body=b"\xff" + reply.body[1:])


def test_one_corrupted_reply_on_s3(s3: Bucket, memory: Path) -> None:
    """A byte that one reply of S3 has wrong makes no step torn; one in each reply does, until the next listing."""
    s3.upload(SAVED / "torchrec/step_2", "run/step_2")
    for times, state in ((1, State.COMPLETE), (2, State.INCOMPLETE), (0, State.COMPLETE)):
        shutil.rmtree(memory, ignore_errors=True)
        s3.proxy.reset()
        s3.proxy.fail(Fault(with_another_first_byte, operation="get", key=r"\.metadata$", times=times))
        (version,) = list_versions(s3.url, now=time.time() + 10**6).versions
        assert version.state is state
    (version,) = list_versions(s3.url).versions
    assert version.state is State.COMPLETE


def test_foreign_files_on_s3(s3: Bucket) -> None:
    """A foreign index costs a request each, and nothing is claimed or torn by a foreign, hidden or host file."""
    s3.upload(SAVED / "torchrec/step_2", "run/step_2")
    for name in ("faiss.index", "._.metadata", "._model.safetensors", "Thumbs.db", "train.data-00000-of-00002"):
        s3.put(f"run/step_2/{name}", os.urandom(3000))
    (version,) = list_versions(s3.url).versions
    assert (version.state, version.lacks, version.ps_num) == (State.COMPLETE, (), 2)
    s3.put(
        "run/step_2/__1_0.distcp", b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 9\n" % (b"0" * 64)
    )
    (version,) = list_versions(s3.url).versions
    assert version.state is State.UNREADABLE
    assert "git lfs pull" in version.why_unreadable
