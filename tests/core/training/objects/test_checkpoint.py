"""Saving and restoring objects: names, containers, aliases, delayed restoration, tables."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from types import CellType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checkpoints import at, numbers
from edl_ckpt.core import (
    Table,
    list_variables,
    load_variable,
    open_checkpoint,
    save_checkpoint,
    slice_variable,
    verify_version,
)
from edl_ckpt.core.base.errors import NotFoundError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.training.objects import EmbeddingTable, ObjectCheckpoint, Trackable, Variable
from s3_fixtures import Bucket


class Layer(Trackable):
    """A layer as frameworks have them: it makes its kernel when it is first called."""

    def __init__(self, units: int) -> None:
        self.bias = np.zeros(units, np.float32)

    def build(self, inputs: int) -> None:
        """Make the kernel, whose shape depends on the input."""
        self.kernel = np.zeros((inputs, len(self.bias)), np.float32)


class Plain:
    """A class of a user: it knows nothing of checkpoints."""

    def __init__(self) -> None:
        self.weights = np.zeros((2, 3))
        self._hidden = [np.zeros(2, np.int16)]
        self.name, self.rate = "plain", 0.1
        setattr(self, "itself", self)  # noqa: B010 - nothing else uses it


class Slotted:
    """A class with slots, one of which is not set."""

    __slots__ = ("unset", "value")

    def __init__(self) -> None:
        self.value = np.zeros(2)


def test_the_list_and_dictionary_example(tmp_path: Path) -> None:
    """The example of TensorFlow's guide: values are restored through either name, also into what is added later."""
    save = ObjectCheckpoint()
    save.listed = [Variable(1.0)]
    save.listed.append(Variable(2.0))
    save.mapped = {"one": save.listed[0]}
    save.mapped["two"] = save.listed[1]
    save_path = save.save(tmp_path / "run")

    restore = ObjectCheckpoint()
    v2 = Variable(0.0)
    restore.mapped = {"two": v2}
    status = restore.restore(save_path)
    assert v2.numpy() == 2.0
    restore.listed = []
    v1 = Variable(0.0)
    restore.listed.append(v1)
    assert v1.numpy() == 1.0
    status.assert_consumed()


def test_an_object_with_two_names_is_saved_once(tmp_path: Path) -> None:
    """It has the name of the shortest path; the other name finds it too, also below an object with two names."""
    inner = Plain()
    saved = ObjectCheckpoint(model=inner, other=[{"again": inner}])
    inner.weights += 7
    ref = saved.save(tmp_path / "run")
    assert list_variables(ref) == [("model/_hidden/0", [2]), ("model/weights", [2, 3]), ("save_counter", [])]
    assert load_variable(ref, "other/0/again/itself/weights")[1, 2] == 7
    fresh = Plain()
    ObjectCheckpoint(other=[{"again": fresh}]).restore(ref).assert_consumed()
    assert fresh.weights[1, 2] == 7


def test_the_seed_has_the_names_of_its_net(tmp_path: Path) -> None:
    """What an optimizer and a net share has the name of the net, as in TensorFlow; the other name finds it too."""
    net = Layer(5)
    net.bias += 2
    saved = ObjectCheckpoint(step=Variable(1), optimizer={"layers": net}, net={"l1": net})
    ref = saved.save(tmp_path / "run", ps_num=3)
    assert [name for name, _ in list_variables(ref)] == ["net/l1/bias", "save_counter", "step"]
    for name in ("net/l1/bias", "optimizer/layers/bias"):
        assert load_variable(ref, name).tolist() == [2] * 5
        values, _ = slice_variable(ref, name, "1:3")
        assert values.tolist() == [2, 2]
    with pytest.raises(NotFoundError, match="no variable 'optimizer/bias'"):
        slice_variable(ref, "optimizer/bias")
    fresh = ObjectCheckpoint(optimizer={"layers": Layer(5)}, step=Variable(0))
    fresh.restore(ref).assert_consumed()
    assert fresh.optimizer["layers"].bias.sum() == 10
    assert verify_version(ref, level="deep").ok


