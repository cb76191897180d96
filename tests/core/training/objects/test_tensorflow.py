"""The same script with TensorFlow's manager and with ours: what remains, what is returned, what is restored.

The results are written out, so that they are also compared where TensorFlow is not installed. With it, they are
compared with what `tf.train` really does.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checkpoints import numbers
from edl_ckpt.core.training.objects import (
    CheckpointManager,
    ObjectCheckpoint,
    Trackable,
    Variable,
    list_variables,
    manager,
)
from frameworks import need

HOUR = 3600.0


class Clock:
    """The time as a manager sees it; it stands still unless it is set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        """Return the time."""
        return self.now


class Api:
    """One of the two libraries, with the names that scripts use."""

    Checkpoint: Any
    Manager: Any
    Trackable: Any
    Variable: Callable[[Any], Any]
    list_variables: Callable[[Any], list[tuple[str, list[int]]]]

    def remaining(self, directory: Path) -> list[int]:
        """Return the numbers of the checkpoints in a directory."""
        raise NotImplementedError


class Ours(Api):
    """This library."""

    Checkpoint, Manager, Variable = ObjectCheckpoint, CheckpointManager, staticmethod(Variable)
    Trackable = Trackable
    list_variables = staticmethod(list_variables)

    def remaining(self, directory: Path) -> list[int]:
        """Return the numbers of the versions."""
        return numbers(directory)


