"""Determined's `checkpoint_storage` as locations: a default one, and others by name or by path.

The keys and their rules are those of Determined AI's experiment configuration (`shared_fs`, `directory`, `s3`, `gcs`;
`save_experiment_best`, `save_trial_best`, `save_trial_latest`). Nothing here reads or writes: a section of a TOML or
YAML file, as a dict, becomes a value. Secrets in it never appear in a message.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.storage.location import Location

SECTION: Final = "checkpoint_storage"
SECRETS: Final = ("access_key", "secret_key")
"""The keys whose values no message may show."""
_SAVES: Final = ("save_experiment_best", "save_trial_best", "save_trial_latest")
_ENDPOINT: Final = "endpoint_url"
_OPTIONS: Final[Mapping[str, str]] = {_ENDPOINT: _ENDPOINT, "access_key": "key", "secret_key": "secret"}
"""The storage option for each key of s3."""
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "shared_fs": ("host_path", "storage_path", "checkpoint_path", "tensorboard_path", "container_path", "propagation"),
    "directory": ("container_path",),
    "s3": ("bucket", "prefix", *_OPTIONS),
    "gcs": ("bucket", "prefix"),
}
"""The keys of each type. Of shared_fs, `container_path` and `propagation` have no effect, as in Determined."""
_ALL: Final = ("type", *_SAVES, *dict.fromkeys(key for keys in _KEYS.values() for key in keys))
_Section = dict[str, Any]


class SectionError(UsageError):
    """A wrong key or value in a section; `keys` are the tables around it and its own, as in the file."""

    def __init__(self, message: str, what: str, key: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        table = what.removeprefix(SECTION).removeprefix(".").strip('"')
        self.keys = tuple(part for part in (SECTION, table, key) if part)


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """A location, and how many checkpoints Determined keeps there; 0 keeps none by that rule.

    >>> CheckpointStorage.from_config({"type": "s3", "bucket": "models", "prefix": "/ctr/"}).location
    Location(url='s3://models/ctr')
    """

    location: Location
    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1

    @staticmethod
    def from_config(
        config: dict[str, Any], *, container_path: str | None = None, what: str = SECTION
    ) -> CheckpointStorage:
        """Return the storage of a `checkpoint_storage` section; `what` names the section in messages.

        `container_path` stands for `host_path`, as in Determined: inside a trial's container, /determined_shared_fs.
        Raises UsageError for a key or a value that Determined refuses, and for a type of storage that is not known
        here. Source: Determined's `harness/determined/common/storage` and its experiment configuration reference.
        """
        _check(config, _ALL, what)
        kind = config.get("type", "")
        if kind not in _KEYS:
            types = f"{', '.join(list(_KEYS)[:-1])} or {list(_KEYS)[-1]}"
            why = f"must be {types}, got {kind!r}" if "type" in config else f"is missing ({types})"
            raise SectionError(f"{what}: type {why}", what, "type", hint=meant(str(kind), _KEYS))
        _check(config, ("type", *_SAVES, *_KEYS[kind]), what)
        if kind == "shared_fs":
            location = _shared_fs(config, container_path, what)
        elif kind == "directory":
            location = Location(_required(config, "container_path", what))
        else:
            location = _bucket("s3" if kind == "s3" else "gs", config, what)
        return CheckpointStorage(location, **{key: config[key] for key in _SAVES if key in config})


@dataclass(frozen=True, slots=True)
class Storages:
    """The storages of a configuration: a default one, others by name, and settings of locations by path or URL."""

    default: CheckpointStorage | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The save_... numbers of the section itself: the defaults for every location."""
    named: Mapping[str, CheckpointStorage] = field(default_factory=dict)
    settings: tuple[CheckpointStorage, ...] = ()

    @staticmethod
    def from_config(section: dict[str, Any]) -> Storages:
        """Return the storages of a section: its own keys are the default, and each table in it is an override.

        A table whose name has a '/' has the settings of the location of that path or URL, and of all below it. Any
        other is a storage with a name. It has the keys of the default where it has none of its own: those of the
        storage only if its type is the same, and credentials only for the same endpoint. Raises UsageError for keys and
        values as `CheckpointStorage` does.
        """
        own = {key: value for key, value in section.items() if not isinstance(value, dict)}
        tables = {name: value for name, value in section.items() if isinstance(value, dict)}
        _check(own, _ALL, SECTION)
        default = CheckpointStorage.from_config(own) if set(own) - set(_SAVES) else None
        named: dict[str, CheckpointStorage] = {}
        settings: list[CheckpointStorage] = []
        for name, table in tables.items():
            what = f'{SECTION}."{name}"'
            _check(table, _ALL, what)
            if "/" in name:
                settings.append(_of_place(name, _kept(own, _SAVES) | table, what))
            else:
                named[_check_name(name, what)] = CheckpointStorage.from_config(_inherited(own, table), what=what)
        return Storages(default, _kept(own, _SAVES), named, tuple(settings))

    def locate(self, text: str) -> Location:
        """Return the location that a text names, with the options of its storage.

        The text is a name, a name with a path below it, or any path or URL; a version may follow with '@'.

        >>> storages = Storages.from_config({"nas": {"type": "shared_fs", "host_path": "/mnt/nas"}})
        >>> storages.locate("nas/ctr@100"), storages.locate("run")
        (Location(url='/mnt/nas/ctr@100'), Location(url='run'))
        """
        name, rest = self.split(text)
        if name:
            base = self.named[name].location
            return base.with_url((base.url.rstrip("/") if rest.startswith("/") else base.url) + rest)
        head, at, version = text.rpartition("@")
        found = self.of(Location(head if at and "/" not in version else text))
        return Location(text) if found is None else found.location.with_url(text)

    def split(self, text: str) -> tuple[str, str]:
        """Return the name that a text begins with, and what follows it; ('', text) when it begins with none."""
        head = text.partition("/")[0]
        name = head if head in self.named else head.rpartition("@")[0]
        return (name, text[len(name) :]) if name in self.named else ("", text)

    def saves(self, place: Location) -> dict[str, int]:
        """Return the save_... numbers for a location that the configuration has; Determined's own for the others.

        >>> Storages.from_config({"save_trial_best": 3}).saves(Location("run"))["save_trial_best"]
        3
        """
        found = self.of(place) or CheckpointStorage(place, **self.numbers)
        numbers = (found.save_experiment_best, found.save_trial_best, found.save_trial_latest)
        return dict(zip(_SAVES, numbers, strict=True))

    def of(self, place: Location) -> CheckpointStorage | None:
        """Return the storage that a location lies in, the one with the longest path; None when it is in none."""
        known = [*self.settings, *self.named.values(), *([self.default] if self.default else [])]
        around = [storage for storage in known if _is_within(place, storage.location)]
        return max(around, key=lambda storage: len(_standard(storage.location)), default=None)