def test_a_later_restore_of_what_is_replaced(tmp_path: Path) -> None:
    """The last restore wins for numbers of numpy and tables too, for which a restore puts new ones in their place."""

    def contents(number: int) -> dict[str, Any]:
        rows = np.full((1, 2), number, np.float32)
        return {"rate": np.float64(number), "rows": Table(np.arange(1), rows), "net": {"w": np.full(2, number)}}

    refs = [ObjectCheckpoint(root={"x": contents(n)}).save(tmp_path / f"run{n}") for n in (1, 2)]
    shared = Trackable()
    older, newer = ObjectCheckpoint(root=shared), ObjectCheckpoint(root=shared)
    statuses = [older.restore(refs[0]), newer.restore(refs[1])]
    shared.x = Trackable()
    for name, value in contents(0).items():
        setattr(shared.x, name, value)
    assert (shared.x.rate, shared.x.rows.vectors.tolist(), shared.x.net["w"].tolist()) == (2, [[2, 2]], [2, 2])
    for status in statuses:
        status.assert_consumed()


def test_a_weak_root_that_is_gone(tmp_path: Path) -> None:
    """A checkpoint does not keep a root alive that it has as a weak reference; without it, nothing is saved."""
    root = Layer(2)
    checkpoint = ObjectCheckpoint(weakref.ref(root))
    ref = checkpoint.save(tmp_path / "run")
    assert repr(checkpoint) == "<ObjectCheckpoint of save_counter, bias>"
    del root
    gc.collect()
    for action in (lambda: checkpoint.save(tmp_path / "run"), lambda: checkpoint.restore(ref)):
        with pytest.raises(UsageError, match="a weak reference, is gone"):
            action()
    assert repr(checkpoint) == "<ObjectCheckpoint of nothing>"
    assert numbers(tmp_path / "run") == [1]
    with pytest.raises(UsageError, match="is gone"):
        ObjectCheckpoint(weakref.ref(Layer(2)))
    assert verify_version(ref, level="deep").ok


def test_two_objects_in_place_of_one_both_get_the_value(tmp_path: Path) -> None:
    """A program that has two arrays where the checkpoint has one under two names restores both; TensorFlow one."""
    shared = np.full(3, 5.0)
    ref = ObjectCheckpoint(a=shared, b=shared).save(tmp_path / "run")
    apart = ObjectCheckpoint(a=np.zeros(3), b=np.zeros(3))
    apart.restore(ref).assert_consumed()
    assert (apart.a == 5).all()
    assert (apart.b == 5).all()
    late = ObjectCheckpoint(a=np.zeros(3))
    late.restore(ref)
    late.a += 1
    late.b = late.a  # has its value already
    assert (late.a == 6).all()
    late.b = np.zeros(3)  # the name is taken: nothing waits for it any more
    assert (late.b == 0).all()


def test_plain_objects_are_tracked_by_their_attributes(tmp_path: Path) -> None:
    """Attributes of any class, private ones and slots too, in place; numbers and texts are not tracked."""
    for each in ((saved := ObjectCheckpoint(plain=Plain(), slotted=Slotted())),):
        each.plain.weights += 3
        each.plain._hidden[0] += 4
        each.slotted.value += 5
    ref = saved.save(tmp_path / "run")
    fresh = ObjectCheckpoint(plain=Plain(), slotted=Slotted())
    weights = fresh.plain.weights
    fresh.restore(ref).assert_consumed()
    assert (weights.sum(), fresh.plain._hidden[0].sum(), fresh.slotted.value.sum()) == (18, 8, 10)


def test_values_wait_until_they_are_created(tmp_path: Path) -> None:
    """A layer that makes its kernel late gets it restored as it is made; what is replaced later stays."""
    saved = ObjectCheckpoint(net=Layer(5))
    saved.net.build(2)
    saved.net.kernel += 4
    saved.net.bias += 1
    ref = saved.save(tmp_path / "run")
    fresh = ObjectCheckpoint()
    status = fresh.restore(ref)
    fresh.net = Layer(5)
    assert (fresh.net.bias == 1).all()
    fresh.net.build(2)
    assert (fresh.net.kernel == 4).all()
    status.assert_consumed()
    fresh.net.kernel = np.zeros((2, 5), np.float32)
    assert (fresh.net.kernel == 0).all()


