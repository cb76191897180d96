"""A seal covers itself. Every bit of its file counts, and every field at its place."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoints import only, save_small
from edl_ckpt.core import verify_version
from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.model.seals import Override, Seal
from edl_ckpt.core.operations.verify.check import verify_and_seal
from edl_ckpt.core.state.document import is_newer, schema_at_head
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import read_seal, seal_bytes
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Store
from program import document, edl


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_small(tmp_path / "run", 7, ps_num=1)
    return tmp_path / "run"


def read_from(data: bytes) -> Seal | None:
    """Read a seal with these bytes as it is read from a disk, without the disk."""
    store = SimpleNamespace(location="run", read_small=lambda _: data)
    return read_seal(cast("Store", store), 7)


def test_every_bit(run: Path) -> None:
    """Each single flipped bit in a seal is a finding of verify, and nothing else is raised."""
    version, path = only(run), run / seal_file(7)
    whole = path.read_bytes()
    assert len(whole) < 1200
    for number in range(len(whole) * 8):
        byte, bit = divmod(number, 8)
        damaged = whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :]
        if is_newer(schema_at_head(damaged)):  # 3 and 6 are a bit away from 2
            continue
        with pytest.raises(CorruptError, match="damaged seal"):
            read_from(damaged)
        if number % 500 == 0:  # the same through the whole of verify
            path.write_bytes(damaged)
            result = verify_version(version, level="quick", beside=False)
            assert [f.code for f in result.findings] == ["checksum-mismatch"]
    path.write_bytes(whole)
    assert verify_version(version, level="deep").findings == ()


def test_every_length(run: Path) -> None:
    """A seal that is cut short anywhere is damaged, an empty one too."""
    whole = (run / seal_file(7)).read_bytes()
    for length in range(len(whole.rstrip())):
        with pytest.raises(CorruptError, match="damaged seal"):
            read_from(whole[:length])


def fields(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all objects and lists in a document."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [place] if isinstance(value, dict | list) else []
    return found + [spot for key, inner in below for spot in fields(inner, (*place, key))]


def changed(document: Any, place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """Return a document with another object or list at a place."""
    if not place:
        return change(document)
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[place[0]] = changed(copy[place[0]], place[1:], change)
    return copy


def removed(value: Any) -> Any:
    return dict(list(value.items())[:-1]) if isinstance(value, dict) else value[:-1]


def reordered(value: Any) -> Any:
    return dict(list(value.items())[::-1]) if isinstance(value, dict) else value[::-1]


def added(value: Any) -> Any:
    return {**value, "note": ""} if isinstance(value, dict) else [*value, 0]


@pytest.mark.parametrize("change", [removed, reordered, added])
def test_every_field(run: Path, change: Callable[[Any], Any]) -> None:
    """A field or an item that is removed, added or in another place is damage, wherever it is in the seal."""
    version, path = only(run), run / seal_file(7)
    whole = json.loads(path.read_bytes())
    for place in fields(whole):
        other = changed(whole, place, change)
        if json.dumps(other) == json.dumps(whole):  # one item, in the other order
            continue
        path.write_text(json.dumps(other))
        assert not verify_version(version, level="quick", beside=False).ok, place


def test_a_key_twice(run: Path) -> None:
    """A key that is there twice is damage, although JSON readers take one of the two."""
    path = run / seal_file(7)
    path.write_bytes(path.read_bytes().replace(b'{"schema"', b'{"schema": "edl-ckpt/seal/2", "schema"', 1))
    with pytest.raises(CorruptError, match="a key is there twice"):
        read_seal(open_store(str(run)), 7)


def test_white_space(run: Path) -> None:
    """White space between the fields does not count: a person may have looked at the seal through a formatter."""
    path = run / seal_file(7)
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=2))
    assert verify_version(only(run), level="deep").findings == ()


def test_the_digest_is_what_the_manual_says(run: Path) -> None:
    """The digest is the XXH3-128 of the document without it, as JSON without blanks: xxhsum agrees."""
    whole = json.loads((run / seal_file(7)).read_bytes())
    digest = whole.pop("digest")
    text = json.dumps(whole, separators=(",", ":"))
    if shutil.which("xxhsum") is None:
        pytest.skip("xxhsum is not installed: apt install xxhash")
    done = subprocess.run(["xxhsum", "-H2", "-"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == digest


def first_schema(run: Path) -> Path:
    """Rewrite the seal as edl-ckpt wrote seals before they had a digest."""
    path = run / seal_file(7)
    whole = json.loads(path.read_bytes())
    del whole["digest"]
    path.write_text(json.dumps(whole | {"schema": "edl-ckpt/seal/1"}))
    return path


def test_an_old_seal(run: Path) -> None:
    """A seal without a digest is compared as before, with a warning; `verify --seal` renews it."""
    first_schema(run)
    result = verify_version(only(run), level="deep")
    assert (result.ok, result.sealed, [f.code for f in result.findings]) == (True, True, ["old-seal"])
    assert edl("verify", run).returncode == 0
    assert edl("verify", run, "--strict").returncode == 3
    renewed = verify_and_seal(only(run))
    assert (renewed.findings, renewed.sealed) == ((), True)
    seal = read_seal(open_store(str(run)), 7)
    assert seal is not None
    assert (seal.has_digest, seal.history) == (True, ())


def test_an_old_seal_of_damaged_files(run: Path) -> None:
    """An old seal that the files do not match is not renewed."""
    path = first_schema(run)
    before = path.read_bytes()
    with Path(only(run).shards[0].path).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    assert not verify_and_seal(only(run)).ok
    assert path.read_bytes() == before


def test_a_newer_schema(run: Path) -> None:
    """A seal of a newer schema is error 15, and not damage, in verify and in what would replace it."""
    path = run / seal_file(7)
    whole = json.loads(path.read_bytes())
    del whole["digest"]
    path.write_text(json.dumps(whole | {"schema": "edl-ckpt/seal/3", "new": 1, "digest": "sha256:00"}))
    with pytest.raises(UnsupportedError, match="written by a newer edl-ckpt"):
        verify_version(only(run))
    assert document_error("verify", run) == document_error("reshard", run, "--ps", "2") == 15
    listed = document("list", run)["locations"][0]["versions"][0]
    assert listed["sealed"] is False


def document_error(*arguments: str | Path) -> int:
    done = edl(*arguments, "--json")
    assert json.loads(done.stderr.splitlines()[-1])["code"] == done.returncode
    return done.returncode


def test_history_round_trip(run: Path) -> None:
    """The decisions in a seal are read as they were written, odd names included."""
    seal = read_seal(open_store(str(run)), 7)
    assert seal is not None
    told = (Override("2026-01-01T00:00:00+00:00", "ünï\ud800@host", "reshard", 'a "quoted" why'),)
    other = Seal(7, seal.fingerprint, seal.shards, seal.sealed, "", told)
    (run / seal_file(7)).write_bytes(seal_bytes(other))
    assert read_seal(open_store(str(run)), 7) == other