def _kept(section: _Section, keys: Iterable[str]) -> dict[str, Any]:
    return {key: section[key] for key in keys if key in section}


def _inherited(default: _Section, table: _Section) -> _Section:
    """Return a table with the keys that it takes from the default."""
    if table.get("type", default.get("type")) != default.get("type"):
        return _kept(default, _SAVES) | table
    taken = dict(default)
    if table.get(_ENDPOINT, default.get(_ENDPOINT)) != default.get(_ENDPOINT):
        taken = {key: value for key, value in taken.items() if key not in SECRETS}
    return taken | table


def _of_place(name: str, table: _Section, what: str) -> CheckpointStorage:
    """Return the settings of the location of a path or URL: its options, and its numbers."""
    place = Location(name)
    if place.local_path is not None and not os.path.isabs(place.local_path):
        raise _fault(what, "a name with a '/' must be an absolute path or a URL")
    remote = place.local_path is None
    _check(table, (*(_OPTIONS if remote else ()), *_SAVES), what)
    location = replace(place, options=_options(table, what)) if remote else place
    return CheckpointStorage(location, **_kept(table, _SAVES))


def _check_name(name: str, what: str) -> str:
    if not name or not name.isprintable() or set(name) & {"@", ":"} or name in {".", "..", "~"}:
        raise _fault(what, "a name of a storage has no '@' and no ':'; a path or URL has a '/'")
    return name