def test_all_ways_to_add_are_noticed(tmp_path: Path) -> None:
    """Each method of a list or a dict that adds something restores it."""
    saved = ObjectCheckpoint(many=[Variable(float(i)) for i in range(6)], named={c: Variable(ord(c)) for c in "abcde"})
    saved.deep = {"list": [[Variable(9)]], "pair": ({"x": np.ones(2)}, np.ones(1))}
    ref = saved.save(tmp_path / "run")
    fresh = ObjectCheckpoint(many=[], named={})
    status = fresh.restore(ref)
    many, named = fresh.many, fresh.named
    many.append(Variable(-1.0))
    many.extend([Variable(-1.0)])
    many += [Variable(-1.0)]
    many.insert(99, Variable(-1.0))
    many[4:] = [Variable(-1.0)]
    many.append(Variable(-1.0))
    assert [float(v) for v in many] == [0, 1, 2, 3, 4, 5]
    named["a"] = Variable(0)
    named.update(b=Variable(0))
    named.setdefault("c", Variable(0))
    named |= {"d": Variable(0), "e": Variable(0)}
    assert [int(v) for v in named.values()] == [97, 98, 99, 100, 101]
    fresh.deep = {"list": [[]]}
    fresh.deep["list"][0].append(Variable(0))
    fresh.deep["pair"] = ({}, np.zeros(1))
    fresh.deep["pair"][0]["x"] = np.zeros(2)
    status.assert_consumed()
    assert (int(fresh.deep["list"][0][0]), fresh.deep["pair"][0]["x"].sum()) == (9, 2)


def test_a_checkpoint_says_what_it_has() -> None:
    """Its repr is one line with the names of its objects, and no values."""
    assert repr(ObjectCheckpoint(step=Variable(1), net={"w": np.zeros(3)})) == "<ObjectCheckpoint of net, step>"
    many = ObjectCheckpoint(**{f"v{number}": Variable(number) for number in range(10)})
    assert repr(many).endswith(", v7, and 2 more>")
    assert repr(ObjectCheckpoint()) == "<ObjectCheckpoint of nothing>"


def test_names_are_unique(tmp_path: Path) -> None:
    """Keys with '/' and '.' are escaped as in TensorFlow, so no two paths have one name."""
    keys = ["a/b", "a", "a.b", "a..b", "a.Sb", ".S", "/", "", "é 字", ".ALIASES"]
    saved = ObjectCheckpoint(d={key: Variable(number) for number, key in enumerate(keys)})
    saved.d["nested"] = {"b": Variable(77)}
    ref = saved.save(tmp_path / "run")
    assert {"d/a.Sb", "d/a..b", "d/", "d/nested/b"} <= {name for name, _ in list_variables(ref)}
    fresh = ObjectCheckpoint(d={key: Variable(-1) for key in keys} | {"nested": {"b": Variable(-1)}})
    fresh.restore(ref).assert_consumed()
    assert [int(fresh.d[key]) for key in keys] == list(range(len(keys)))


def test_tables_are_tables_of_the_version(tmp_path: Path) -> None:
    """A table is saved with ids and initializer; the new rows come into the object, or for a `Table` into its place."""
    ids = np.array([4, -2, 9])
    saved = ObjectCheckpoint(
        user=Table(ids, np.ones((3, 2), np.float32), "zeros"), item=EmbeddingTable(ids[:1], np.full((1, 4), 2.0))
    )
    ref = saved.save(tmp_path / "run", 7, ps_num=2)
    with open_checkpoint(ref) as checkpoint:
        assert (checkpoint.table_names, checkpoint.infos["user"].initializer) == (["item", "user"], "zeros")
    item = EmbeddingTable(np.arange(8), np.zeros((8, 4)))
    fresh = ObjectCheckpoint(user=Table(ids[:0], np.zeros((0, 2), np.float32)), item=item)
    fresh.restore(ref).assert_consumed()
    assert (sorted(fresh.user.ids), fresh.user.initializer) == ([-2, 4, 9], "zeros")
    assert (item.ids.tolist(), item.vectors.tolist()) == ([4], [[2.0] * 4])
    with pytest.raises(NotFoundError, match="'user' is a table"):
        load_variable(ref, "user")