class TensorFlow(Api):
    """`tf.train`."""

    def __init__(self) -> None:
        tf = need("tensorflow")
        self.Checkpoint, self.Manager, self.Variable = tf.train.Checkpoint, tf.train.CheckpointManager, tf.Variable
        self.Trackable = tf.__internal__.tracking.AutoTrackable
        self.list_variables = lambda ref: [
            (name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"), shape)
            for name, shape in tf.train.list_variables(ref)
            if not name.startswith("_")
        ]

    def remaining(self, directory: Path) -> list[int]:
        """Return the numbers of the files."""
        return sorted(number_of(path) or 0 for path in directory.glob("*.index"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the time by hand for both libraries."""
    made = Clock()
    monkeypatch.setattr(manager, "time", made)
    return made


@pytest.fixture(params=["ours", pytest.param("tensorflow", marks=pytest.mark.frameworks)])
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Api]:
    """Run a test with either library."""
    if request.param == "ours":
        yield Ours()
        return
    tensorflow = TensorFlow()
    monkeypatch.setattr(import_module("tensorflow.python.checkpoint.checkpoint_management"), "time", clock)
    yield tensorflow


def number_of(ref: object) -> int | None:
    """Return the number at the end of a reference or a path; None for None."""
    return None if ref is None else int(re.findall(r"\d+", str(ref).removesuffix(".index"))[-1])


def test_the_training_guide(api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's example: 50 steps, new objects restored from the fifth save, steps 60 to 100, three remain."""
    directory = tmp_path / "tf_ckpts"

    def train_and_checkpoint() -> tuple[Any, list[float]]:
        net = SimpleNamespace(l1=None)
        kernel, bias = api.Variable(np.zeros((1, 5), np.float32)), api.Variable(np.zeros(5, np.float32))
        net = api.Checkpoint(l1=api.Checkpoint(kernel=kernel, bias=bias))
        velocity = api.Variable(np.zeros((1, 5), np.float32))
        ckpt = api.Checkpoint(step=api.Variable(1), optimizer=api.Checkpoint(velocity=velocity), net=net)
        manager = api.Manager(ckpt, directory, max_to_keep=3)
        ckpt.restore(manager.latest_checkpoint)
        if manager.latest_checkpoint:
            print(f"Restored from {number_of(manager.latest_checkpoint)}")
        else:
            print("Initializing from scratch.")
        errors = []
        for _ in range(50):
            x = np.float32(int(ckpt.step) % 10)
            error = x * 5.0 + np.arange(5, dtype=np.float32) - (x * kernel.numpy()[0] + bias.numpy())
            errors.append(float(np.abs(error).mean()))
            velocity.assign(np.float32(0.5) * velocity.numpy() + x * error[None] / 100)
            kernel.assign_add(velocity.numpy())
            bias.assign_add(error / 100)
            ckpt.step.assign_add(1)
            if int(ckpt.step) % 10 == 0:
                save_path = manager.save()
                print(f"Saved checkpoint for step {int(ckpt.step)}: {number_of(save_path)}")
        return manager, errors

    _, first = train_and_checkpoint()
    manager, second = train_and_checkpoint()
    saves = [f"Saved checkpoint for step {step}: {step // 10}" for step in range(10, 101, 10)]
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["Initializing from scratch.", *saves[:5], "Restored from 5", *saves[5:]]
    assert [number_of(each) for each in manager.checkpoints] == api.remaining(directory) == [8, 9, 10]
    assert 0 < second[-1] < first[-1] / 2
    assert api.list_variables(manager.latest_checkpoint) == [
        ("net/l1/bias", [5]),
        ("net/l1/kernel", [1, 5]),
        ("optimizer/velocity", [1, 5]),
        ("save_counter", []),
        ("step", []),
    ]
    # The bias alone, then the kernel as soon as it is there.
    to_restore = api.Variable(np.zeros(5, np.float32))
    fake_layer = api.Checkpoint(bias=to_restore)
    fake_net = api.Checkpoint(l1=fake_layer)
    status = api.Checkpoint(net=fake_net).restore(manager.latest_checkpoint).expect_partial()
    assert to_restore.numpy().sum() > 0
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError):
        status.assert_consumed()
    delayed_restore = api.Variable(np.zeros((1, 5), np.float32))
    fake_layer.kernel = delayed_restore
    assert delayed_restore.numpy().sum() > 0


def test_every_n_hours(api: Api, tmp_path: Path, clock: Clock) -> None:
    """What falls out is kept for ever when it is an hour younger than the last such; later managers leave it."""
    ckpt = api.Checkpoint(v=api.Variable(1.0))
    manager = api.Manager(ckpt, tmp_path, max_to_keep=2, keep_checkpoint_every_n_hours=1)
    for _ in range(6):
        clock.now += HOUR / 2
        manager.save()
    assert api.remaining(tmp_path) == [2, 4, 5, 6]
    assert [number_of(each) for each in manager.checkpoints] == [5, 6]
    clock.now += HOUR
    again = api.Manager(ckpt, tmp_path, max_to_keep=2, keep_checkpoint_every_n_hours=1)
    again.save()
    again.save()
    assert api.remaining(tmp_path) == [2, 4, 6, 7, 8]
    stricter = api.Manager(ckpt, tmp_path, max_to_keep=1)
    stricter.save()
    assert api.remaining(tmp_path) == [2, 4, 6, 9]
    assert [number_of(each) for each in stricter.checkpoints] == [9]


def test_the_clock_goes_back(api: Api, tmp_path: Path, clock: Clock) -> None:
    """After the clock was set back, versions of before are the oldest; TensorFlow forgets them, so they stay for ever.

    One that is still among those to keep is not deleted, and later ones are preserved every hour as before.
    """
    ckpt = api.Checkpoint(v=api.Variable(1.0))
    api.Manager(ckpt, tmp_path, max_to_keep=2).save()
    clock.now -= 10 * HOUR
    manager = api.Manager(ckpt, tmp_path, max_to_keep=1)
    manager.save()
    clock.now += 1
    manager.save()
    theirs = [1] if isinstance(api, TensorFlow) else []
    assert api.remaining(tmp_path) == [*theirs, 3]
    assert number_of(manager.latest_checkpoint) == 3
    clock.now -= 10 * HOUR
    hourly = api.Manager(ckpt, tmp_path, max_to_keep=2, keep_checkpoint_every_n_hours=1)
    hourly.save()
    assert api.remaining(tmp_path) == [*theirs, 3, 4]
    for _ in range(6):
        clock.now += HOUR / 2
        hourly.save()
    assert api.remaining(tmp_path) == ([1, 3, 6, 8, 9, 10] if theirs else [6, 8, 9, 10])


def test_other_settings_after_a_restart(api: Api, tmp_path: Path, clock: Clock) -> None:
    """None keeps all; a later manager with a limit applies it to all that managers saved, at its next save."""
    ckpt = api.Checkpoint(v=api.Variable(1.0))
    first = api.Manager(ckpt, tmp_path, max_to_keep=None)
    for _ in range(4):
        first.save()
        clock.now += 1
    later = api.Manager(ckpt, tmp_path, max_to_keep=2)
    assert [number_of(each) for each in later.checkpoints] == [1, 2, 3, 4]
    later.save()
    assert api.remaining(tmp_path) == [4, 5]


def test_numbers_of_the_caller(api: Api, tmp_path: Path, clock: Clock) -> None:
    """A given number does not change the counter's own counting; saved again, a version is the newest."""
    ckpt = api.Checkpoint(v=api.Variable(1.0), step=api.Variable(40))
    manager = api.Manager(ckpt, tmp_path, max_to_keep=3)
    assert number_of(manager.save(checkpoint_number=10)) == 10
    assert number_of(manager.save(ckpt.step)) == 40
    assert number_of(manager.save(50)) == 50
    clock.now += 1
    ckpt.v.assign(2.0)
    assert number_of(manager.save(checkpoint_number=40)) == 40
    assert int(ckpt.save_counter) == 4
    assert number_of(manager.latest_checkpoint) == 40
    assert [number_of(each) for each in manager.checkpoints] == [10, 50, 40]
    fresh = api.Checkpoint(v=api.Variable(0.0), step=api.Variable(0))
    assert number_of(api.Manager(fresh, tmp_path, max_to_keep=3).restore_or_initialize()) == 40
    assert (float(fresh.v.numpy()), int(fresh.save_counter)) == (2.0, 4)


def test_an_interval_of_steps(api: Api, tmp_path: Path) -> None:
    """`save` does nothing before the interval is over, unless asked to, and never twice for one step."""
    step = api.Variable(0)
    ckpt = api.Checkpoint(step=step)
    manager = api.Manager(ckpt, tmp_path, max_to_keep=5, step_counter=step, checkpoint_interval=3)
    saved = []
    for _ in range(8):
        saved.append(number_of(manager.save()))
        step.assign_add(1)
    assert saved == [1, None, None, 2, None, None, 3, None]
    assert number_of(manager.save(check_interval=False)) == 4
    assert manager.save(check_interval=False) is None
    assert manager.checkpoint_interval == 3
    again = api.Manager(ckpt, tmp_path, max_to_keep=5, step_counter=step, checkpoint_interval=3)
    assert number_of(again.restore_or_initialize()) == 4
    assert again.save() is None
    step.assign_add(3)
    assert number_of(again.save()) == 5


def test_an_interval_that_began_earlier(api: Api, tmp_path: Path) -> None:
    """With `last_checkpoint_step`, the first interval is counted from that step."""
    step = api.Variable(5)
    ckpt = api.Checkpoint(step=step)
    settings = {"max_to_keep": 5, "step_counter": step, "checkpoint_interval": 3}
    manager = api.Manager(ckpt, tmp_path, last_checkpoint_step=4, **settings)
    assert manager.save() is None
    step.assign_add(2)
    assert number_of(manager.save()) == 1
    assert number_of(api.Manager(ckpt, tmp_path, last_checkpoint_step=7, **settings).save(check_interval=True)) is None


def test_names_are_taken_in_order(api: Api, tmp_path: Path) -> None:
    """Of two names of equal length the first in the alphabet counts, whatever the order of the keywords."""
    layer = api.Checkpoint(bias=api.Variable(np.ones(5, np.float32)))
    optimizer, net = api.Checkpoint(l1=layer), api.Checkpoint(l1=layer)
    ref = api.Checkpoint(step=api.Variable(1), optimizer=optimizer, net=net).save(tmp_path / "run")
    assert [name for name, _ in api.list_variables(ref)] == ["net/l1/bias", "save_counter", "step"]
    late = api.Variable(np.zeros(5, np.float32))
    api.Checkpoint(optimizer=api.Checkpoint(l1=api.Checkpoint(bias=late))).restore(ref).expect_partial()
    assert late.numpy().sum() == 5


def test_the_last_restore_wins(api: Api, tmp_path: Path) -> None:
    """Where delayed restores overlap, a value comes from the last `restore`, at any depth, in any order."""
    refs = []
    for number in (1.0, 2.0):
        layer = api.Checkpoint(k=api.Variable(number), deep=api.Checkpoint(d=api.Variable(number)))
        saved = api.Checkpoint(net=api.Checkpoint(l1=layer), v=api.Variable(number))
        refs.append(saved.save(tmp_path / f"run{number}"))
    net = api.Trackable()
    older, newer = api.Checkpoint(net=net), api.Checkpoint(net=net)
    statuses = [older.restore(refs[0]), newer.restore(refs[1])]
    net.l1 = api.Trackable()
    net.l1.deep = api.Trackable()
    net.l1.k, net.l1.deep.d = api.Variable(0.0), api.Variable(0.0)
    assert (float(net.l1.k.numpy()), float(net.l1.deep.d.numpy())) == (2, 2)
    value = api.Variable(0.0)
    newer.v = value  # from the later one, at once
    older.v = value  # and the earlier one, which waited for it, does not take it back
    assert float(value.numpy()) == 2
    for status in statuses:
        status.assert_consumed()
        status.assert_existing_objects_matched()
    older.restore(refs[0]).assert_consumed()  # now this one is the last
    assert [float(each.numpy()) for each in (value, net.l1.k, net.l1.deep.d)] == [1, 1, 1]


def test_a_weak_root(api: Api, tmp_path: Path) -> None:
    """A weak reference to the root is enough to save and restore it, under the names that the root itself gets."""
    root = api.Trackable()
    root.v = api.Variable(3.0)
    checkpoint = api.Checkpoint(weakref.ref(root), more=api.Variable(4.0))
    ref = checkpoint.save(tmp_path / "run")
    assert [name for name, _ in api.list_variables(ref)] == ["more", "save_counter", "v"]
    root.v.assign(0.0)
    checkpoint.restore(ref).assert_consumed()
    assert float(root.v.numpy()) == 3
    late = api.Trackable()
    status = api.Checkpoint(weakref.ref(late)).restore(ref).expect_partial()
    late.v = api.Variable(0.0)
    assert float(late.v.numpy()) == 3
    status.assert_existing_objects_matched()


def test_init_fn(api: Api, tmp_path: Path) -> None:
    """`init_fn` is called when there is nothing to restore, and only then; the result is None."""
    calls: list[int] = []
    ckpt = api.Checkpoint(v=api.Variable(1.0))
    manager = api.Manager(ckpt, tmp_path, max_to_keep=1, init_fn=lambda: calls.append(1))
    assert manager.restore_or_initialize() is None
    assert (manager.latest_checkpoint, manager.checkpoints, calls) == (None, [], [1])
    manager.save()
    ckpt.v.assign(9.0)
    assert number_of(manager.restore_or_initialize()) == 1
    assert (float(ckpt.v.numpy()), calls) == (1.0, [1])


@pytest.mark.parametrize(
    "settings", [{"max_to_keep": 0}, {"max_to_keep": -1}, {"max_to_keep": 1, "checkpoint_interval": 3}]
)
def test_settings_that_make_no_sense(api: Api, tmp_path: Path, settings: dict[str, Any]) -> None:
    """A limit below one and an interval without a counter are ValueErrors."""
    with pytest.raises(ValueError, match=r"max_to_keep|step_counter"):
        api.Manager(api.Checkpoint(), tmp_path, **settings)


def test_statuses(api: Api, tmp_path: Path) -> None:
    """Which assertions fail for equal objects, for fewer, for more, for other ones, and for no checkpoint."""

    def failing(objects: dict[str, float], ref: Any) -> list[str]:
        status = api.Checkpoint(**{name: api.Variable(value) for name, value in objects.items()}).restore(ref)
        status.expect_partial()
        found = []
        for check in ("assert_consumed", "assert_existing_objects_matched"):
            try:
                getattr(status, check)()
            except AssertionError:
                found.append(check)
        return found

    saved = api.Checkpoint(a=api.Variable(1.0), b=api.Variable(2.0))
    ref = saved.save(tmp_path / "run")
    both = ["assert_consumed", "assert_existing_objects_matched"]
    assert failing({"a": 0.0, "b": 0.0}, ref) == []
    assert failing({"a": 0.0}, ref) == ["assert_consumed"]
    assert failing({}, ref) == ["assert_consumed"]
    assert failing({"a": 0.0, "b": 0.0, "c": 0.0}, ref) == both
    assert failing({"c": 0.0}, ref) == both
    assert failing({"a": 0.0}, None) == both


def test_lists_and_dictionaries(api: Api, tmp_path: Path) -> None:
    """The guide's example, and names: an alias has none, and keys with '/' and '.' are escaped."""
    save = api.Checkpoint()
    save.listed = [api.Variable(1.0)]
    save.listed.append(api.Variable(2.0))
    save.mapped = {"one": save.listed[0]}
    save.mapped["two"] = save.listed[1]
    save.mapped["a/b.c"] = api.Variable(3.0)
    save.mapped[""] = (api.Variable(4.0), [api.Variable(5.0), {"x": api.Variable(6.0)}])
    save_path = save.save(tmp_path / "run")
    names = ["listed/0", "listed/1", "mapped//0", "mapped//1/0", "mapped//1/1/x", "mapped/a.Sb..c", "save_counter"]
    assert [name for name, _ in api.list_variables(save_path)] == names

    restore = api.Checkpoint()
    v2 = api.Variable(0.0)
    restore.mapped = {"two": v2}
    status = restore.restore(save_path).expect_partial()
    assert v2.numpy() == 2.0
    restore.listed = []
    v1 = api.Variable(0.0)
    restore.listed.append(v1)
    assert v1.numpy() == 1.0
    restore.mapped[""] = (api.Variable(0.0), [])
    restore.mapped[""][1].append(api.Variable(0.0))
    restore.mapped[""][1].append({"x": api.Variable(0.0)})
    values = (restore.mapped[""][0], restore.mapped[""][1][0], restore.mapped[""][1][1]["x"])
    assert [float(value.numpy()) for value in values] == [4, 5, 6]
    restore.mapped["a/b.c"] = api.Variable(0.0)
    status.assert_consumed()
    restore.mapped["a/b.c"] = api.Variable(0.0)  # another one: nothing waits for it any more
    assert restore.mapped["a/b.c"].numpy() == 0.0
    with pytest.raises(AssertionError):
        status.assert_existing_objects_matched()


@pytest.mark.parametrize(
    "change",
    [
        lambda c, _, v: c.l.pop(),
        lambda c, _, v: c.l.insert(0, v),
        lambda c, _, v: c.l.__delitem__(0),
        lambda c, originals, v: originals[0].append(v),
        lambda c, originals, v: originals[1].update(x=v),
        lambda c, _, v: c.d.update({3: v}),
    ],
    ids=["pop", "insert", "delete", "append to the original", "update the original", "a key that is no text"],
)
def test_containers_that_are_not_saved(api: Api, tmp_path: Path, change: Callable[..., object]) -> None:
    """Lists whose elements moved, originals that changed unseen and keys that are no texts are ValueErrors."""
    listed, mapped = [api.Variable(1.0), api.Variable(2.0)], {"a": api.Variable(3.0)}
    checkpoint = api.Checkpoint()
    checkpoint.l, checkpoint.d = listed, mapped
    checkpoint.save(tmp_path / "run")
    change(checkpoint, (listed, mapped), api.Variable(4.0))
    with pytest.raises(ValueError, match=r"Unable to save|changed afterwards|removed or moved|only texts"):
        checkpoint.save(tmp_path / "run")
