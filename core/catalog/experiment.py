"""An experiment: the trials in a directory, each a location, compared by one metric.

A trial is a directory right below that of the experiment that has versions, and so is the experiment's own directory if
it has some. Other directories are left out. A trial that cannot be looked at is named, with the reason.
`locations_below` finds those at any depth below a directory: of an experiment, of a user, or of a bucket.
`glance_below` looks for a hint, and has an end.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, UnavailableError
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped, meant
from edl_ckpt.core.catalog.bounds import MOST_REQUESTS
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import common_modes, list_versions
from edl_ckpt.core.catalog.ranking import ranked
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.registry import is_own_name, is_step_name, version_named
from edl_ckpt.core.state.metric_modes import mode_of, rank
from edl_ckpt.core.storage import Location, LocationLike, Store
from edl_ckpt.core.storage.interface import Level


def versions_among(location: Location, names: Collection[str]) -> set[str]:
    """Return the names of a location that are versions; it is listed where others use such names, too."""
    versions = set(filter(is_own_name, names))
    if any(name not in versions and version_named(name) for name in names):
        versions |= {version.path.rpartition("/")[2] for version in list_versions(location, wait_seconds=0).versions}
    return versions


def locations_below(
    location: Location, *, depth: int | None = None, reporter: Reporter = WARNINGS
) -> Iterator[Location]:
    """Yield the locations with versions in a directory and below it, by name, each before those below it.

    `depth` limits how far below; 0 is the directory itself. Hidden directories and links to directories are left out. A
    directory below that cannot be listed is a warning. One listing for each directory. Raises the error of listing the
    directory itself.
    """
    level = open_location(location).level("", sys.maxsize)
    versions = versions_among(location, level.names)
    if versions:
        yield location
    if depth == 0:
        return
    for place in _directories_in(location, level, versions):
        try:
            yield from locations_below(place, depth=None if depth is None else depth - 1, reporter=reporter)
        except EdlCkptError as error:
            reporter.warn(f"{error}; everything below it is left out")


def _directories_in(location: Location, level: Level, versions: Collection[str]) -> Iterator[Location]:
    """Yield the directories right in a location, without the versions, hidden ones and links."""
    for name in level.directories:
        place = location.with_url(f"{location.url.rstrip('/')}/{name}")
        path = place.local_path
        if name[:1] != "." and name not in versions and not (path and os.path.islink(path)):
            yield place


class Below(NamedTuple):
    """The locations with versions below a directory that a look with an end has found."""

    locations: tuple[Location, ...]
    unseen: int = 0
    """So many directories were seen and not looked into; there may be others that were not even seen."""
    is_whole: bool = True
    """False where the look ended before it had seen everything down to its depth."""


def glance_below(listing: Listing, *, depth: int = 2) -> Below:
    """Return the locations with versions below one without versions, from a look that ends.

    It goes `depth` levels down from what was listed, and into at most 1,000 directories of a level. Where each takes a
    request, it goes into `MOST_REQUESTS`, and names alone say which are versions. A directory that cannot be listed is
    left out.
    """
    store = open_location(listing.location)
    is_far = store.properties.round_trips
    is_whole, unseen = not listing.bound, 0
    top = Level({entry.name: not entry.is_file for entry in listing.foreign})
    folders = list(_directories_in(listing.location, top, ()))
    found: list[Location] = []
    for _ in range(depth):
        most = MOST_REQUESTS if is_far else _MOST_NEAR
        unseen += len(folders[most:])
        inner: list[Location] = []
        for place, seen in run_parallel(_level_of, folders[:most], store.properties.at_a_time(MOST_REQUESTS)):
            is_whole = is_whole and seen.is_whole
            versions = _versions_by_name(seen) if is_far else _versions_in(place, seen)
            if versions:
                found.append(place)
            inner += _directories_in(place, seen, versions)
        folders = inner
    return Below(tuple(sorted(found, key=lambda place: place.url)), unseen, is_whole and not unseen)


def _level_of(place: Location) -> tuple[Location, Level]:
    try:
        return place, open_location(place).level("", 1)
    except EdlCkptError:
        return place, Level({})


def _versions_in(place: Location, level: Level) -> set[str]:
    """Return the names of versions in a directory; none where it cannot be listed."""
    with suppress(EdlCkptError):
        return versions_among(place, level.names)
    return set()


def _versions_by_name(level: Level) -> set[str]:
    """Return the names that systems give to versions, and a bare number only to a directory of theirs."""
    directories = {name for name in level.directories if is_step_name(name)}
    return directories | {name for name, is_directory in level.names.items() if not is_directory and _is_file(name)}


def _is_file(name: str) -> bool:
    named = version_named(name)
    return named is not None and named.is_file


_MOST_NEAR: Final = 1000
"""So many directories of a level are looked into for a hint, on a disk."""
_REMOTE_TRIALS: Final = 8
"""So many trials are listed at a time where each listing takes requests."""
_DIGITS: Final = re.compile(r"([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of an experiment: `name` is its directory's, '.' for that of the experiment itself."""

    name: str
    listing: Listing
    best: Version | None = None
    """The best complete version by the experiment's metric; None without a value."""
    fault: EdlCkptError | None = None
    """Why the trial cannot be listed; the listing is then empty."""

    @property
    def location(self) -> Location:
        """Return the trial's location."""
        return self.listing.location

    @property
    def latest(self) -> Version | None:
        """Return the newest complete version."""
        return self.listing.newest