def test_checkpoints_of_others_are_restored(tmp_path: Path) -> None:
    """Any version will do: names of others are paths too, with dots as they are; its number sets the save counter."""
    arrays = {"net/l1/kernel:0": np.ones(2), "layer.0.weight": np.full(2, 2.0)}
    save_checkpoint(tmp_path / "run", 40, 3, variables=arrays, tables={"t": Table(np.arange(5), np.ones((5, 1)))})
    mine = ObjectCheckpoint(net={"l1": {"kernel:0": np.zeros(2)}}, t=EmbeddingTable(np.arange(0), np.zeros((0, 1))))
    status = mine.restore(f"{tmp_path / 'run'}@latest")
    setattr(mine, "layer.0.weight", np.zeros(2))
    status.assert_consumed()
    assert (mine.net["l1"]["kernel:0"].sum(), getattr(mine, "layer.0.weight").sum(), len(mine.t)) == (2, 4, 5)
    assert int(mine.save_counter) == 40
    assert mine.save(tmp_path / "run").number == 41


def test_the_attributes_of_a_root(tmp_path: Path) -> None:
    """With a root, the names are those of its attributes, as in `tf.train.Checkpoint(model)`; it is also waited for."""
    root = Layer(2)
    root.build(1)
    ref = ObjectCheckpoint(root, step=Variable(3)).save(tmp_path / "run")
    assert [name for name, _ in list_variables(ref)] == ["bias", "kernel", "save_counter", "step"]
    fresh = Layer(2)
    status = ObjectCheckpoint(fresh, step=Variable(0)).restore(ref)
    fresh.build(1)
    status.assert_consumed()
    with pytest.raises(UsageError, match="'bias' is taken"):
        ObjectCheckpoint(fresh, bias=Variable(0))


def test_values_that_cannot_be_changed_are_replaced(tmp_path: Path) -> None:
    """A scalar of numpy and an array that is read-only get a new value in their place; in a tuple there is none."""
    frozen = np.ones(2)
    frozen.flags.writeable = False
    ref = ObjectCheckpoint(a=np.float32(2), d={"x": frozen}, plain=SimpleNamespace(n=np.int64(4))).save(tmp_path / "r")
    other = np.zeros(2)
    other.flags.writeable = False
    fresh = ObjectCheckpoint(a=np.float32(0), d={"x": other}, plain=SimpleNamespace(n=np.int64(0)))
    fresh.restore(ref).assert_consumed()
    assert (fresh.a, fresh.d["x"].tolist(), fresh.plain.n) == (2, [1, 1], 4)
    late = ObjectCheckpoint()
    late.restore(ref).expect_partial()
    late.a = np.float32(0)
    assert late.a == 2
    pair = ObjectCheckpoint(pair=(np.float32(1),)).save(tmp_path / "r", 2)
    with pytest.raises(UsageError, match=r"pair/0: float32 float32 \[\]: in a tuple it can be neither"):
        ObjectCheckpoint(pair=(np.float32(0),)).restore(pair)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c.l.__delitem__(0), "l: an element of the list was removed or moved"),
        (lambda c: c.l.insert(0, Variable(1)), "l: an element of the list was removed or moved"),
        (lambda c: c.l.reverse(), "l: an element of the list was removed or moved"),
        (lambda c: c.l.pop(), "l: an element of the list was removed or moved"),
        (lambda c: c.l.__setitem__(slice(0, 1), []), "l: an element of the list was removed or moved"),
        (lambda c: c.d.__setitem__(3, Variable(1)), "d/3: only texts can be keys"),
    ],
)
def test_what_could_not_be_restored_is_not_saved(tmp_path: Path, change: Any, fault: str) -> None:
    """As in TensorFlow, a save refuses lists whose positions changed and keys that are no texts; nothing changes."""
    mine = ObjectCheckpoint(l=[Variable(1), Variable(2)], d={})
    mine.save(tmp_path / "run")
    change(mine)
    with pytest.raises(ValueError, match=fault):
        mine.save(tmp_path / "run")
    assert (int(mine.save_counter), numbers(tmp_path / "run")) == (1, [1])


