"""The retention policy that is stored with a location: a prune without rules follows it."""

from __future__ import annotations

from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.state.annotate import write_policy
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.metadata import read_metadata
from edl_ckpt.core.state.paths import LOCATION_FILE
from edl_ckpt.core.storage import Location, LocationLike


def read_policy(location: LocationLike) -> Policy:
    """Return the policy that is stored with a location, an empty one when there is none; the error of reading it."""
    metadata = read_metadata(open_location(location), [LOCATION_FILE])  # of versions there may be thousands
    if metadata.fault is not None:
        raise metadata.fault
    document = metadata.policy
    return Policy() if document is None else Policy.from_json(document)


def store_policy(
    location: LocationLike,
    policy: Policy,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> None:
    """Store a policy with a location; it replaces an older one, and an empty policy removes it. Takes the lock itself.

    Raises NotFoundError when the location does not exist, LockedError when the lock is not free in time.
    """
    where = Location.of(location)
    list_versions(where)  # raises when the location does not exist; object storage would make it
    with location_lock(where, "policy", wait_seconds=wait_seconds, reporter=reporter) as locked:
        write_policy(locked.store, None if policy.is_empty else policy.to_json())
