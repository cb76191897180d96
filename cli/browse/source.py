"""What the screens ask of the engine, in threads of its own, so that no screen ever waits for storage.

A thread that is given up ends at its next report or its next wait for the network. Its result goes nowhere.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.options.decorator import attempted
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.base.parallel import stop_when
from edl_ckpt.core.base.progress import Progress
from edl_ckpt.core.base.words import Level, portion
from edl_ckpt.core.catalog.files import directory_alone, named_step
from edl_ckpt.core.catalog.listing import list_versions, pick, resolve, split_version_dir
from edl_ckpt.core.catalog.single_file import named_file
from edl_ckpt.core.model.versions import CheckpointRef, Listing, Version
from edl_ckpt.core.operations.verify.check import verify_version
from edl_ckpt.core.reading.loss import loss_of
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.registry import is_uuid
from edl_ckpt.core.storage.faults import error_of_system

if TYPE_CHECKING:
    from edl_ckpt.core.base.progress import Reporter
    from edl_ckpt.core.operations.summary import CheckpointSummary
    from edl_ckpt.core.storage.location import Location


_MOST_BELOW: Final = 1000
"""How many locations below a directory without versions are shown."""


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


def below(listing: Listing) -> list[Location]:
    """Return the first locations with versions below one without, two directories deep."""
    from edl_ckpt.core.catalog.experiment import glance_below

    return [*glance_below(listing).locations[:_MOST_BELOW]]


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


class GivenUp(SystemExit):
    """Raised where a given up job reports: pools of threads end by it as by a signal."""


class BackgroundJob(Progress):
    """One piece of work, and the `Reporter` that it reports to.

    `ended` is called in the thread of the work, once, after `result`, `error` or `bug` is set; not after `give_up`.
    """

    def __init__(
        self, words: str, work: Callable[[BackgroundJob], Any], ended: Callable[[BackgroundJob], object]
    ) -> None:
        super().__init__(lambda *_: self._check(), on_warning=lambda _: self._check(), every_seconds=0)
        self.words = words
        self.result: Any = None
        self.error: EdlCkptError | None = None
        self.bug: BaseException | None = None
        self._work, self._ended = work, ended
        self._stop = threading.Event()
        self.is_running = False
        self.thread = threading.Thread(target=self._run, name="edl-ckpt-browse", daemon=True)

    def begin(self) -> None:
        """Start the thread; a daemon, since the end of the program waits for nobody."""
        self.is_running = True
        self.thread.start()

    def give_up(self) -> None:
        """Stop the work as soon as it reports or waits; `ended` is not called."""
        self._stop.set()
        self.is_running = False

    @property
    def progress(self) -> str:
        """Return how far the work is, in words: 'values: 1.5 of 5.0 GiB, 30%'."""
        if not self.total_bytes:
            return self.what or self.words
        share = min(self.done_bytes / self.total_bytes, 1.0)
        return f"{self.what}: {portion(self.done_bytes, self.total_bytes)}, {share:.0%}"

    def _check(self) -> None:
        if self._stop.is_set():
            raise GivenUp

    def _run(self) -> None:
        stop_when(self._stop)
        try:
            self.result = attempted(lambda: self._work(self), lambda _: self._check())
        except GivenUp:
            return
        except (OSError, MemoryError, RecursionError) as error:  # one of ours may be an OSError too
            self.error = error_of_system(error)
        except EdlCkptError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 - a bug, which the program shows at its end
            self.bug = error
        if not self._stop.is_set():
            self.is_running = False
            self._ended(self)


class BackgroundCheck(BackgroundJob):
    """A verification of a version at a level; its result is a `VerifyResult`."""

    def __init__(self, version: Version, level: Level, ended: Callable[[BackgroundJob], object]) -> None:
        super().__init__("verifying", lambda job: verify_version(again(version), level=level, reporter=job), ended)
        self.version, self.level = version, level