def test_a_restore_keeps_no_number(tmp_path: Path) -> None:
    """A number of numpy, which has no weak references, is kept by nothing when its checkpoint and restore are gone."""
    ref = ObjectCheckpoint(a=np.float32(2)).save(tmp_path)
    fresh = ObjectCheckpoint(a=np.float32(0))
    fresh.restore(ref)
    number = fresh.a
    assert number == 2
    del fresh
    gc.collect()
    assert not [each for each in gc.get_referrers(number) if isinstance(each, CellType)]
    assert verify_version(ref, level="deep").ok


def test_a_change_past_the_attribute_is_noticed(tmp_path: Path) -> None:
    """A list or dict that was set as an attribute and then changed itself would be lost, so the save says so."""
    listed: list[object] = []
    mapped: dict[str, object] = {"deep": {}}
    mine = ObjectCheckpoint(l=listed, d=mapped, ok=Variable(1))
    listed.append(Variable(1))
    mapped["deep"]["x"] = 3  # type: ignore[index]
    with pytest.raises(UsageError, match=r"l: the list that was set .* changed afterwards(.|\n)*d/deep: the dict"):
        mine.save(tmp_path / "run")
    mine.l = listed
    mine.d = mapped
    assert [name for name, _ in list_variables(mine.save(tmp_path / "run"))] == ["l/0", "ok", "save_counter"]


def test_what_contains_itself() -> None:
    """A list that contains itself cannot be tracked; an object that does can."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="l: the list is nested too deeply, or contains itself"):
        ObjectCheckpoint(l=endless)


@pytest.mark.parametrize(
    ("objects", "fault"),
    [
        ({"step": 1}, "step: int cannot be tracked"),
        ({"name": "x"}, "name: str cannot be tracked"),
        ({"save": Variable(1)}, "'save' is taken"),
        ({"save_counter": Variable(1)}, "'save_counter' is taken"),
    ],
)
def test_what_cannot_be_tracked(objects: dict[str, Any], fault: str) -> None:
    """Arguments that could not be saved or that hide a method are refused, as ValueError, as in TensorFlow."""
    with pytest.raises(ValueError, match=fault):
        ObjectCheckpoint(**objects)


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The save counter stays, and so does the location: a number that is taken, a dtype that no checkpoint has."""
    mine = ObjectCheckpoint(v=Variable(1))
    mine.save(tmp_path / "run")
    with pytest.raises(RefusedError, match="version 1 exists there already"):
        mine.save(tmp_path / "run", 1)
    mine.c = np.zeros(2, np.complex64)
    with pytest.raises(UnsupportedError):
        mine.save(tmp_path / "run")
    with pytest.raises(UsageError, match="must be a whole number"):
        mine.save(tmp_path / "run", 1.5)
    assert (int(mine.save_counter), numbers(tmp_path / "run")) == (1, [1])


def test_on_s3_only_what_is_needed_is_read(s3: Bucket) -> None:
    """Saved and restored on S3 like on a disk; restoring one of two variables reads the bytes of one."""
    saved = ObjectCheckpoint(small=np.ones(10), large=np.ones(2_000_000, np.int8))
    ref = saved.save(s3.url)
    assert verify_version(at(s3.url)).ok
    small = ObjectCheckpoint(small=np.zeros(10))
    status = small.restore(ref).expect_partial()
    assert (small.small == 1).all()
    assert small._own.restoration is not None
    assert small._own.restoration.values.checkpoint.bytes_read < 100_000
    small.large = np.zeros(2_000_000, np.int8)
    status.assert_consumed()
    assert small.large.all()


def test_copies_wait_for_nothing(tmp_path: Path) -> None:
    """A deep copy of tracked objects is independent of them and of the restore that they wait for."""
    saved = ObjectCheckpoint(net=Layer(2), l=[Variable(1)], d={"x": Variable(2)})
    saved.restore(saved.save(tmp_path / "run"))
    other = copy.deepcopy(saved)
    other.net.bias += 1
    other.l.append(Variable(5))
    assert (saved.net.bias == 0).all()
    assert (type(other.l), type(other.d), len(saved.l)) == (list, dict, 1)
    assert [name for name, _ in list_variables(other.save(tmp_path / "other"))][:2] == ["d/x", "l/0"]
