"""What public functions do with arguments that a caller gets wrong: a text for several, and unknown keywords."""

from __future__ import annotations

import enum
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt import core
from edl_ckpt.core import (
    Changes,
    Guards,
    Latest,
    Policy,
    Selection,
    Tagged,
    open_checkpoint,
    plan_copy,
    plan_prune,
    prune,
    remove_metadata,
    remove_metrics,
    save_checkpoint,
    set_metadata,
    set_metrics,
    strip_versions,
    tensor_stats,
    verify_versions,
)
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.several import several, several_pairs
from system_runs import step_run, tree


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location of two versions, with locations of one letter around it."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "r", "u", "n"):
        save_small(tmp_path / name, 1, 2)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location of two versions, for all tests of calls that change nothing."""
    run = tmp_path_factory.mktemp("saved_once") / "run"
    save_small(run, 1, 2)
    return run


@pytest.fixture
def unchanged(saved_once: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The location `run` in the current directory; whoever asks for it compares it with what it was."""
    monkeypatch.chdir(saved_once.parent)
    return saved_once


def test_a_location_as_a_text_is_one_location(run: Path) -> None:
    """Its letters are no locations, even where there are such."""
    assert [str(place) for place in plan_prune("run", Policy((Latest(1),))).locations] == ["run"]
    assert prune("run", Policy((Latest(1),))).deleted == ("run@1",)
    assert [numbers(run.parent / name) for name in ("run", "r", "u", "n")] == [[2], [1, 2], [1, 2], [1, 2]]
    one_rule, one_place = cast("Any", Latest(1)), cast("Any", run)
    prune(one_place, Policy(one_rule))


def test_a_reference_as_a_text_is_one_version(run: Path) -> None:
    """Verification and the plan of a copy take it, alone or in a list."""
    assert len(verify_versions("run@1").results) == 1
    assert len(plan_copy("run@1", run.parent / "copy").entries) == 1
    assert len(plan_copy(cast("Any", at(run, 1)), run.parent / "copy").entries) == 1


def test_a_key_as_a_text_is_one_key(run: Path) -> None:
    """Keys whose names are in that of another stay."""
    set_metadata("run@1", {"a": 1, "b": 2, "ab": 3})
    remove_metadata("run@1", "ab")
    assert set(at(run, 1).metadata) == {"a", "b"}
    set_metrics("run@1", {"a": 1, "auc": 3})
    remove_metrics("run@1", "auc")
    assert set(at(run, 1).metrics) == {"a"}
    with pytest.raises(NotFoundError):
        remove_metadata("run@1", "abc")


def test_names_as_texts_are_one_name(run: Path) -> None:
    """So it is in selections, changes, rules and guards."""
    one: Any = "user"
    assert Selection(tables=one, variables=one) == Selection(tables=("user",), variables=("user",))
    assert Changes(drop=one, rename=cast("Any", ("a", "b"))) == Changes(drop=("user",), rename=(("a", "b"),))
    assert Tagged(one).tags == ("user",)
    assert Guards(drop_tags=one, delete=cast("Any", 7)) == Guards(drop_tags=("user",), delete=(7,))
    save_checkpoint("other", 1, 1, variables={"bias": np.ones(2, np.float32)}, tables={})
    with open_checkpoint("other@1") as checkpoint:
        assert [one.name for one in tensor_stats(checkpoint, variables="bias", tables=())] == ["bias"]
        with pytest.raises(NotFoundError, match="no variable 'user'"):
            tensor_stats(checkpoint, variables="user", tables=())


def test_a_step_that_is_spared_as_a_text_stays(tmp_path: Path) -> None:
    """A path that is spared is one path, and one location is one location."""
    place = step_run(tmp_path / "run")
    before = tree(place)
    assert strip_versions(str(place), 2, spared=str(place / "step_10")) == ()
    assert tree(place) == before


@pytest.mark.parametrize("wrong", [None, b"run"])
def test_no_element_at_all_is_a_usage_error(wrong: Any) -> None:
    """Bytes and None are no elements."""
    with pytest.raises(UsageError):
        several(wrong, "names")
    with pytest.raises(UsageError):
        prune(wrong, Policy((Latest(1),)))


@pytest.mark.parametrize("wrong", ["ab", ["ab"], [("a", "b", "c")], [1]])
def test_what_is_no_pair_is_a_usage_error(wrong: Any) -> None:
    """A text of two letters is no pair of names."""
    with pytest.raises(UsageError):
        several_pairs(wrong, "rename")


GIVEN = {
    "version": "run@1",
    "versions": ["run@1"],
    "locations": ["run"],
    "location": "run",
    "source": "run@2",
    "target": "other",
    "output": "other",
    "tag": "best",
    "metrics": {"auc": 1.0},
    "modes": {"auc": "max"},
    "metadata": {"a": 1},
    "names": ["a"],
    "keys": ["a"],
    "text": "a",
    "policy": Policy((Latest(1),)),
    "ps_id": 0,
    "after": 1,
    "purpose": "test",
}
"""What the required arguments of a public function get, by their names; 1 for all others."""


