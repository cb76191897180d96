"""Errors and hints for a location without versions: those below it, and names that were not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import (
    NotFoundError,
)
from edl_ckpt.core.base.words import abridged

if TYPE_CHECKING:
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.storage.location import Location

_SOME: Final = 8


def trials_hint(listing: Listing) -> str | None:
    """Return where the versions are, for a location that has none and is above some; None when it is not."""
    return _below(listing)[0]


def _below(listing: Listing) -> tuple[str | None, bool]:
    """Return where the versions are below a location that has none, None for nowhere; and whether all was looked at."""
    from edl_ckpt.core.catalog.experiment import glance_below

    below = glance_below(listing)
    if not below.locations:
        return None, below.is_whole
    names = abridged((escaped(found.url) for found in below.locations), _SOME)
    more = "" if below.is_whole else " (not every directory was looked into)"
    hint = f"versions are below: {names}{more}; --experiment takes them as trials, and `list --recursive` lists them"
    return hint, below.is_whole


def parent_error(listing: Listing) -> NotFoundError | None:
    """Return the error of a location without versions that is above some, or of which not all was looked at.

    None for any other directory.
    """
    if listing.versions:
        return None
    place = listing.location
    hint, is_whole = _below(listing)
    if listing.bound:
        way_on = "; ".join(filter(None, (listing.way_on, hint)))
        return NotFoundError(listing.none_here, path=place.url, hint=way_on)
    if hint is None and not is_whole:
        message = "no version is right here, and not every directory below was looked into"
        return NotFoundError(message, path=place.url, hint="name the directory in which the versions are")
    return NotFoundError("no version is right here", path=place.url, hint=hint) if hint else None


def check_no_parent(listing: Listing) -> None:
    """Raise NotFoundError for a listing without versions that says nothing of all that is there: see `parent_error`."""
    error = parent_error(listing)
    if error is not None:
        raise error


def check_clear(place: Location) -> None:
    """Raise NotFoundError, before anything is locked, for a place whose many names show no version."""
    from edl_ckpt.core.catalog.bounds import is_unclear
    from edl_ckpt.core.catalog.listing import list_versions

    if is_unclear(place):
        check_no_parent(list_versions(place))
