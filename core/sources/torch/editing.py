"""Changes of the tree that a pickle of torch.save is: other tensors in it, other keys, and what is left out."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.torch.machine import Items, Made, Persistent, Value, is_scalar
from edl_ckpt.core.sources.torch.tree import text_of

Path = tuple[str, ...]


@dataclass(slots=True)
class Edit:
    """What changes in a tree, by paths: a new value for a tensor, a new key, or that something is left out."""

    values: Mapping[Path, Callable[[Value], Value]] = field(default_factory=dict)
    keys: Mapping[Path, str] = field(default_factory=dict)
    gone: frozenset[Path] = frozenset()


def edited(root: Value, edit: Edit) -> Value:
    """Return a tree with changes; UnsupportedError for one that is inside of an object, or of a list."""
    walk = _Edited(edit)
    found = walk.value(root, ())
    wanted = {*edit.values, *edit.keys, *edit.gone}
    if wanted != walk.used:
        path = ".".join(min(wanted - walk.used))
        raise UnsupportedError(f"{path!r} is inside of an object of its pickle, which is not written anew")
    return found


@dataclass(slots=True)
class _Edited:
    edit: Edit
    used: set[Path] = field(default_factory=set)

    def value(self, value: Value, path: Path) -> Value:
        """Return a value with the changes at its path and below."""
        if path in self.edit.values:
            self._use(path)
            return self.edit.values[path](value)
        if type(value) is not Items:
            return value
        if value.kind == "dict":
            return self._dict(value, path)
        new = [self.value(one, (*path, str(n))) for n, one in enumerate(value.values)]
        for n in range(len(new)):
            if {(*path, str(n))} & (self.edit.gone | self.edit.keys.keys()):
                name = ".".join((*path, str(n)))
                raise UnsupportedError(f"{name!r} is in a list of its pickle: it is neither left out nor renamed alone")
        if all(one is other for one, other in zip(new, value.values, strict=True)):
            return value
        return replace(value, values=new)

    def _use(self, path: Path) -> None:
        if path in self.used:
            raise UnsupportedError(f"{'.'.join(path)!r} is in its pickle twice")
        self.used.add(path)

    def _dict(self, items: Items, path: Path) -> Value:
        values: list[Value] = []
        for key, _, one, _ in items.pairs:
            here = (*path, text_of(key))
            if here in self.edit.gone:
                self._use(here)
                continue
            new = self.value(one, here)
            if here in self.edit.keys:
                self.used.add(here)
                key = self.edit.keys[here]  # noqa: PLW2901 - the new one takes its place
            values += [key, new]
        same = len(values) == len(items.values)
        if same and all(one is other for one, other in zip(values, items.values, strict=True)):
            return items
        keys = [text_of(key) for key in values[::2]]
        if len({*keys}) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UnsupportedError(f"its pickle would have {'.'.join((*path, twice))!r} twice")
        return replace(items, values=values, starts=array("Q", bytes(8 * len(values))))


def objects_in(root: Value) -> dict[Path, Value]:
    """Return the objects and storages to which dicts and lists lead, by their paths; tensors are among them."""
    found: dict[Path, Value] = {}
    rest: list[tuple[Path, Value]] = [((), root)]
    while rest:
        path, value = rest.pop()
        if type(value) in {Made, Persistent}:
            found[path] = value
        elif type(value) is Items and value.kind == "dict":
            rest.extend(((*path, text_of(key)), one) for key, _, one, _ in value.pairs if not is_scalar(one))
        elif type(value) is Items:
            rest.extend(((*path, str(n)), one) for n, one in enumerate(value.values) if not is_scalar(one))
    return found


def with_state(made: Made, changes: Mapping[str, Value]) -> Made:
    """Return an object with other attributes; UnsupportedError for one that lacks them."""
    state = made.state
    if type(state) is not Items or state.kind != "dict" or not {*changes} <= {key for key, *_ in state.pairs}:
        raise UnsupportedError(f"its pickle has an object of {made.name} of another release of torch")
    return replace(made, state=with_values(state, changes))


def with_values(items: Items, changes: Mapping[str, Value]) -> Items:
    """Return a dict with other values of some keys."""
    values = list(items.values)
    for n in range(0, len(values) - 1, 2):
        if type(values[n]) is str and values[n] in changes:
            values[n + 1] = changes[values[n]]
    return replace(items, values=values)
