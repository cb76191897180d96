"""What is known of versions beside their shards: metrics, tags, a note; and of their location: modes and a policy.

Small JSON files under `.edl-ckpt-0/meta-0/`, which ElasticDL's scan never meets: `{version}.json` for each version that
anything is known of, `location.json` for the whole. They are readable without this tool and travel with a copy of the
directory (`core/README.md`, section State, shows one). Keys that we do not know are kept, a file that cannot be read is
reported and leaves the rest alone. Here they are read; `annotate.py` writes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

from edl_ckpt.core.errors import AuthError, EdlCkptError, UnavailableError, UsageError
from edl_ckpt.core.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.state.paths import LOCATION_FILE, META_DIR
from edl_ckpt.core.storage.interface import Store

VERSION_SCHEMA: Final = "edl-ckpt/meta/1"
LOCATION_SCHEMA: Final = "edl-ckpt/location/1"
MODES: Final = ("max", "min")
_VERSION_FILE = re.compile(r"(0|[1-9][0-9]{0,17})\.json", re.ASCII)
_SEAL_FILE = re.compile(r"(0|[1-9][0-9]{0,17})\.seal\.json", re.ASCII)
_AGREED_MODES: Final = {"loss": "min", "mse": "min", "error": "min", "auc": "max", "accuracy": "max"}
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class VersionMetadata:
    """What is known of one version; `steps` holds, for metrics measured at another step than the version, which."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    note: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class LocationMetadata:
    """What is known in a location; `policy` is as `retention.Policy.to_json` made it, None when none was set."""

    versions: Mapping[int, VersionMetadata] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    sealed: frozenset[int] = frozenset()
    """The versions that have a seal (`seal.py`)."""


def read_metadata(store: Store, names: Iterable[str] | None = None) -> LocationMetadata:
    """Return all that is kept in a location; damaged files are in `problems`, foreign ones are passed over.

    `names` are those of the files in META_DIR, where a listing has told them already.
    """
    versions: dict[int, VersionMetadata] = {}
    modes: Mapping[str, str] = {}
    policy: Mapping[str, Any] | None = None
    problems: list[str] = []
    held = sorted(store.names(META_DIR) if names is None else names)
    wanted = [name for name in held if name == LOCATION_FILE or _VERSION_FILE.fullmatch(name)]
    for name, read in zip(wanted, read_documents(store, wanted), strict=True):
        match = _VERSION_FILE.fullmatch(name)
        try:
            document = read()
            if document is None:  # deleted since the listing
                continue
            if match:
                versions[int(match[1])] = parse_version(document)
            else:
                modes, policy = parse_location(document)
        except EdlCkptError as error:
            problems.append(f"{store.location}/{META_DIR}/{name}: {error.message}")
            if match:
                versions[int(match[1])] = VersionMetadata(fault=error.message)
    sealed = frozenset(int(match[1]) for match in map(_SEAL_FILE.fullmatch, held) if match)
    return LocationMetadata(versions, modes, policy, tuple(problems), sealed)


def read_documents(store: Store, names: Sequence[str]) -> Iterator[Callable[[], dict[str, Any] | None]]:
    """Yield, for each file of META_DIR, what returns its document, or raises what kept it from being read.

    On a remote store several are read at a time: a thousand requests take a while.
    """

    def read(name: str) -> Callable[[], dict[str, Any] | None]:
        try:
            document = read_document(store, f"{META_DIR}/{name}")
        except (AuthError, UnavailableError):
            raise  # says nothing of the file
        except EdlCkptError as error:
            return partial(_raise, error)
        return lambda: document

    yield from run_parallel(read, names, REMOTE_WORKERS if store.properties.round_trips else 1)


def _raise(error: EdlCkptError) -> NoReturn:
    raise error


def read_document(store: Store, relative: str) -> dict[str, Any] | None:
    """Return a JSON object of our state, None when there is no such file; UsageError when it is damaged."""
    data = store.read_small(relative)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"damaged: not a JSON document ({str(error).partition(':')[0]})", path=relative) from None
    if not isinstance(document, dict):
        raise UsageError("damaged: not a JSON object", path=relative)
    return document


