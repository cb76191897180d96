"""Damaged and hostile input: our own errors and findings only, with a place, in bounded time and memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core import list_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from edl_ckpt.core.reading.loss import Loss, open_rest
from edl_ckpt.core.sources.elasticdl.wire import head
from examples import examples
from places import GOLDEN

SHARD = (GOLDEN / "current/ps4/version-120/variables-1-of-4.ckpt").read_bytes()
OLD_SHARD = (GOLDEN / "legacy/v2/version-33/variables-1-of-3.ckpt").read_bytes()


def place(location: Path, data: bytes) -> str:
    directory = location / "version-120"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "variables-0-of-1.ckpt").write_bytes(data)
    return str(location)


def try_all(location: str) -> list[str]:
    """Verify and read everything; only our own errors may come; return the findings' codes that are errors."""
    version = list_versions(location).versions[0]
    result = verify_version(version, level="deep")
    for finding in result.findings:
        assert finding.message
        assert finding.path
    try:
        with open_checkpoint(version) as checkpoint:
            fingerprint_checkpoint(checkpoint)
    except EdlCkptError as error:
        assert str(error)  # noqa: PT017 - either way is right, but an error must speak
    return [f.code for f in result.findings if f.severity == "error"]


def content_of(location: str) -> tuple[Loss | None, dict[tuple[str, str], str]]:
    """Return what its version has lost, and all that can be read of it, by kind and name; nothing where that fails."""
    try:
        with open_rest(list_versions(location).versions[0]) as (checkpoint, loss):
            content = {("variable", name): repr(values.tolist()) for name, values in checkpoint.items()}
            found = {name: view.to_numpy() for name, view in checkpoint.tables.items() if view.rows}
            tables = {("table", name): repr((rows.ids.tolist(), rows.vectors.tolist())) for name, rows in found.items()}
            return loss, content | tables
    except EdlCkptError:
        return None, {}


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "each"])
@pytest.mark.parametrize("whole", [SHARD, OLD_SHARD], ids=["v4", "v2"])
def test_truncated_anywhere(tmp_path: Path, whole: bytes, stride: int) -> None:
    """A shard cut at any byte is found, and nearly always as truncated; what is read of it is as it was."""
    _, before = content_of(place(tmp_path, whole))
    seen, most = set(), 0
    for size in sorted({*range(0, len(whole), stride), *range(len(whole) - 30, len(whole))}):
        codes = try_all(place(tmp_path, whole[:size]))
        seen.update(codes)
        if size % 2 and size < len(whole) - 99:
            continue
        loss, after = content_of(str(tmp_path))
        assert after.items() <= before.items(), size
        assert loss is None or bool(loss) == ("truncated" in codes), size
        most = max(most, len(after) if loss else 0)
    assert {"empty-file", "truncated"} <= seen
    assert most >= len(before) - 3  # behind the tables of v2 are their infos, and a table with rows needs one


@examples(25)
@given(st.data())
def test_flipped_bits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any flipped bits, in any generation, give findings or other content; never anything but our errors."""
    whole = bytearray(data.draw(st.sampled_from([SHARD, OLD_SHARD])))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try_all(place(tmp_path_factory.getbasetemp() / "flip", bytes(whole)))


@examples(20)
@given(st.binary(max_size=200))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Random bytes are never anything but our errors."""
    try_all(place(tmp_path_factory.getbasetemp() / "random", data))


def entry(name: bytes, tensor: bytes, number: int = 3) -> bytes:
    """A map entry of a v4 model."""
    held = head(1, len(name)) + name + head(2, len(tensor)) + tensor
    return head(number, len(held)) + held


def shape(*sizes: int) -> bytes:
    dims = b"".join(head(2, len(varint(s)) + 1) + b"\x08" + varint(s) for s in sizes)
    return head(2, len(dims)) + dims


