"""The proof of what was written: no bit of a target may be another one when it is read back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest

import edl_ckpt.core as edl
from edl_ckpt.core import EdlCkptError, Table
from edl_ckpt.core.base.parallel import Advance, Opened, Result, Task, Threads, Work
from edl_ckpt.core.commit.interface import Prove, Written
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.proof import staged_shards as proof
from edl_ckpt.core.proof import values
from edl_ckpt.core.reading import pieces
from edl_ckpt.core.state.annotate import Describe

_VARIABLES: dict[str, npt.NDArray[np.generic]] = {
    "w": np.arange(3, dtype=np.float32),
    "none": np.ones((2, 0), np.int64),
}
_TABLES = {
    "t": Table(np.array([3, -2, 300]), np.arange(6, dtype=np.float32).reshape(3, 2), "zeros"),
    "u": Table(np.array([], np.int64), np.ones((0, 300))),
    "v": Table(np.array([4, 5]), np.ones((2, 0), np.float32)),
}


class Elsewhere(Threads):
    """Does tasks as another process does: each is unpacked, opens what it needs, and closes it."""

    is_cluster = True

    def run(
        self, work: Work[Opened, Task, Result], opened: Opened, tasks: Iterable[Task], advance: Advance
    ) -> Generator[Result, None, None]:
        """Yield the results of all tasks."""
        for task in tasks:
            there = pickle.loads(pickle.dumps(work))
            with closing(there.open()) as own:
                yield there.do(own, task, advance)


_REWRITES: dict[str, Callable[[Version, Path], object]] = {
    "reshard": lambda version, out: edl.reshard_version(version, 2, output=out),
    "export": lambda version, out: edl.export_version(version, out, format_name="checkpoint"),
    "copy": lambda version, out: edl.execute_copy(edl.plan_copy([version], out)),
    "import": lambda version, out: edl.import_checkpoint(version, out, 9, 2),
    "reshard elsewhere": lambda version, out: edl.reshard_version(version, 2, output=out, executor=Elsewhere(1)),
    "save": lambda _, out: edl.save_checkpoint(out, 1, 2, variables=_VARIABLES, tables=_TABLES),
}


def damages(path: str, *, whole: bool) -> Iterator[int]:
    """Damage a file in one way at a time, and mend it: each bit, or one of each byte, then its size by a byte.

    Yields the number of the flipped bit, or the size.
    """
    good = Path(path).read_bytes()
    file = os.open(path, os.O_RDWR)
    for at, byte in enumerate(good):
        for bit in range(8) if whole else (at % 8,):
            os.pwrite(file, bytes([byte ^ 1 << bit]), at)
            yield 8 * at + bit
        os.pwrite(file, bytes([byte]), at)
    for size in (len(good) - 1, len(good) + 1):
        os.ftruncate(file, size)
        yield size
    os.close(file)
    Path(path).write_bytes(good)


def sweep(monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> list[tuple[str, int]]:
    """Damage what was written in many ways before it is proved; return those that were missed.

    The last flipped bit stays, so the write must fail.
    """
    missed: list[tuple[str, int]] = []
    publish = LocalOutput.publish

    def refuses(prove: Prove, written: Written) -> bool:
        try:
            prove(written)
        except EdlCkptError as error:
            return bool(error.path) and ("differs from" in error.message or "the written bytes differ" in error.message)
        return False

    def publish_damaged(output: LocalOutput, prove: Prove, describe: Describe | None = None) -> None:
        def prove_damaged(written: Written) -> NoReturn:
            prove(written)
            for shard in written.version.shards:
                found = damages(shard.path, whole=whole)
                missed.extend((shard.path, damage) for damage in found if not refuses(prove, written))
            path = Path(written.version.shards[0].path)
            path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
            prove(written)
            raise AssertionError("a damaged version was proved")

        publish(output, prove_damaged, describe)

    monkeypatch.setattr(LocalOutput, "publish", publish_damaged)
    return missed


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, *, whole: bool) -> None:
    """Sweep over the target of a command that writes."""
    version = edl.save_checkpoint(tmp_path / "a", 1, 3, variables=_VARIABLES, tables=_TABLES)
    missed = sweep(monkeypatch, whole=whole)
    with pytest.raises(EdlCkptError):
        _REWRITES[work](version, tmp_path / "b")
    assert missed == []
    assert not (tmp_path / "b").exists() or edl.list_versions(tmp_path / "b").versions == ()


@pytest.mark.parametrize("work", _REWRITES)
def test_flipped_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Whichever byte of a target has another bit when it is read back, the proof says so, and nothing is visible."""
    check(tmp_path, monkeypatch, work, whole=False)