def parse_version(document: Mapping[str, Any]) -> VersionMetadata:
    """Return a version's metadata from its document; UsageError names what is not as it must be."""
    metrics, steps = document.get("metrics", {}), document.get("steps", {})
    tags, note = document.get("tags", []), document.get("note", "")
    if not isinstance(metrics, dict) or not isinstance(steps, dict):
        raise UsageError("damaged: metrics and steps must be objects")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError("damaged: tags must be a list of texts")
    if not isinstance(note, str):
        raise UsageError("damaged: note must be a text")
    return VersionMetadata(
        {name: number(value, name) for name, value in metrics.items()},
        {name: step for name, step in steps.items() if isinstance(step, int)},
        tuple(tags),
        note,
    )


def parse_location(document: Mapping[str, Any]) -> tuple[Mapping[str, str], Mapping[str, Any] | None]:
    """Return (modes, policy) of a location's document; UsageError names what is not as it must be."""
    modes, policy = document.get("modes", {}), document.get("policy")
    if not isinstance(modes, dict) or not all(mode in MODES for mode in modes.values()):
        raise UsageError("damaged: modes must be 'max' or 'min' by metric")
    if policy is not None and not isinstance(policy, dict):
        raise UsageError("damaged: policy must be an object")
    return modes, policy


def number(value: Any, name: str) -> float:
    """Return a metric's value from JSON, where NaN and infinities are texts, as in protobuf's JSON.

    >>> number("NaN", "auc"), number(1, "auc")
    (nan, 1.0)
    """
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"damaged: metric {name!r} is {value!r}, not a number")
    return float(value)


def json_number(value: float) -> float | str:
    """Return a metric's value as JSON has it; the other way than `number`.

    >>> json_number(float("nan")), json_number(0.5)
    ('NaN', 0.5)
    """
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def check_metric_name(name: str) -> str:
    """Return a metric's name; UsageError for one that is empty, too long or holds what cannot be printed."""
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise UsageError(f"{name!r} is no name for a metric")
    return name


def check_tag(tag: str) -> str:
    """Return a tag; UsageError for one that a reference could not name: numbers, latest, best, '@', '/', blanks."""
    reserved = tag in {"latest", "best"} or tag.startswith("best:") or (tag.isascii() and tag.isdigit())
    if reserved or not tag or len(tag) > _MAX_NAME or not tag.isprintable() or {"@", "/", " "} & set(tag):
        raise UsageError(
            f"{tag!r} is no tag", hint="a tag has no '@', '/' or blanks, and is not latest, best or a number"
        )
    return tag


def mode_of(metric: str, asked: str | None, modes: Mapping[str, str]) -> str:
    """Return which end of a metric is the better one: as asked, as remembered, or as everybody agrees.

    Everybody agrees on loss, mse and error (min), auc and accuracy (max), by the name's last part. Raises UsageError
    for other names: a guess could delete the best version.

    >>> mode_of("output/loss", None, {}), mode_of("f1", None, {"f1": "max"})
    ('min', 'max')
    """
    if asked is not None:
        if asked not in MODES:
            raise UsageError(f"mode must be max or min, got {asked!r}")
        return asked
    known = modes.get(metric) or _AGREED_MODES.get(metric.rpartition("/")[2].lower())
    if known is None:
        raise UsageError(
            f"is more of {metric!r} better, or less?",
            hint=f"say --mode max or --mode min, or once for all: edl-ckpt metrics mode [LOCATION] {metric} max|min",
        )
    return known


def rank(value: float, mode: str) -> float:
    """Return a key by which better values come first; NaN has none and must be left out before.

    >>> sorted([0.2, 0.9], key=lambda v: rank(v, "max"))
    [0.9, 0.2]
    """
    return -value if mode == "max" else value