HOSTILE = {
    "text": (b"version 120\nnot a checkpoint\n", "malformed"),
    "length past the end": (b"\x08\x07\x1a\x7f\x0a", "truncated"),
    "length of 2**60": (b"\x08\x07\x1a" + varint(2**60) + b"\x0a\x01x", "truncated"),
    "length of 2**64 - 1": (b"\x08\x07\x1a" + varint(-1), "truncated"),
    "overlong varint": (b"\x08" + b"\x80" * 12 + b"\x01", "malformed"),
    "65-bit varint": (b"\x08" + b"\xff" * 9 + b"\x7f", "malformed"),
    "group": (b"\x08\x07\x1b\x1c", "malformed"),
    "wire type 7": (b"\x0f", "malformed"),
    "field number 0": (b"\x02\x00", "malformed"),
    "version as bytes": (b"\x0a\x01x", "malformed"),
    "table as varint": (b"\x20\x05", "malformed"),
    "name not UTF-8": (entry(b"\xff\xfe", b"\x08\x01" + shape(0)), "malformed"),
    "name of 2 MiB": (entry(b"n" * (2 << 20), b"\x08\x01" + shape(0)), "malformed"),
    "negative size": (entry(b"x", b"\x08\x01" + shape(-1)), "malformed"),
    "2**120 elements": (entry(b"x", b"\x08\x01" + shape(2**60, 2**60) + head(4, 4) + b"abcd"), "content-size-mismatch"),
    "unknown dtype": (entry(b"x", b"\x08\x63" + shape(1) + head(4, 4) + b"abcd"), "unsupported-dtype"),
    "no dtype": (entry(b"x", shape(1) + head(4, 4) + b"abcd"), "unsupported-dtype"),
    "values twice": (entry(b"x", b"\x08\x01" + shape(1) + (head(4, 4) + b"abcd") * 2), "malformed"),
    "variable twice": (entry(b"x", b"\x08\x01" + shape(1) + head(4, 4) + b"abcd") * 2, "duplicate-variable"),
    "table of rank 3": (
        entry(b"t", head(1, 22) + b"\x08\x01" + shape(1, 1, 1) + head(4, 4) + b"abcd" + b"\x12\x01\x05", 4),
        "content-size-mismatch",
    ),
    "unknown fields without end": (b"\xf8\x3e\x01" * 20_000, "malformed"),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_hostile_shard(case: str, tmp_path: Path) -> None:
    """Each hostile shard is found for what it is, at a byte offset, in little memory, and stays as it was."""
    data, code = HOSTILE[case]
    location = place(tmp_path, data)
    tracemalloc.start()
    version = list_versions(location).versions[0]
    result = verify_version(version, level="deep")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = [f for f in result.findings if f.code == code]
    assert found, result.findings
    assert found[0].shard == 0
    assert found[0].offset is not None
    assert peak < 16 << 20
    assert Path(version.shards[0].path).read_bytes() == data
    with pytest.raises(CorruptError) as caught:
        open_checkpoint(version).close()
    assert caught.value.offset is not None


def test_claimed_rows_cost_nothing(tmp_path: Path) -> None:
    """2**40 rows of dim 0 with no ids are a mismatch, not an allocation."""
    tensor = b"\x08\x01" + shape(2**40, 0)
    location = place(tmp_path, b"\x08\x78" + entry(b"t", head(1, len(tensor)) + tensor, 4))
    assert "id-row-mismatch" in try_all(location)


def test_shard_that_shrinks(tmp_path: Path) -> None:
    """A shard cut while it is open is error 11 that names it, never half-old data."""
    from edl_ckpt.core.base.errors import LockedError

    location = place(tmp_path, SHARD)
    with open_checkpoint(list_versions(location).versions[0]) as checkpoint:
        os.truncate(tmp_path / "version-120" / "variables-0-of-1.ckpt", 100)
        with pytest.raises(LockedError, match="shorter"):
            fingerprint_checkpoint(checkpoint)
        with pytest.raises(LockedError, match="changed"):
            checkpoint.check_unchanged()
