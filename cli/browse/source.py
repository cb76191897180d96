"""What the screens ask of the engine. Each function runs in a thread of its own, and may wait for storage."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.core.base.errors import EdlCkptError

if TYPE_CHECKING:
    from edl_ckpt.core.base.progress import Reporter
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.model.versions import CheckpointRef, Version
    from edl_ckpt.core.operations.diff import DiffResult
    from edl_ckpt.core.operations.lookup import Lookup
    from edl_ckpt.core.operations.stats import TensorStats
    from edl_ckpt.core.operations.summary import CheckpointSummary
    from edl_ckpt.core.operations.verify.findings import VerifyResult
    from edl_ckpt.core.reading.pages import TablePages
    from edl_ckpt.core.reading.reader import Checkpoint
    from edl_ckpt.core.storage.location import Location

_DEPTH: Final = 2
_MOST_BELOW: Final = 1000
"""How deep locations are looked for in a directory without versions, and how many are shown."""
_TOP: Final = 20
"""The rows of each table that changed most, in a comparison."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a reference on the command line names: a listing, or a checkpoint in a file by itself; and its version."""

    listing: Listing | None
    version: Version | None


def begin(ref: CheckpointRef, reporter: Reporter) -> Beginning:
    """Look at what a reference names. 'latest' is no choice: the listing is shown. Errors as those of `resolve`."""
    from edl_ckpt.core.catalog.files import named_file
    from edl_ckpt.core.catalog.listing import list_versions, pick, resolve, split_version_dir
    from edl_ckpt.core.sources.registry import is_uuid

    alone = named_file(ref)
    if alone is not None:
        return Beginning(None, alone)
    if ref.version == "latest" and (split_version_dir(ref.location) or is_uuid(ref.location.split()[1])):
        with suppress(EdlCkptError):  # a checkpoint_dir may have such a name, too
            version = resolve(ref, reporter=reporter)
            return Beginning(list_versions(version.location), version)
    listing = list_versions(ref.location)
    return Beginning(listing, None if ref.version == "latest" else pick(listing, ref.version))


def listed(location: Location) -> Listing:
    """Return the versions of a location."""
    from edl_ckpt.core.catalog.listing import list_versions

    return list_versions(location)


def below(location: Location, reporter: Reporter) -> list[Location]:
    """Return the first locations with versions below a directory, two directories deep."""
    from itertools import islice

    from edl_ckpt.core.catalog.below import locations_below

    return list(islice(locations_below(location, depth=_DEPTH, reporter=reporter), _MOST_BELOW))


def again(version: Version) -> Version:
    """Return a version as it is listed now; NotFoundError when it is gone."""
    from edl_ckpt.core.base.errors import NotFoundError
    from edl_ckpt.core.catalog.files import file_version
    from edl_ckpt.core.catalog.listing import list_versions

    if version.is_alone:
        found = file_version(version.location.with_url(version.path))
    else:
        found = next((v for v in list_versions(version.location).versions if v.path == version.path), None)
    if found is None:
        raise NotFoundError("the version is gone", path=version.ref)
    return found


@dataclass(slots=True)
class OpenVersion:
    """A version whose headers were read. Its files are closed when the last reader has let go of them."""

    version: Version
    checkpoint: Checkpoint
    summary: CheckpointSummary
    warnings: tuple[str, ...]
    _users: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reference(self, kind: str, name: str) -> str:
        """Return a table or a variable, as commands take it."""
        return f"{shlex.quote(self.version.ref)} --{kind} {shlex.quote(name)}"

    @contextmanager
    def reading(self) -> Iterator[Checkpoint]:
        """Keep the files open while the block reads them."""
        with self._lock:
            self._users += 1
        try:
            yield self.checkpoint
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the files unless a reader still needs them."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.checkpoint.close()


def opened(version: Version) -> OpenVersion:
    """Read the headers of a version; of an incomplete one, those of the shards that are there. Errors as `inspect`."""
    from edl_ckpt.core.operations.summary import summarize
    from edl_ckpt.core.reading.reader import open_checkpoint

    checkpoint = open_checkpoint(version, partial=True)
    try:
        summary = summarize(version, checkpoint.shards)
    except BaseException:
        checkpoint.close()
        raise
    return OpenVersion(version, checkpoint, summary, tuple(_warnings(version, checkpoint)))


def _warnings(version: Version, checkpoint: Checkpoint) -> Iterator[str]:
    from edl_ckpt.core.base.words import missing_shards

    if version.missing:
        yield f"{missing_shards(version.missing_ranges, version.ps_num)}; the others are shown"
    if version.fault is not None:
        yield str(version.fault.error())
    if version.seal_warning:
        yield version.seal_warning
    for shard, problem in ((s, p) for s in checkpoint.shards for p in s.problems):
        yield f"shard {shard.file.ps_id}, {problem.subject}: {problem.message} ({problem.code})"


def pages(source: OpenVersion, table: str) -> TablePages:
    """Return the rows of a table by their position."""
    from edl_ckpt.core.reading.pages import TablePages

    return TablePages(source.checkpoint, table)


def sample(version: Version, table: str, count: int, seed: int) -> Lookup:
    """Return rows of a table chosen at random."""
    from edl_ckpt.core.operations.lookup import sample_rows

    return sample_rows(version, table, count, seed=seed)


def stats(source: OpenVersion, kind: str, name: str, *, reporter: Reporter) -> TensorStats:
    """Return the statistics and the histogram of a table or a variable."""
    from edl_ckpt.core.operations.stats import tensor_stats

    with source.reading() as checkpoint:
        chosen: dict[str, Any] = {"variables": (), "tables": (), f"{kind}s": (name,)}
        return tensor_stats(checkpoint, **chosen, reporter=reporter)[0]


def compared(a: Version, b: Version, reporter: Reporter) -> DiffResult:
    """Compare two versions by value, as they are listed now."""
    from edl_ckpt.core.operations.diff import diff_versions

    return diff_versions(again(a), again(b), top=_TOP, reporter=reporter)


def verified(version: Version, level: str, reporter: Reporter) -> VerifyResult:
    """Verify a version at a level."""
    from edl_ckpt.core.operations.verify.check import verify_version

    return verify_version(version, level=level, reporter=reporter)


def named(ref: CheckpointRef, reporter: Reporter) -> Version:
    """Return the version that a reference names."""
    from edl_ckpt.core.catalog.listing import resolve

    return resolve(ref, reporter=reporter)
