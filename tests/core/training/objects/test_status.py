"""What the status of a restore says: every value that did not match, with its shape and dtype."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from descriptors import opened_below
from edl_ckpt.core import save_checkpoint
from edl_ckpt.core.base.errors import CorruptError, MismatchError, NotFoundError
from edl_ckpt.core.training.objects import EmbeddingTable, ObjectCheckpoint, UnrestoredWarning, Variable


def saved(location: Path) -> str:
    """Save three values: a float32 [2, 3], b int64 [], and a table of dim 4; return the reference."""
    table = EmbeddingTable(np.arange(5), np.ones((5, 4), np.float32))
    return ObjectCheckpoint(a=np.ones((2, 3), np.float32), b=Variable(7), t=table).save(location)


def test_every_difference_is_listed(tmp_path: Path) -> None:
    """`assert_consumed` names all values that only one side has; the weaker assertions what they are about."""
    mine = ObjectCheckpoint(a=np.zeros((2, 3), np.float32), x=np.zeros(4, np.int8), y={"z": Variable(1.0)})
    status = mine.restore(saved(tmp_path / "run"))
    with pytest.raises(AssertionError) as consumed:
        status.assert_consumed()
    assert str(consumed.value).splitlines() == [
        f"{tmp_path / 'run'}@1: the checkpoint and the program differ in 4 values",
        "  x: int8 [4] in the program, not in the checkpoint",
        "  y/z: float64 [] in the program, not in the checkpoint",
        "  b: int64 [] in the checkpoint, not restored into the program",
        "  t: table of dim 4, float32 in the checkpoint, not restored into the program",
    ]
    with pytest.raises(MismatchError, match=r"differ in 2 values\n  x: .*\n  y/z: .*$"):
        status.assert_existing_objects_matched()
    assert status.assert_nontrivial_match() is status.expect_partial() is status


def test_a_part_of_the_objects(tmp_path: Path) -> None:
    """A program with fewer values matches; what it adds later is looked at too."""
    mine = ObjectCheckpoint(b=Variable(0))
    status = mine.restore(saved(tmp_path / "run")).expect_partial()
    assert status.assert_existing_objects_matched() is status
    mine.new = Variable(0)
    with pytest.raises(AssertionError, match="new: int64"):
        status.assert_existing_objects_matched()
    del mine.new
    mine.b = Variable(0)  # replaced: this one did not get the value
    with pytest.raises(AssertionError, match="b: int64"):
        status.assert_existing_objects_matched()


def test_other_shapes_and_dtypes_change_nothing(tmp_path: Path) -> None:
    """A restore names all values of another shape, dtype or dim at once, before any value is changed."""
    table = EmbeddingTable(np.arange(2), np.zeros((2, 3), np.float32))
    mine = ObjectCheckpoint(a=np.zeros((3, 2), np.float32), b=Variable(0.5), t=table, ok=np.zeros(2))
    full = ObjectCheckpoint(a=np.ones((2, 3), np.float32), b=Variable(7), ok=np.ones(2))
    full.t = EmbeddingTable(np.arange(5), np.ones((5, 4), np.float32))
    ref = full.save(tmp_path / "run")
    with pytest.raises(ValueError, match="3 values cannot be restored; nothing was changed") as caught:
        mine.restore(ref)
    assert "a: float32 [3, 2] in the program, float32 [2, 3] in the checkpoint" in str(caught.value)
    assert "b: float64 [] in the program, int64 [] in the checkpoint" in str(caught.value)
    assert "t: table of dim 3, float32 in the program, table of dim 4, float32 in the checkpoint" in str(caught.value)
    assert (mine.ok.sum(), float(mine.b), len(table), int(mine.save_counter)) == (0, 0.5, 2, 0)

    status = mine.restore(ref, skip_mismatch=True).expect_partial()
    assert mine.ok.sum() == 2
    with pytest.raises(
        AssertionError, match=r"differ in 3 values\n  a: .*\n  b: .*\n  t: .*dim 4, float32 in the check"
    ):
        status.assert_existing_objects_matched()


def test_a_late_object_of_another_shape_is_not_added(tmp_path: Path) -> None:
    """The error comes where the object is added, and it is not added; the right one still gets the value."""
    mine = ObjectCheckpoint(l=[])
    mine.restore(ObjectCheckpoint(l=[np.ones(3)]).save(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"l/0: float64 \[2\] in the program, float64 \[3\] in the checkpoint"):
        mine.l.append(np.zeros(2))
    assert mine.l == []
    mine.l.append(np.zeros(3))
    assert mine.l[0].sum() == 3


def test_nothing_matched(tmp_path: Path) -> None:
    """Only the save counter in common is no match, and neither is a program without values."""
    ref = saved(tmp_path / "run")
    with pytest.raises(AssertionError, match="other: int64"):
        ObjectCheckpoint(other=Variable(1)).restore(ref).expect_partial().assert_nontrivial_match()
    empty = ObjectCheckpoint().restore(ref).expect_partial()
    empty.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="a: float32"):
        empty.assert_nontrivial_match()


def test_no_checkpoint() -> None:
    """`restore(None)` restores nothing and is no error; all its assertions fail."""
    mine = ObjectCheckpoint(v=Variable(3))
    status = mine.restore(None)
    for check in (status.assert_consumed, status.assert_existing_objects_matched, status.assert_nontrivial_match):
        with pytest.raises(AssertionError, match="no checkpoint was given"):
            check()
    assert status.expect_partial() is status
    status.initialize_or_restore()
    assert (int(mine.v), int(mine.save_counter)) == (3, 0)


def test_a_version_without_a_save_counter(tmp_path: Path) -> None:
    """A version of others has no save counter, and that is no difference."""
    save_checkpoint(tmp_path / "run", 5, 1, variables={"v": np.ones(2)}, tables={})
    ObjectCheckpoint(v=np.zeros(2)).restore(f"{tmp_path / 'run'}@5").assert_consumed()


def test_plain_objects_are_looked_at_when_asked(tmp_path: Path) -> None:
    """What came into a plain object since is named by the assertions, and restored by `initialize_or_restore`."""
    ref = ObjectCheckpoint(net=SimpleNamespace(a=np.ones(2), b=np.ones(2))).save(tmp_path / "run")
    net = SimpleNamespace(a=np.zeros(2))
    root = ObjectCheckpoint(net=net)
    status = root.restore(ref)
    net.b, net.a[0] = np.zeros(2), 50
    with pytest.raises(AssertionError, match=r"net/b: float64 \[2\] in the program, created after the restore"):
        status.assert_existing_objects_matched()
    with pytest.warns(UnrestoredWarning, match=r"1 value created after the restore of .*run@1 did not get .*: net/b"):
        root.save(tmp_path / "other")
    root.status.initialize_or_restore()
    status.assert_consumed()
    net.a = net.a + 0  # another array under a name that was restored: no warning
    root.save(tmp_path / "other")
    assert (net.a.tolist(), net.b.tolist()) == ([50, 1], [1, 1])


def test_what_was_never_used_is_a_warning_at_the_end(tmp_path: Path) -> None:
    """When the objects go, values that found none are named, once; `expect_partial` silences it; files are closed."""
    ref = saved(tmp_path / "run")
    gc.collect()
    before = opened_below(tmp_path)
    with pytest.warns(
        UnrestoredWarning, match=r"run@1: 2 values .*: a, t; status.expect_partial\(\) silences"
    ) as found:
        ObjectCheckpoint(b=Variable(0)).restore(ref)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ObjectCheckpoint(b=Variable(0)).restore(ref).expect_partial()
        status = ObjectCheckpoint(a=np.zeros((2, 3), np.float32)).restore(ref)
        status.expect_partial()
        del status
    assert opened_below(tmp_path) == before


def test_the_warning_as_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where warnings are errors, nobody could catch one that comes from a destructor, so it is logged instead."""
    ObjectCheckpoint(b=Variable(0)).restore(saved(tmp_path / "run"))
    assert "2 values of the checkpoint never found an object" in caplog.text


