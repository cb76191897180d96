"""Versions that a caller with rules of its own must not delete: guards protect them, or others need or name them."""

from __future__ import annotations

import time
from collections.abc import Collection

from edl_ckpt.core.catalog.pointers import pointers_at
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.operations.prune.facts import Facts, Survey
from edl_ckpt.core.operations.prune.guards import NO_EXCEPTIONS, guard_reasons
from edl_ckpt.core.operations.prune.readable import find_unreadable


def undeletable(listing: Listing, numbers: Collection[int]) -> frozenset[int]:
    """Return the numbers of the versions of a listing that must not be deleted, if those of `numbers` are to be.

    The guards of a prune protect the newest complete version, tagged ones and those that still change; versions with
    foreign content, and those that pointers or other versions name, stay too. Nothing is looked at without a number.
    """
    if not numbers:
        return frozenset()
    versions = listing.versions
    reasons = guard_reasons(versions, NO_EXCEPTIONS, find_unreadable(versions), now=time.time())
    survey = Survey(Facts().with_pointers([pointers_at(listing)]))
    survey.look(versions, [version.path for version in versions if version.version in numbers])
    return frozenset(v.version for v in versions if v.path in reasons or survey.facts.why(v, NO_EXCEPTIONS))
