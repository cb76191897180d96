"""Each complete version once, for jobs that evaluate or serve what another job saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.operations.follow.observe import (
    CLOCK,
    Clock,
    Health,
    Observer,
)
from edl_ckpt.core.storage.location import LocationLike


def checkpoints_iterator(
    location: LocationLike,
    *,
    after: int | None = None,
    replaced: bool = False,
    min_interval_seconds: float = 0.0,
    timeout_seconds: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    interval_seconds: float | None = None,
    clock: Clock = CLOCK,
    reporter: Reporter = WARNINGS,
) -> Iterator[Version]:
    """Yield each complete version of a location once, in the order of their numbers, and wait for the next ones.

    Versions that came while the caller was busy are yielded too, unlike in `tf.train.checkpoints_iterator`; those that
    were deleted meanwhile are not. A version that becomes complete after a higher number comes as soon as it is
    complete. Numbers up to `after` are left out, so a caller that was stopped can resume. With `replaced`, a version
    that a job wrote again is yielded again.

    As in TensorFlow, at least `min_interval_seconds` pass between two versions, and when there is none for
    `timeout_seconds` (None: for ever), the iterator ends, unless `timeout_fn` returns False. `interval_seconds` is the
    time between two looks. Raises the errors of listing; storage that does not answer is tried again.
    """
    if timeout_fn is not None and timeout_seconds is None:
        raise UsageError("timeout_fn needs timeout_seconds: without a timeout it is never called")
    if after is not None:
        after = whole_number("after", after)
    observer = Observer(location, metadata=False, interval_seconds=interval_seconds, clock=clock, reporter=reporter)
    clock = observer.clock

    def versions() -> Iterator[Version]:
        taken: dict[int | str, tuple[ShardFile, ...]] = {}
        since, last = clock.tick(), -min_interval_seconds + clock.tick()
        with observer:
            while True:
                listing, is_busy = observer.look(), False
                pending = _pending(listing, taken, after, replaced=replaced)
                for version in (v for v in pending if observer.check(v).health is Health.READABLE):  # and still there
                    if (early := last + min_interval_seconds - clock.tick()) > 0:
                        clock.sleep(early)
                    taken[version.key], last, is_busy = version.shards, clock.tick(), True
                    yield observer.snapshots.described(version)
                    since = clock.tick()
                if is_busy:  # the caller was, so there may be more
                    continue
                left = None if timeout_seconds is None else since + timeout_seconds - clock.tick()
                if left is not None and left <= 0:
                    if timeout_fn is None or timeout_fn():
                        return
                    since, left = clock.tick(), timeout_seconds
                observer.pause(left)

    return versions()


def _pending(
    listing: Listing | None, taken: Mapping[int | str, tuple[ShardFile, ...]], after: int | None, *, replaced: bool
) -> list[Version]:
    """Return the complete versions of a listing that were not yielded, by number."""
    versions = listing.versions if listing else ()
    wanted = [v for v in versions if v.state is State.COMPLETE and not (v.replaced_by or v.doubts)]
    later = [v for v in wanted if after is None or v.version > after]
    return [v for v in later if v.key not in taken or (replaced and taken[v.key] != v.shards)]
