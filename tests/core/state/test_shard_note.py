"""Notes on shards cover themselves: what goes into a seal is what the server wrote, or the note is not used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from checkpoints import only
from edl_ckpt.core import verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.operations.verify.check import verify_and_seal
from edl_ckpt.core.proof.noted_seal import seal_from_notes
from edl_ckpt.core.state.paths import notes_dir
from edl_ckpt.core.state.seal import number_chunks
from edl_ckpt.core.state.shard_note import NoteName, ShardNote, note_bytes, parse_note_name, read_note, run_digest
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Store
from reporters import Recorder
from saving import save_part

SUMS = memoryview(bytes(range(96)))
NOTES = [
    ShardNote("one", tuple(number_chunks([["variable", "w", 0, 9, "ab" * 16]])), {"w": SUMS}, {"t": SUMS}),
    ShardNote("", older=("0-of-2.e4a6a0577479b2b4.7_10_ff.json",)),
    ShardNote("too large", has_sums=False),
]


def read_from(data: bytes, note: ShardNote) -> ShardNote | None:
    """Read a note with these bytes as it is read from a disk, without the disk."""
    store = SimpleNamespace(location="run", read_small=lambda _: data)
    return read_note(cast("Store", store), 7, NoteName(0, 2, run_digest(note.run, note.older), "7_10_ff"))


def flips(data: bytes, bits: range | list[int]) -> Iterator[bytes]:
    """Yield the data with one of its bits flipped, for each of these."""
    for bit in bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


@pytest.mark.parametrize("note", NOTES, ids=["sums", "older", "no sums"])
def test_every_bit(note: ShardNote) -> None:
    """A note is read as it was written; with any bit flipped, or cut anywhere, it is damaged."""
    data = note_bytes(note)
    assert read_from(data, note) == note
    for changed in flips(data, range(8 * len(data))):
        with pytest.raises((CorruptError, UnsupportedError), match=r"damaged note|by a newer edl-ckpt"):
            read_from(changed, note)
    for size in range(len(data)):
        with pytest.raises(CorruptError, match="damaged note"):
            read_from(data[:size], note)


def test_no_seal_from_a_changed_note(tmp_path: Path) -> None:
    """Whichever bit of a note is flipped, its version is sealed as a deep verify would seal it, or not at all."""
    reporter = Recorder()
    save_part(tmp_path, 7, 0, 2)
    (path,) = (tmp_path / notes_dir(7)).iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    saved = save_part(tmp_path, 7, 1, 2, reporter=reporter)
    assert (saved.complete, saved.sealed) == (True, False)
    assert "is saved, but not sealed: " in reporter.warnings[0]
    version = only(tmp_path)
    path.write_bytes(data)
    seal = seal_from_notes(open_store(tmp_path), version)
    for changed in flips(data, random.Random(0).sample(range(8 * len(data)), 200)):
        path.write_bytes(changed)
        try:
            made = seal_from_notes(open_store(tmp_path), version)
        except EdlCkptError:
            continue
        assert replace(made, sealed=seal.sealed) == seal
    path.write_bytes(data)
    assert verify_and_seal(version).fingerprint == seal.fingerprint
    assert verify_version(only(tmp_path), level="deep").findings == ()


def test_a_note_of_an_older_program(tmp_path: Path) -> None:
    """A note without a digest still tells its run; its sums are not used, and the error says what seals the version."""
    save_part(tmp_path, 7, 0, 2, run="one")
    (path,) = (tmp_path / notes_dir(7)).iterdir()
    head, _, sums = path.read_bytes().partition(b"\n")
    before_digest, _, _ = head.partition(b', "digest"')
    path.write_bytes(before_digest.replace(b"edl-ckpt/shard/2", b"edl-ckpt/shard/1") + b"}\n" + sums)
    reporter = Recorder()
    saved = save_part(tmp_path, 7, 1, 2, run="one", reporter=reporter)
    assert (saved.complete, saved.sealed) == (True, False)
    assert "has no sums" in reporter.warnings[0]
    name = parse_note_name(path.name)
    assert name is not None
    with pytest.raises(UnsupportedError, match="shard 0 has no sums") as error:
        seal_from_notes(open_store(tmp_path), only(tmp_path))
    assert "verify" in str(error.value.hint)
    assert "--seal" in str(error.value.hint)
    assert only(tmp_path).mixture == ""
    assert verify_and_seal(only(tmp_path)).findings == ()