@dataclass(frozen=True, slots=True)
class Experiment:
    """Trials, the best first; those without a value come last, by name.

    `metric` is None when none was asked for and the trials have none, or several. `mode` is None when nobody said
    whether higher or lower is better; then no trial is the best.
    """

    location: Location
    trials: tuple[Trial, ...]
    metric: str | None = None
    mode: str | None = None

    @property
    def best(self) -> Version | None:
        """Return the best version of all trials."""
        return self.trials[0].best if self.trials else None

    @property
    def unread(self) -> bool:
        """Return True when something that is there cannot be read now."""
        return any(trial.fault is not None or trial.listing.unread for trial in self.trials)

    def __repr__(self) -> str:
        trials = counted(len(self.trials), "trial")
        return describe("Experiment", escaped(self.location.url), trials, f"by {escaped(str(self.metric))}")


def list_experiment(
    location: LocationLike,
    *,
    metric: str | None = None,
    mode: Mode | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> Experiment:
    """Return the trials in a directory, ranked by a metric: the one named, or the only one that there is.

    `mode` is 'max' or 'min'; None stands for the mode that the trials declare, or that of a known name. Raises
    NotFoundError when there is no such directory, UsageError when the mode of a named metric is unknown or the trials
    disagree on it, NotFoundError when no trial has a named metric, and UnavailableError.
    """
    store = open_location(location)
    where = store.location
    look = partial(_trial, where, grace_seconds=grace_seconds)
    listed = run_parallel(look, _trial_names(store), store.properties.at_a_time(_REMOTE_TRIALS))
    found = [trial for trial in listed if trial is not None]
    known = {name for trial in found for version in trial.listing.versions for name in version.metrics}
    if metric is not None and found and metric not in known:
        hint = meant(metric, known, "metrics") if known else "record some: edl-ckpt metrics set"
        raise NotFoundError(f"no trial has a value of {metric!r}", path=where.url, hint=hint)
    chosen = metric if metric is not None or len(known) != 1 else next(iter(known))
    better = None if chosen is None else _mode(found, chosen, mode, is_named=metric is not None)
    return Experiment(where, _ranked(found, chosen, better), chosen, better)


def trial_locations(location: LocationLike) -> tuple[Location, ...]:
    """Return the locations of an experiment's trials, those that cannot be looked at too, by name.

    Raises NotFoundError when there is no trial.
    """
    where = Location.of(location)
    found = sorted(list_experiment(where).trials, key=_by_name)
    if not found:
        raise NotFoundError("no trial here: no directory in it has versions", path=where.url)
    return tuple(trial.location for trial in found)


def _trial_names(store: Store) -> list[str]:
    """Return the names right below an experiment that may be trials, '.' for itself."""
    level = store.level("", sys.maxsize)
    if not level.names:
        list_versions(store.location)  # raises when there is no such directory
    versions = versions_among(store.location, level.names)
    return [".", *(name for name in level.directories if name not in versions and name[:1] != ".")]


def _trial(where: Location, name: str, grace_seconds: float) -> Trial | None:
    """Return a trial, None for what has no versions; one that cannot be listed has its fault."""
    place = where if name == "." else where.with_url(f"{where.url.rstrip('/')}/{name}")
    path = place.local_path
    if path is not None and not os.path.isdir(path) and not (os.path.islink(path) and not os.path.exists(path)):
        return None
    try:
        listing = list_versions(place, grace_seconds=grace_seconds)
    except UnavailableError:
        raise  # a fault of the storage, not of the trial
    except NotFoundError as error:
        return Trial(name, Listing(place, ()), fault=error) if path is not None and os.path.islink(path) else None
    except EdlCkptError as error:
        return Trial(name, Listing(place, ()), fault=error)
    return Trial(name, listing) if listing.versions else None


def _mode(trials: Iterable[Trial], metric: str, asked: str | None, *, is_named: bool) -> str | None:
    """Return the better end of a metric; None when it is unknown, and the metric was not asked for by name."""
    listings = [trial.listing for trial in trials] if asked is None else []
    try:
        return mode_of(metric, asked, common_modes(listings, metric))
    except EdlCkptError:
        if is_named or asked is not None:
            raise
        return None


def _ranked(trials: Sequence[Trial], metric: str | None, mode: str | None) -> tuple[Trial, ...]:
    if metric is None or mode is None:
        return tuple(sorted(trials, key=_by_name))
    trials = [replace(t, best=next(iter(ranked(t.listing.versions, metric, mode)), None)) for t in trials]
    scores = {t.name: rank(t.best.metrics[metric], mode) for t in trials if t.best}
    return tuple(sorted(trials, key=lambda t: (t.best is None, scores.get(t.name, 0.0), _by_name(t))))


def _by_name(trial: Trial) -> list[tuple[int, str]]:
    """Return a sort key by which trial-9 comes before trial-10."""
    parts = _DIGITS.split(trial.name)
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)]