def test_the_next_restore_ends_the_one_before(tmp_path: Path) -> None:
    """What waits for an object is given up by the next restore of the same checkpoint: one version stays open."""
    run = tmp_path / "run"
    save_checkpoint(run, 1, 1, variables={"a": np.ones(2), "b": np.ones(2)}, tables={})
    save_checkpoint(run, 2, 1, variables={"a": np.full(2, 2.0), "c": np.full(2, 2.0)}, tables={})
    mine = ObjectCheckpoint(a=np.zeros(2))
    first = mine.restore(f"{run}@1").expect_partial()
    before = len(opened_below(tmp_path))
    for _ in range(3):
        second = mine.restore(f"{run}@2").expect_partial()
    assert len(opened_below(tmp_path)) == before > 0
    mine.b, mine.c = np.zeros(2), np.zeros(2)
    assert (mine.a.sum(), mine.b.sum(), mine.c.sum()) == (4, 0, 4)
    second.expect_partial()
    with pytest.raises(AssertionError, match="b: float64"):
        first.assert_existing_objects_matched()


def test_a_version_that_cannot_be_restored(tmp_path: Path) -> None:
    """A version that is not there, or whose aliases are damaged, is an error; nothing waits for it, no file is open."""
    gc.collect()
    before = opened_below(tmp_path)
    mine = ObjectCheckpoint(v=Variable(1))
    with pytest.raises(NotFoundError):
        mine.restore(f"{tmp_path}@3")
    for number, content in enumerate((b"{", b"[]", b'{"a": 3}', b'{"a": {}}', b"\xff")):
        damaged = {"v": np.array(2), ".ALIASES": np.frombuffer(content, np.int8)}
        save_checkpoint(tmp_path, number, 1, variables=damaged, tables={})
        with pytest.raises(CorruptError, match=r"'\.ALIASES' is damaged"):
            mine.restore(f"{tmp_path}@{number}")
    assert (int(mine.v), opened_below(tmp_path)) == (1, before)