def _check(config: _Section, keys: Iterable[str], what: str) -> None:
    """Raise UsageError for a key that is none of these, and for a value of a wrong type."""
    known = tuple(keys)
    if config.get("type") == "azure":
        raise _fault(what, "azure is not supported here; with adlfs, name the location: abfs://CONTAINER/PATH", "type")
    for key, value in config.items():
        if key not in known:
            raise SectionError(f"{what}: no key {key!r}", what, str(key), hint=meant(str(key), known, "keys"))
        if key in _SAVES:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise _fault(what, f"must be a whole number of 0 or more, got {value!r}", key)
        elif not isinstance(value, str) or not value.isprintable():
            raise _fault(what, "must be a text" + ("" if key in SECRETS else f", got {value!r:.60}"), key)


def _fault(what: str, fault: str, key: str = "") -> UsageError:
    return SectionError(f"{what}: {key} {fault}" if key else f"{what}: {fault}", what, key)


def _required(config: _Section, key: str, what: str) -> str:
    if not config.get(key):
        raise _fault(what, "is missing", key)
    return str(config[key])


def _shared_fs(config: _Section, container_path: str | None, what: str) -> Location:
    if "storage_path" not in config:  # the keys before it, in Determined's order
        old = config.get("tensorboard_path", config.get("checkpoint_path"))
        config = config if old is None else config | {"storage_path": old}
    host = _required(config, "host_path", what)
    if not os.path.isabs(host):
        raise _fault(what, f"must be an absolute path, got {host!r}", "host_path")
    host = os.path.normpath(host)
    whole = os.path.normpath(os.path.join(host, config.get("storage_path", "")))
    if os.path.commonpath([host, whole]) != host:
        raise _fault(what, f"must be inside host_path, got {config['storage_path']!r}", "storage_path")
    if container_path is not None:
        whole = os.path.normpath(os.path.join(container_path, os.path.relpath(whole, host)))
    return Location(whole)


def _bucket(scheme: str, config: _Section, what: str) -> Location:
    bucket, prefix = _required(config, "bucket", what), config.get("prefix", "")
    if "/" in bucket:
        raise _fault(what, f"must not have a '/', got {bucket!r}; a path in it is its prefix", "bucket")
    if ".." in prefix.split("/"):
        raise _fault(what, f"must not contain '..', got {prefix!r}", "prefix")
    inside = posixpath.normpath(prefix).strip("/") if prefix else ""
    url = f"{scheme}://{bucket}" + (f"/{inside}" if inside not in {"", "."} else "")
    return Location(url, _options(config, what))


def _options(config: _Section, what: str) -> dict[str, str]:
    """Return the storage options in a section; UsageError for half of the credentials."""
    lacking = [key for key in SECRETS if key not in config]
    if len(lacking) == 1:
        raise _fault(
            what, "is missing: both are needed, or none (then AWS's own variables and profiles count)", lacking[0]
        )
    return {_OPTIONS[key]: value for key, value in config.items() if key in _OPTIONS}


def _standard(place: Location) -> str:
    path = place.local_path
    return place.url.rstrip("/") if path is None else os.path.abspath(path).rstrip("/")


def _is_within(place: Location, around: Location) -> bool:
    """Say whether a location is another one, or lies in it, as far as their names tell."""
    if (place.local_path is None) != (around.local_path is None):
        return False
    return f"{_standard(place)}/".startswith(f"{_standard(around)}/")
