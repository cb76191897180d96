"""Nests of dicts, lists and tuples as flat variables and back.

A leaf that is an array becomes a variable named by its path, such as 'state/0/exp_avg'. The rest, which no checkpoint
of arrays can contain (which keys are numbers, what is a tuple, plain values such as a learning rate), goes to one more
variable: `STRUCTURE`, JSON as int8, the one integer of a byte that ElasticDL reads. Of a flat dict of arrays there is
no rest, so it has no such variable. Nothing is ever unpickled. Adapters read the variables of a checkpoint as they are,
or describe them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import as_array, dtype_name, is_array, is_of
from edl_ckpt.core.base.errors import CorruptError, NameNotFoundError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document


def read_variable(variables: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    """Return a variable of an open checkpoint or another mapping, bfloat16 bit for bit; NameNotFoundError if absent."""
    if isinstance(variables, Checkpoint):
        return variables.variable(name, bits=True)
    if name not in variables:
        raise NameNotFoundError(f"no variable {name!r}", hint=meant(name, variables, "variables"))
    return as_array(variables[name], f"variable {name!r}")


def array_of(value: Any, name: str) -> npt.NDArray[Any]:
    """Return a value of a program as an array, a tensor of a GPU as a copy in memory."""
    is_far = is_of(value, "torch") and value.device.type not in {"cpu", "meta"}
    return as_array(value.detach().cpu() if is_far else value, name)


def describe_variable(variables: Mapping[str, Any], name: str) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of a variable; those of a checkpoint from its headers."""
    if isinstance(variables, Checkpoint):
        _, entry = variables.find_variable(name)
        return entry.dtype.name, entry.shape
    array = read_variable(variables, name)
    return dtype_name(array), array.shape


def unique(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by their names; UsageError when two have the same name."""
    found: dict[str, Any] = {}
    for name, value in named:
        if found.setdefault(name, value) is not value:
            raise UsageError(f"two values would be the variable {name!r}", hint="give one of them another name")
    return found


STRUCTURE: Final = ".structure"
_SCHEMA: Final = "edl-ckpt/nest/1"


def flatten(nest: Mapping[Any, Any], prefix: str, leaf: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return the arrays of a nest by their paths, `leaf(value, name)` of each, and its structure where it needs one.

    Raises UsageError for a leaf that is neither an array nor a number, a text or None, for keys that are neither texts
    nor whole numbers, and for two arrays with one path.
    """
    arrays: list[tuple[str, Any]] = []
    nodes: list[dict[str, Any]] = []

    def add(value: Any, path: str) -> int:
        if is_array(value):
            arrays.append((f"{prefix}{path}", leaf(value, f"{prefix}{path}")))
            node: dict[str, Any] = {"array": path}
        elif isinstance(value, Mapping):
            node = {"dict": [[_key(key, path), add(each, _join(path, key))] for key, each in value.items()]}
        elif isinstance(value, list | tuple):
            kind = "tuple" if isinstance(value, tuple) else "list"
            node = {kind: [add(each, _join(path, number)) for number, each in enumerate(value)]}
        else:
            node = _plain(value, f"{prefix}{path}")
        nodes.append(node)
        return len(nodes) - 1

    try:
        add(nest, "")
    except RecursionError:
        raise UsageError("the state is nested too deeply, or contains itself") from None
    if all(isinstance(key, str) and is_array(value) for key, value in nest.items()):
        return unique(arrays)
    text = json.dumps({"schema": _SCHEMA, "nodes": nodes}, separators=(",", ":"))
    return unique([*arrays, (f"{prefix}{STRUCTURE}", np.frombuffer(text.encode("ascii"), np.int8))])


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _key(key: Any, path: str) -> str | int:
    if type(key) not in {str, int}:
        raise UsageError(f"{path or 'the state'}: expected keys that are texts or whole numbers, got {key!r:.80}")
    return key  # type: ignore[no-any-return]


def _plain(value: Any, name: str) -> dict[str, Any]:
    if value is None or isinstance(value, bool | int | str):
        return {"value": value}
    if isinstance(value, float):
        return {"value": value} if math.isfinite(value) else {"float": repr(value)}
    raise UsageError(
        f"{name!r}: a checkpoint cannot contain a {type(value).__qualname__}",
        hint="a state may have arrays, numbers, texts and None, in dicts, lists and tuples",
    )


def unflatten(
    variables: Mapping[str, Any], prefix: str, leaf: Callable[[npt.NDArray[Any]], Any]
) -> dict[str | int, Any]:
    """Return the nest that was made flat with a prefix, `leaf(array)` of each of its arrays.

    Raises NameNotFoundError when nothing has the prefix or an array of the nest is absent, CorruptError when its
    structure is damaged.
    """
    if f"{prefix}{STRUCTURE}" not in variables:
        names = [name for name in variables if name.startswith(prefix)]
        if not names:
            hint = meant(prefix, variables, "variables")
            raise NameNotFoundError(f"no variable begins with {prefix!r}", hint=hint)
        return {name.removeprefix(prefix): leaf(read_variable(variables, name)) for name in names}
    built: list[Any] = []
    for node in _nodes(read_variable(variables, f"{prefix}{STRUCTURE}")):
        ((kind, content),) = node.items()
        if kind == "array":
            built.append(leaf(read_variable(variables, f"{prefix}{content}")))
        elif kind == "dict":
            built.append({key: built[place] for key, place in content})
        elif kind in {"list", "tuple"}:
            items = [built[place] for place in content]
            built.append(tuple(items) if kind == "tuple" else items)
        else:
            built.append(float(content) if kind == "float" else content)
    nest: dict[str | int, Any] = built[-1]
    return nest


def _nodes(data: npt.NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a structure, each one after those that it contains; CorruptError unless all are right."""
    try:
        document = parse_document(data.tobytes(), STRUCTURE, limit=MAX_SUMS_BYTES)
    except UsageError as error:
        raise CorruptError(f"the structure of the state is {error.message}") from None
    nodes = document.get("nodes")
    if document.get("schema") != _SCHEMA or not isinstance(nodes, list) or not nodes:
        raise CorruptError(f"the structure of the state is damaged: expected a document with the schema {_SCHEMA!r}")
    for number, node in enumerate(nodes):
        if not _is_node(node, number) or (number == len(nodes) - 1 and "dict" not in node):
            raise CorruptError(f"the structure of the state is damaged: node {number}")
        yield node


def _is_node(node: Any, number: int) -> bool:
    if not isinstance(node, dict) or len(node) != 1:
        return False
    ((kind, content),) = node.items()
    if kind == "dict":
        pairs = isinstance(content, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in content)
        return pairs and all(type(key) in {str, int} and _is_place(place, number) for key, place in content)
    if kind in {"list", "tuple"}:
        return isinstance(content, list) and all(_is_place(place, number) for place in content)
    if kind == "float":
        return content in {"nan", "inf", "-inf"}
    if kind == "value":
        return content is None or isinstance(content, bool | int | float | str)
    return kind == "array" and isinstance(content, str)


def _is_place(place: Any, number: int) -> bool:
    return type(place) is int and 0 <= place < number
