"""Locations without a version whose files belong to a system that edl-ckpt does not read: which one, and the way on."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.sources import registry
from edl_ckpt.core.sources.recognised import recognised_names
from edl_ckpt.core.storage import LocalStore, ObjectStore

_MOST_STEPS = 3
"""So many directories with the names of steps are looked into."""


def stranger(store: LocalStore | ObjectStore, listing: Listing) -> str:
    """Return in words what a location without versions has; '' where no name shows it."""
    names = [entry.name for entry in listing.foreign]
    if words := recognised_names(names):
        return words
    steps = (name for name in names if registry.version_named(name) is not None)
    for step in islice(steps, _MOST_STEPS):
        with suppress(EdlCkptError):
            if words := recognised_names([*store.names(step)]):
                return words
    return ""
