"""What a story must find: its items, read without the engine, and the rules by which a step changes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from oracle import Dense, Model, Table, add_shard

Items = dict[tuple[Any, ...], Any]
"""What is there, one item for each thing that a command changes.

("version", place, number) is a number of shards, ("metric", place, number, name) a value, ("note", place, number) a
text, and ("tag", place, tag) the set of versions that have the tag.
"""
Files = Mapping[str, bytes]

PLACES: Final = ("a", "b")
_VERSION = re.compile(r"version-(\d+)/variables-(\d+)-of-(\d+)\.ckpt")
_META = re.compile(r"\.edl-ckpt-0/meta-0/(\d+)\.json")


def content(number: int) -> Model:
    """Return the model of a version."""
    chance = np.random.default_rng(number)
    dense: Dense = {
        f"w{i}": ("float32", (3, 2), chance.standard_normal((3, 2), np.float32).tobytes()) for i in range(3)
    }
    ids = [0, 1, 2, 3, 7, 300, 70_000, 2**40 + 1]
    rows = {i: chance.standard_normal(2, np.float32).tobytes() for i in ids}
    return Model(number, dense, {"t": Table(2, "uniform", "float32", rows)})


class World(Protocol):
    """Where the locations of a story are."""

    def url(self, place: str) -> str:
        """Return the location of a place."""
        ...

    def files(self, place: str) -> Files:
        """Return every file of a place, by its path in it."""
        ...

    def save(self, place: str, number: int, ps_num: int) -> None:
        """Save a version as a job does."""
        ...

    def check_scan(self, place: str, newest: int | None) -> None:
        """Check that ElasticDL's own scan finds this version."""
        ...


def observe(world: World) -> Items:
    """Return what is there, read without the engine; every version must be whole and have the content of its number."""
    items: Items = {}
    for place in PLACES:
        files = world.files(place)
        shards: dict[int, dict[int, tuple[int, bytes]]] = {}
        for path, data in files.items():
            if match := _VERSION.fullmatch(path):
                number, ps_id, ps_num = map(int, match.groups())
                shards.setdefault(number, {})[ps_id] = (ps_num, data)
            elif match := _META.fullmatch(path):
                _add_metadata(items, place, int(match[1]), json.loads(data))
        for number, found in shards.items():
            (ps_num,) = {ps_num for ps_num, _ in found.values()}
            assert sorted(found) == list(range(ps_num)), f"{place}@{number} is not whole"
            model = Model()
            for _, data in found.values():
                add_shard(model, data, "v4")
            assert model == content(number), f"{place}@{number} has other content"
            items["version", place, number] = ps_num
        world.check_scan(place, max(shards, default=None))
    return items


def _add_metadata(items: Items, place: str, number: int, document: Mapping[str, Any]) -> None:
    for name, value in document.get("metrics", {}).items():
        items["metric", place, number, name] = value
    if document.get("note"):
        items["note", place, number] = document["note"]
    for tag in document.get("tags", ()):
        key = ("tag", place, tag)
        items[key] = items.get(key, frozenset()) | {number}


def check_done(observed: Items, after: Sequence[Items]) -> None:
    """Check that what is there is one of these, as a whole."""
    if observed not in after:
        keys = sorted({*observed, *(key for items in after for key in items)}, key=str)
        wrong = [(key, observed.get(key), [items.get(key) for items in after]) for key in keys]
        raise AssertionError(
            "\n".join(f"{k} is {v}; expected {new}" for k, v, new in wrong if any(v != x for x in new))
        )


def check_failed(observed: Items, before: Items, after: Sequence[Items]) -> None:
    """Check each item by itself: it is as before, or as after."""
    for key in {*observed, *before, *(key for items in after for key in items)}:
        value, either = observed.get(key), [before.get(key), *(items.get(key) for items in after)]
        if key[0] == "tag":  # while it moves it is on both versions, and never on none
            known = [frozenset(x or ()) for x in either]
            possible = frozenset(value or ()) <= frozenset().union(*known) and bool(value or not all(known))
        else:
            possible = value in either
        assert possible, f"{key} is {value}; expected one of {either}"


def numbers(items: Items, place: str) -> list[int]:
    """Return the versions of a place, in order."""
    return sorted(key[2] for key in items if key[:2] == ("version", place))


def tagged(items: Items, place: str) -> set[int]:
    """Return the versions of a place that have a tag."""
    return {number for key, value in items.items() if key[:2] == ("tag", place) for number in value}


def without(items: Items, place: str, doomed: Sequence[int]) -> Items:
    """Return the items without these versions and what belongs to them."""
    return {k: v for k, v in items.items() if k[0] == "tag" or k[1] != place or k[2] not in doomed}


def with_copies(items: Items, source: str, target: str, copied: Mapping[int, int]) -> Items:
    """Return the items with copies of versions in another place, by their shards, with all that belongs to them.

    A tag that comes along leaves the versions of the target that do not have it in the source.
    """
    result = dict(items)
    for number, ps_num in sorted(copied.items()):
        result["version", target, number] = ps_num
        for key, value in items.items():
            if key[0] in {"metric", "note"} and key[1:3] == (source, number):
                result[key[0], target, *key[2:]] = value
            elif key[0] == "tag" and key[1] == source and number in value:
                tag = ("tag", target, key[2])
                result[tag] = frozenset({number, *(result.get(tag, frozenset()) & value)})
    return result


def leftovers(files: Files) -> list[str]:
    """Return what is left of commands that have ended: all of our state but metadata and the trash."""
    return sorted(p for p in files if p.startswith(".edl-ckpt-0/") and p.split("/")[1] not in {"meta-0", "trash-0"})
