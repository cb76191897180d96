"""The arguments of public functions: one of a wrong type is a UsageError before anything is done.

A function is checked by its own annotations, when it is first called. What an annotation cannot tell at run time, such
as a protocol, passes.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union

from edl_ckpt.core.base.errors import UsageError

P = ParamSpec("P")
Result = TypeVar("Result")
Check = Callable[[Any], bool]

_NUMBERS: Final[Mapping[type, str]] = {bool: "__index__", int: "__index__", float: "__float__"}
"""What a value has that can be taken for such a number: numbers of numpy and of frameworks have it, too."""

_IN_WORDS: Final = {"int": "a whole number", "float": "a number", "str": "a text", "Mapping": "a mapping"}
_CALLABLE: Final[Any] = Callable
_OF_SEVERAL: Final = {"builtins", "collections.abc"}
"""The modules of the collections whose first parameter is the type of an element."""


def checked(function: Callable[P, Result], home: str) -> Callable[P, Result]:
    """Return a public function of the module `home` that looks at its arguments first."""
    code = inspect.unwrap(function).__code__  # of a context manager, the function that it was made from
    names = code.co_varnames[: code.co_argcount]
    keywords = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        checks = _checks_of(function)
        is_call = len(args) <= len(names) and keywords.issuperset(kwargs)  # else Python has a TypeError for it
        for name, value in (*zip(names, args, strict=False), *kwargs.items()) if is_call else ():
            if name in checks and not checks[name](value):
                annotation = function.__annotations__[name]
                wanted = _IN_WORDS.get(annotation.partition("[")[0], annotation)
                raise UsageError(f"{function.__name__}: {name} must be {wanted}, got {value!r:.80}")
        return function(*args, **kwargs)

    call.__module__ = home  # so that it is pickled by its public name
    return call


@functools.cache
def _checks_of(function: Callable[..., Any]) -> dict[str, Check]:
    """Return the checks of the parameters whose annotations can be resolved."""
    checks: dict[str, Check] = {}
    for name, annotation in function.__annotations__.items():
        if name == "return":
            continue
        try:
            alone = SimpleNamespace(__annotations__={name: annotation})
            hint = typing.get_type_hints(alone, globalns=inspect.unwrap(function).__globals__)[name]
        except (NameError, TypeError, AttributeError):
            continue
        check = _check_of(hint)
        if check is not None:
            checks[name] = check
    return checks


def _check_of(hint: Any) -> Check | None:
    """Return what says whether a value has a type; None where every value may have it."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        kinds = tuple({type(choice) for choice in typing.get_args(hint)})
        return lambda value: isinstance(value, kinds)  # another text gets a message of its own
    if origin in {Union, types.UnionType}:
        return _check_of_union(typing.get_args(hint))
    if isinstance(origin, type):
        return _check_of_several(origin, typing.get_args(hint))
    if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return None
    if hint in _NUMBERS:
        needed = _NUMBERS[hint]
        return lambda value: hasattr(value, needed) or (hint is float and hasattr(value, "__index__"))
    return None if hint is object else lambda value: isinstance(value, hint)


def _check_of_union(hints: tuple[Any, ...]) -> Check | None:
    checks: list[Check] = []
    for hint in hints:
        check = _check_of(hint)
        if check is None:
            return None
        checks.append(check)
    return lambda value: any(check(value) for check in checks)


def _check_of_several(origin: type, hints: tuple[Any, ...]) -> Check | None:
    """Return the check of a collection; where several are expected, one element stands for itself alone.

    Of many elements the first is looked at.
    """
    if origin is _CALLABLE:
        return callable
    if getattr(origin, "_is_protocol", False):
        return None
    if issubclass(origin, Mapping) or not issubclass(origin, Iterable):
        return lambda value: isinstance(value, origin)
    one = _check_of(hints[0]) if hints and origin.__module__ in _OF_SEVERAL else None

    def check(value: Any) -> bool:
        if one is None or not isinstance(value, list | tuple):
            return isinstance(value, Iterable) or (one is not None and one(value))
        return not value or one(value[0])

    return check