@pytest.mark.hours
def test_all_flipped_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with every bit of each byte."""
    check(tmp_path, monkeypatch, "reshard", whole=True)


@pytest.mark.parametrize("direct", [1, 1 << 20])
def test_flipped_bits_of_large_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, either_kernel: str, direct: int
) -> None:
    """The same where tables are read in pieces, by the kernel or by Python; shards may be proved one by one."""
    monkeypatch.setattr(values, "DIRECT_BYTES", direct)
    monkeypatch.setattr(pieces, "SMALL_BYTES", -1)
    monkeypatch.setattr(proof, "MOST_ENTRIES", 1)
    check(tmp_path, monkeypatch, "reshard", whole=False)


def test_parts_that_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of up to eight times the size of small ones are proved in one read each, and no bit of them is missed."""
    monkeypatch.setattr(pieces, "SMALL_BYTES", 16)
    counted: list[object] = []
    monkeypatch.setattr(pieces, "count_ids", lambda *piece: counted.append(piece))
    check(tmp_path, monkeypatch, "reshard", whole=False)
    assert counted == []


def test_flipped_bits_that_others_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where other processes read tables in pieces, whose rows are where the plan has them."""
    monkeypatch.setattr(pieces, "SMALL_BYTES", -1)
    monkeypatch.setattr(Elsewhere, "task_bytes", lambda *_: 1)
    check(tmp_path, monkeypatch, "reshard elsewhere", whole=False)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_rows_of_two_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Any, small: bool, there: bool
) -> None:
    """Two whole rows that changed their shards leave the fingerprint as it was, and the proof still finds them."""
    ids = np.arange(100, 108)
    table = Table(ids, np.arange(len(ids), dtype=np.float32)[:, None])
    version = edl.save_checkpoint(tmp_path / "a", 1, 1, variables={}, tables={"t": table})
    if not small:
        monkeypatch.setattr(pieces, "SMALL_BYTES", -1)
    publish = LocalOutput.publish

    def publish_swapped(output: LocalOutput, prove: Prove, describe: Describe | None = None) -> None:
        def prove_swapped(written: Written) -> Seal:
            with edl.open_checkpoint(written.version) as checkpoint:
                entries = [shard.tables[0] for shard in checkpoint.shards]
            paths = [Path(shard.path) for shard in written.version.shards]
            data = [bytearray(path.read_bytes()) for path in paths]
            for size, first, second in (
                (4, *(e.values.start for e in entries)),
                (1, *(e.ids[0].start for e in entries)),
            ):
                one, two = data[0][first : first + size], data[1][second : second + size]
                data[0][first : first + size], data[1][second : second + size] = two, one
            for path, changed in zip(paths, data, strict=True):
                path.write_bytes(changed)
            return prove(written)

        publish(output, prove_swapped, describe)

    monkeypatch.setattr(LocalOutput, "publish", publish_swapped)
    with pytest.raises(EdlCkptError, match=r"differs from its source \(table 't': id 10[01] belongs to shard [01]\)"):
        edl.reshard_version(version, 2, output=tmp_path / "b", executor=client if there else None)
    assert not (tmp_path / "b").exists()


@pytest.mark.hours
@pytest.mark.parametrize("work", _REWRITES)
def test_every_flipped_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, either_kernel: str) -> None:
    """Each bit, of the target of each command: `pytest -n 0 -m hours tests/core/proof/test_proving.py`."""
    check(tmp_path, monkeypatch, work, whole=True)