NO_ARGUMENTS = (BaseException, enum.Enum)
"""Classes that callers do not make."""
NAMES_ITS_KEYWORDS = {"ObjectCheckpoint"}
"""As with tf.train.Checkpoint, each keyword is the name of an object."""


TAKE_SEVERAL = {
    "export_version.rename",
    "plan_copy.versions",
    "plan_prune.locations",
    "prune.locations",
    "remove_metadata.keys",
    "remove_metrics.names",
    "strip_versions.locations",
    "strip_versions.spared",
    "tensor_stats.tables",
    "tensor_stats.variables",
    "verify_versions.versions",
}
"""The arguments of functions that are several texts, or what a text may stand for; the tests above give each a text."""


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions, the classes, and the methods of the classes."""
    for name in core.__all__:
        found = getattr(core, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and not issubclass(found, NO_ARGUMENTS) and not getattr(found, "_is_protocol", 0):
            yield name, found
            methods = inspect.getmembers(found, inspect.isfunction)
            yield from ((f"{name}.{each}", method) for each, method in methods if not each.startswith("_"))


def test_each_argument_for_several_texts_takes_one() -> None:
    """A new argument of that kind needs a line in `TAKE_SEVERAL`, and a test."""
    several_texts = re.compile(
        r"(Sequence|Iterable|Collection|tuple)\[(tuple\[)?(str|VersionLike|LocationLike)\b(?!, int)"
    )
    found = {
        f"{name}.{parameter.name}"
        for name, function in public_functions()
        if inspect.isfunction(function) and "." not in name
        for parameter in inspect.signature(function).parameters.values()
        if several_texts.match(str(parameter.annotation))
    }
    assert found == TAKE_SEVERAL


@pytest.mark.parametrize("kind", [Changes, Guards, Policy, Selection, Tagged])
def test_a_text_for_several_is_one_in_every_value(kind: Callable[..., Any]) -> None:
    """Fields of several texts take one text as one; fields of pairs refuse it."""
    for name in [field.name for field in fields(cast("Any", kind)) if str(field.type).startswith("tuple[")]:
        if str(inspect.signature(kind).parameters[name].annotation).startswith("tuple[tuple["):
            with pytest.raises(UsageError):
                kind(**{name: "ab"})
        else:
            assert getattr(kind(**{name: "ab"}), name) == ("ab",)


def required(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the positional parameters without a default."""
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.default is p.empty and p.kind in positional]


def test_no_signature_has_room_for_an_unknown_keyword() -> None:
    """So type checkers find a misspelt argument, such as `outs` for `out`, and Python before anything is done."""
    open_ended = set()
    for name, function in public_functions():
        try:
            inspect.signature(function).bind(*required(function), unknown_keyword=1)
        except TypeError:
            continue
        open_ended.add(name)
    assert open_ended == NAMES_ITS_KEYWORDS


FUNCTIONS = [
    pytest.param(*pair, id=pair[0]) for pair in public_functions() if inspect.isfunction(getattr(core, pair[0], 0))
]


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_an_unknown_keyword_is_a_type_error(unchanged: Path, name: str, function: Callable[..., Any]) -> None:
    """A misspelt argument is never taken and forgotten, and changes nothing."""
    before = tree(unchanged)
    arguments = [GIVEN.get(p.name, 1) for p in required(function)]
    if name == "execute_copy":
        arguments = [plan_copy("run@1", "other")]
    with pytest.raises(TypeError):
        function(*arguments, unknown_keyword=1)
    assert tree(unchanged) == before


DUCKS = {"reporter", "executor", "value"}
"""Parameters that take whatever does what they need."""


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_an_argument_of_a_wrong_type_is_a_usage_error(unchanged: Path, name: str, function: Callable[..., Any]) -> None:
    """An argument of a wrong type, alone among right ones, is a UsageError, and changes nothing."""
    before = tree(unchanged)
    needed = {parameter.name: GIVEN.get(parameter.name, 1) for parameter in required(function)}
    for parameter in inspect.signature(function).parameters:
        if parameter not in DUCKS:
            given = {**needed, parameter: object()}
            arguments = [given.pop(each) for each in needed]
            with pytest.raises(UsageError):
                pytest.fail(f"{name} takes any {parameter}: {function(*arguments, **given)}")
    assert tree(unchanged) == before


def test_a_policy_that_is_a_number_is_named(run: Path) -> None:
    """The message names the parameter and what it takes."""
    with pytest.raises(UsageError, match="prune: policy must be Policy, got 3"):
        prune([run], cast("Any", 3))


def test_public_functions_travel_to_other_processes() -> None:
    """A public function is pickled by its public name."""
    assert pickle.loads(pickle.dumps(prune)) is prune
