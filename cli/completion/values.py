"""What a word can become: paths, and the names that a place has, of versions, tags, metrics, tables and variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain, starmap
from typing import Any, Final, NamedTuple, TypeVar

from edl_ckpt.cli.completion.grammar import Expected, commands
from edl_ckpt.cli.completion.places import LocalPlace, RemotePlace, config_path, expanded, place_of
from edl_ckpt.core.catalog import glance
from edl_ckpt.core.sources.elasticdl import peek
from edl_ckpt.core.sources.elasticdl.peek import Budget

_MOST: Final = 500
"""So many candidates are handed over: nobody reads more."""
_NEWEST: Final = 20
"""So many versions are offered before the first digit is typed."""
SECONDS: Final = 0.12
"""What looking at files may take. A shell may wait 150 ms for all of it; names that come later are left out."""
_MOST_PROBES: Final = 200
"""So many directories are looked into, to tell locations from others."""


Named = TypeVar("Named", bound=tuple[str, ...])


class Candidate(NamedTuple):
    """What a word can become, and what it is."""

    value: str
    note: str = ""


class Completer:
    """Finds the names for one word; `table` is that of the commands."""

    def __init__(self, asked: Expected, table: Mapping[str, Any]) -> None:
        self._asked = asked
        self._table = table
        self._budget = Budget.of(SECONDS)

    def candidates(self) -> Iterator[Candidate]:
        """Yield what begins as the word does; a value may come twice."""
        for each in chain(starmap(Candidate, self._asked.words), *map(self._of_kind, self._asked.kinds)):
            if each.value.startswith(self._asked.typed):
                yield each

    def _of_kind(self, kind: str) -> Iterable[Candidate]:
        if kind.startswith("="):
            return self._listed(kind[1:].split("|"))
        topics = self._table["topics"].items()
        name, equals, _ = kind.partition("=")  # `metric=` is a metric, and its value follows
        finders: dict[str, Callable[[], Iterable[Candidate]]] = {
            "ref": self._references,
            "location": self._locations,
            "directory": lambda: self._paths(files=False),
            "file": lambda: self._paths(files=True),
            "version": lambda: self._versions(numbers_only=True),
            "tag": lambda: [Candidate(tag, f"tag of {key}") for tag, key in self._glimpse.tags.items()],
            "metric": lambda: [Candidate(name + equals, "metric") for name in self._glimpse.metrics],
            "key": lambda: [Candidate(name + equals, "metadata") for name in self._glimpse.keys],
            "table": lambda: self._names("table"),
            "variable": lambda: self._names("variable"),
            "name": lambda: self._names("table", "variable"),
            "command": self._pages,
            "page": lambda: [*self._pages(), *(starmap(Candidate, topics) if not self._asked.arguments else ())],
        }
        return finders[name]() if name in finders else ()

    def _listed(self, words: Iterable[str]) -> Iterator[Candidate]:
        """Yield words; behind a comma, those that the list has not."""
        begun, comma, _ = self._asked.typed.rpartition(",")
        taken = begun.split(",")
        yield from (Candidate(begun + comma + word) for word in words if not comma or word not in taken)

    def _pages(self) -> list[Candidate]:
        """Return commands, and behind the name of a group its commands."""
        first = self._asked.arguments[:1]
        if first and (group := self._table["groups"].get(first[0])):
            return [Candidate(name) for name in group["members"]] if len(self._asked.arguments) == 1 else []
        if first:
            return []
        return list(starmap(Candidate, commands(self._table)))

    # Places

    def _references(self) -> Iterator[Candidate]:
        """Yield versions of a place that is typed, or of the default one; and places."""
        head, at, rest = self._asked.typed.rpartition("@")
        if at and "/" not in rest:
            yield from (Candidate(f"{head}@{each.value}", each.note) for each in self._versions(head or None))
            return
        if not self._asked.typed:
            yield from (Candidate(f"@{each.value}", each.note) for each in self._versions())
        for each in self._locations():
            yield each
            if not each.value.endswith(("/", "@")) and each.note != "storage":
                yield Candidate(f"{each.value}@", "its versions")
        if self._asked.command not in {"tag add", "tag remove", "metrics set", "note", "copy"}:
            yield from (each for each in self._paths(files=True) if glance.may_be_whole(each.value))

    def _locations(self) -> Iterator[Candidate]:
        """Yield the directories below what is typed, and the storages of the configuration file."""
        for probes, each in enumerate(self._paths(files=False)):
            path = expanded(each.value)
            if probes >= _MOST_PROBES or self._budget.spent or not glance.has_versions(path):
                yield each
                continue
            last = next(glance.in_trash(path, self._budget), []) if self._asked.command == "undo" else []
            trash = ", ".join(map(str, last[:5]))
            yield Candidate(each.value.rstrip("/"), f"in its trash: {trash}" if trash else "location")
        if "/" not in self._asked.typed and self._storages is not None:
            for name in self._storages.named:
                yield from (Candidate(name, "storage"), Candidate(f"{name}@", "its versions"))

    def _paths(self, *, files: bool) -> Iterator[Candidate]:
        """Yield directories, with '/' behind them, and `files` too; hidden ones only where a dot is typed."""
        folder, slash, begun = self._asked.typed.rpartition("/")
        for entry in peek.entries(expanded(folder + slash)):
            name = entry.name
            hidden = name.startswith(".") and not begun.startswith(".")
            if hidden or not name.startswith(begun) or (name.startswith("-") and not slash):  # else an option
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:
                continue
            if is_folder or files:
                yield Candidate(f"{folder}{slash}{name}" + ("/" if is_folder else ""))

    def _versions(self, location: str | None = None, *, numbers_only: bool = False) -> Iterator[Candidate]:
        """Yield what may stand behind '@', for the location or the one that is typed elsewhere."""
        place = self._place_of(location) if location else self._place
        if place is None:
            return
        if self._asked.command == "undo":
            yield from (Candidate(str(key), "in the trash") for key in place.trash())
            return
        has_reference = bool(location) or not numbers_only
        begun = self._asked.typed.rpartition("@")[2] if has_reference else self._asked.typed
        versions = [(key, note) for key, note in place.versions() if key.isdigit() or not numbers_only]
        alike = [(key, note) for key, note in versions if key.startswith(begun)]
        candidates = [Candidate(key, note) for key, note in _bounded(alike, _MOST)]
        if numbers_only:
            yield from candidates
        elif versions:
            seen = place.glimpse()
            yield Candidate("latest", "the newest complete version")
            for name in seen.metrics:
                yield Candidate(f"best:{name}", "the best version by this metric")
            for tag, key in seen.tags.items():
                yield Candidate(tag, f"tag of {key}")
            yield from candidates if begun else candidates[:_NEWEST]

    def _names(self, *notes: str) -> Iterable[Candidate]:
        """Return the names of tables, of variables or of both, as `notes` say, in the version that the line names."""
        if self._place is None:
            return []
        found = self._place.names(self._typed_ref[1], variables="variable" in notes)
        named = {"table": found.tables, "variable": found.variables}
        return [Candidate(name, note) for note in notes for name in named[note]]

    @cached_property
    def _glimpse(self) -> glance.Glimpse:
        return self._place.glimpse() if self._place is not None else glance.Glimpse()

    @cached_property
    def _place(self) -> LocalPlace | RemotePlace | None:
        return self._place_of(self._typed_ref[0])

    def _place_of(self, location: str) -> LocalPlace | RemotePlace | None:
        url, options = location or ".", self._asked.options.get("--storage-option", ())
        if self._storages is not None and location:
            with suppress(Exception):  # a wrong section: its commands say so
                found = self._storages.locate(location)
                url, options = found.url, (*(f"{key}={value}" for key, value in found.options.items()), *options)
        return place_of(url, options, self._budget)

    @cached_property
    def _typed_ref(self) -> tuple[str, str]:
        """Return the location and the version that the line names before the cursor, the defaults where it does not."""
        places = [word for word in self._asked.arguments if "@" in word or "/" in word or os.path.isdir(expanded(word))]
        if self._storages is not None:
            places += [
                w for w in self._asked.arguments if w.partition("/")[0].partition("@")[0] in self._storages.named
            ]
        head, at, version = places[0].rpartition("@") if places else ("", "", "")
        if not at or "/" in version:
            head, version = places[0] if places else "", ""
        return head or self._default, version

    @cached_property
    def _default(self) -> str:
        named = os.environ.get("EDL_CKPT_DIR")
        if not named and self._storages is not None and self._storages.default is not None:
            return str(self._storages.default.location.url)
        return named or "."

    @cached_property
    def _storages(self) -> Any:
        """Return the storages of the configuration file; None without any, for which nothing heavy is imported."""
        import tomllib

        try:
            with open(config_path(self._asked.options.get("--config", ())), "rb", opener=peek.open_at_once) as file:
                section = tomllib.loads(file.read(1 << 20).decode()).get("checkpoint_storage")
            if not isinstance(section, dict):
                return None
            from edl_ckpt.core.sources.determined.storages import Storages

            return Storages.from_config(section)
        except Exception:  # noqa: BLE001 - whatever is wrong with the file, its commands say it
            return None


def bounded(found: Iterable[Candidate]) -> list[Candidate]:
    r"""Return the first candidates, each once; a name that no terminal can show as it is is left out.

    >>> bounded([Candidate("a"), Candidate("a"), Candidate("b\n"), Candidate("c")])
    [Candidate(value='a', note=''), Candidate(value='c', note='')]
    """
    shown: dict[str, Candidate] = {}
    for each in found:
        if each.value and each.value.isprintable():
            shown.setdefault(each.value, each)
    return _bounded(list(shown.values()), _MOST)


def _bounded(found: list[Named], most: int) -> list[Named]:
    """Return the first values of many, and the first and the last by name.

    A shell types what all candidates begin with, and that must not be more than what all names begin with.

    >>> _bounded([("9", ""), ("8", ""), ("7", ""), ("6", "")], 3)
    [('9', ''), ('6', ''), ('9', '')]
    """
    return found if len(found) <= most else [*found[: most - 2], min(found), max(found)]
