"""How often each command lists a location on S3, and reads a seal there: an opened version travels.

A number above one has its reason here. A command that begins to look twice fails.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from safetensors.numpy import save

from checkpoints import save_small
from edl_ckpt.core import execute_copy, plan_copy
from edl_ckpt.core.catalog.listing import list_versions
from program import edl
from s3_fixtures import Bucket
from s3_proxy import Call, Fault, Forward, Reply

NOTES, NOTES_OF_8 = (f"run/.edl-ckpt-0/shards-0/{number}" for number in (7, 8))

READERS = {
    "inspect": (["inspect", "{a}@7"], {"run": 1}, 1),
    "export": (["export", "{a}@7", "{here}/m.npz"], {"run": 1}, 2),
    "diff": (["diff", "{a}@7", "{a}@8"], {"run": 1}, 2),
    "reshard": (["reshard", "{a}@7", "--ps", "3", "--output", "{here}/out"], {"run": 1}, 3),
    "copy, down": (["copy", "{a}@7", "{here}/out"], {"run": 1, "run/version-7": 1}, 2),
    "verify": (["verify", "{a}@7"], {"run": 1, NOTES: 1, "run/.edl-ckpt-0/meta-0": 1}, 1),
    "verify --deep": (["verify", "{a}@7", "--deep"], {"run": 1, NOTES: 1, "run/.edl-ckpt-0/meta-0": 1}, 1),
    "verify, the latest": (["verify", "{a}"], {"run": 2, NOTES_OF_8: 1, "run/.edl-ckpt-0/meta-0": 1}, 1),
}
"""Commands that only read S3: what they list, and how many seals they read.

A copy lists the directory too: it accounts for each entry, also for one that no listing of versions has. A verification
lists the notes of the shards; and the files of state when it remembers its verdict, beside those of others. One of the
latest version ends with another look at the location: it says whether there is a newer version by then.

One seal is read for the facts of a version that is chosen, one more with its checksums where they are compared, and one
by the execution of a plan, which may come hours after it.
"""
TARGET = {"b": 3, "b/.edl-ckpt-0/stage-0": 1, "b/version-7": 1, "b/.edl-ckpt-0/meta-0": 1}
"""What is listed where a version is written.

The location before there is a plan, once more before the lock is taken, and under it: another command may have written
versions of another layout. Then what dead commands left, the names that are taken, and what the index lacks at the end.
"""
WRITERS = {
    "copy, up": (["copy", "{run}@7", "{b}"], TARGET, 0),
    "copy, S3 to S3": (["copy", "{a}@7", "{b}"], {"run": 1, "run/version-7": 1, **TARGET}, 2),
    "reshard, to S3": (["reshard", "{a}@7", "--ps", "3", "--output", "{b}"], {"run": 1, **TARGET}, 3),
    "export, to S3": (["export", "{a}@7", "{b}/m.npz"], {"run": 1, "b": 1}, 2),  # what is in the way there
}
MOST_PROOFS = 9
"""How often a writer lists the claims on the lock: two take it, and each step that cannot be undone proves it."""


@pytest.fixture
def places(s3: Bucket, tmp_path: Path) -> dict[str, str]:
    """Return a location on S3 with two sealed versions and one on the disk, and where there is nothing yet."""
    save_small(tmp_path / "run", 7, 8)
    execute_copy(plan_copy(list_versions(str(tmp_path / "run")).versions, s3.url))
    s3.proxy.reset()
    return {"a": s3.url, "b": s3.url.removesuffix("run") + "b", "run": str(tmp_path / "run"), "here": str(tmp_path)}


def listed_by(s3: Bucket, command: list[str], places: dict[str, str]) -> Counter[str]:
    """Run a command, and return how often it listed what is below each name."""
    listed: Counter[str] = Counter()

    def note(call: Call, forward: Forward) -> Reply | None:
        listed[parse_qs(urlsplit(call.target).query)["prefix"][0].rstrip("/")] += 1
        return forward(call)

    s3.proxy.fail(Fault(note, operation="list", times=None))
    done = edl(*(word.format(**places) for word in command))
    assert done.returncode == (3 if command[0] == "diff" else 0), done.stderr
    return listed


@pytest.mark.parametrize("name", READERS)
def test_a_reader_looks_once(s3: Bucket, places: dict[str, str], name: str) -> None:
    """A command lists what it reads once, and no seal is read without a reason."""
    command, expected, seals = READERS[name]
    assert listed_by(s3, command, places) == expected
    assert s3.proxy.count("get", key=r"\.seal\.json$") == seals


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_looks_as_its_lock_needs(s3: Bucket, places: dict[str, str], name: str) -> None:
    """A command that writes a version lists the target as its lock needs it, and the source once."""
    command, expected, seals = WRITERS[name]
    listed = listed_by(s3, command, places)
    assert listed.pop("b/.edl-ckpt-0/lock-0", 0) <= MOST_PROOFS
    assert listed == expected
    assert s3.proxy.count("get", key=r"\.seal\.json$") == seals


def test_files_of_at_most_a_size_take_one_look(s3: Bucket, places: dict[str, str]) -> None:
    """A reshard to files of at most a size looks its version up once.

    It lists the directory, for which it accounts, and the notes of a job that may still write it.
    """
    s3.put("sets/checkpoint-3/model.safetensors", save({"w": np.ones((64, 4), np.float32)}))
    sets = s3.url.removesuffix("run") + "sets"
    command = ["reshard", f"{sets}@3", "--max-shard-size", "512B", "--output", "{here}/sets"]
    assert listed_by(s3, command, places) == {
        "sets": 1,
        "sets/checkpoint-3": 1,
        "sets/.edl-ckpt-0/shards-0/3": 1,
    }


def test_names_beside_a_version_come_from_its_listing(s3: Bucket) -> None:
    """What ElasticDL's scan stops at is found without another look: beside a version, and in one that is newer."""
    save_small(s3.url, 7, 9)
    s3.put("run/version-9/notes", b"")
    s3.put("run/notes.txt", b"")
    done = edl("verify", f"{s3.url}@7", "--json")
    found = {f["subject"] for f in json.loads(done.stdout)["findings"] if f["code"] == "scan-crash"}
    assert found == {"notes.txt", "version-9/notes"}
