"""What the screens ask of the engine. Each function runs in a thread of its own, and may wait for storage."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.catalog.files import directory_alone, named_file, named_step
from edl_ckpt.core.catalog.listing import list_versions, pick, resolve, split_version_dir
from edl_ckpt.core.model.versions import CheckpointRef, Listing, Version
from edl_ckpt.core.reading.loss import loss_of
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.registry import is_uuid

if TYPE_CHECKING:
    from edl_ckpt.core.base.job import Reporter
    from edl_ckpt.core.operations.summary import CheckpointSummary
    from edl_ckpt.core.storage.location import Location

_DEPTH: Final = 2
_MOST_BELOW: Final = 1000
"""How deep locations are looked for in a directory without versions, and how many are shown."""


def begin(ref: CheckpointRef, reporter: Reporter) -> tuple[Listing | None, Version | None]:
    """Return what a reference names: a listing, or a checkpoint in a file by itself; and its version.

    'latest' is no choice: the listing is shown. Errors as those of `resolve`.
    """
    if alone := named_step(ref) or named_file(ref):
        return None, alone
    if ref.version == "latest" and (split_version_dir(ref.location) or is_uuid(ref.location.split()[1])):
        with suppress(EdlCkptError):  # a checkpoint_dir may have such a name, too
            version = resolve(ref, reporter=reporter)
            return list_versions(version.location), version
    listing = list_versions(ref.location)
    if not listing.versions and ref.version == "latest" and (alone := directory_alone(ref.location)):
        return None, alone
    return listing, None if ref.version == "latest" else pick(listing, ref.version)


def below(location: Location, reporter: Reporter) -> list[Location]:
    """Return the first locations with versions below a directory, two directories deep."""
    from edl_ckpt.core.catalog.experiment import locations_below

    return list(islice(locations_below(location, depth=_DEPTH, reporter=reporter), _MOST_BELOW))


def again(version: Version) -> Version:
    """Return a version as it is listed now; NotFoundError when it is gone."""
    if version.is_alone:
        return resolve(CheckpointRef(version.location.with_url(version.path), "latest"))
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

    checkpoint = open_checkpoint(version, partial=True)
    try:
        summary = summarize(version, checkpoint.shards)
    except BaseException:
        checkpoint.close()
        raise
    return OpenVersion(version, checkpoint, summary, tuple(_warnings(version, checkpoint)))


def _warnings(version: Version, checkpoint: Checkpoint) -> Iterator[str]:
    yield from loss_of(checkpoint).lines()
    if version.fault is not None:
        yield str(version.fault.error())
    if version.seal_warning:
        yield version.seal_warning
    for shard, problem in ((s, p) for s in checkpoint.shards for p in s.problems):
        yield f"shard {shard.file.ps_id}, {problem.subject}: {problem.message} ({problem.code})"
