"""Checkpoints of a job as versions of a location, on any storage.

A committed checkpoint is a version with one shard. Each of its streams is a dense variable `torchelastic/{key}` of int8
[size]. So every command works on it, and a commit is that of every version: written, read back, proved, made visible as
a whole, and sealed. Until then the streams are in nameless temporary files: a discard, or a crash, leaves nothing.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import BinaryIO, Final, cast

from edl_ckpt.core import (
    LOCK_WAIT_SECONDS,
    Checkpoint,
    Latest,
    Location,
    LocationLike,
    Policy,
    State,
    Version,
    free_target,
    list_versions,
    open_checkpoint,
    prune,
    read_policy,
    verify_version,
)
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import EdlCkptError, IncompleteError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.parallel import default_workers
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import abridged, base_name, meant
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.operations.importing.range_stream import RangeStream
from edl_ckpt.core.operations.importing.source import ArrayData, NamedArrays, execute_import, prepare_import
from edl_ckpt.core.operations.prune.guards import IN_A_JOB
from edl_ckpt.core.proof.sealing import check_chunks
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.newest import PASSED_OVER
from edl_ckpt.core.sources.elasticdl.target import check_texts
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.local import LocalReader, is_gone
from edl_ckpt.core.training.elastic.loop import DEFAULT_KEY, ElasticCheckpoint, ElasticCheckpointManager

VARIABLE_PREFIX: Final = "torchelastic/"
_BUFFER_BYTES: Final = 4 << 20
_REASONS: Final = 20
_LOG: Final = logging.getLogger("edl_ckpt")


class FileSystemCheckpointManager(ElasticCheckpointManager):
    """Keeps checkpoints as versions of a location: a directory, S3, or any storage of fsspec.

    `keep_checkpoint_max` checkpoints are kept, 0 keeps all; a policy that is stored with the location replaces this
    rule. Deletions follow the rules of `prune`: never the newest complete version, never a tagged one. A deletion that
    fails is a warning in the log `edl_ckpt`, because the checkpoint is committed; the next commit tries again.
    `layout` and `wait_seconds` are those of `save_checkpoint`.
    """

    def __init__(
        self,
        location: LocationLike,
        *,
        keep_checkpoint_max: int = 0,
        layout: LayoutName | None = None,
        wait_seconds: float = LOCK_WAIT_SECONDS,
        reporter: Reporter = WARNINGS,
    ) -> None:
        self._keep = whole_number("keep_checkpoint_max", keep_checkpoint_max, least=0)
        self.location = Location.of(location).pinned()
        self._layout = layout
        self._wait_seconds = wait_seconds
        self._reporter = reporter

    def __repr__(self) -> str:
        return f"FileSystemCheckpointManager({self.location.url!r}, keep_checkpoint_max={self._keep})"

    def create_checkpoint(self, sequence_id: int | None = None) -> FileSystemCheckpoint:
        """Return a new checkpoint; its number is given, or follows the highest at the location when it is committed."""
        return FileSystemCheckpoint(self, sequence_id)

    def get_checkpoint(self, sequence_id: int) -> FileSystemCheckpoint | None:
        """Return a committed checkpoint by its number, None when there is none; it may be damaged."""
        found = (v for v in self._versions() if v.version == sequence_id and _keys(v))
        return next((FileSystemCheckpoint(self, v.version, v) for v in found), None)

    def get_latest_checkpoint(self) -> FileSystemCheckpoint | None:
        """Return the newest checkpoint that is whole, None when nothing was committed yet.

        Every byte is compared with the seal before anything is loaded. The log `edl_ckpt` has a warning for each newer
        version that is passed over. Raises IncompleteError when all are damaged: a job must not begin anew beside them.
        Errors of the storage are raised, too: an old checkpoint must not pass for the latest.
        """
        faults: list[str] = []
        for version in self._versions():
            fault = _fault(version)
            if fault is None:
                return FileSystemCheckpoint(self, version.version, version)
            if fault:
                faults.append(f"version {version.version}: {fault}")
                _LOG.warning("%s is damaged, so an older checkpoint is looked for: %s", version.ref, fault)
        if faults:
            raise IncompleteError(f"no checkpoint is whole: {abridged(faults, _REASONS)}", path=self.location.url)
        return None

    def list_checkpoints(self) -> list[ElasticCheckpoint]:
        """Return all committed checkpoints, the newest first; one of them may be damaged."""
        return [FileSystemCheckpoint(self, v.version, v) for v in self._versions() if _keys(v)]

    def _versions(self) -> Iterator[Version]:
        """Yield the versions of the location, the newest first."""
        try:
            yield from reversed(list_versions(self.location, wait_seconds=self._wait_seconds).versions)
        except NotFoundError:
            path = self.location.local_path
            if path is not None and not is_gone(path):
                raise  # a file

    def write(self, number: int | None, arrays: dict[str, ArrayData]) -> Version:
        """Write a version from variables, prune older ones, and return it; what `commit` does."""
        if number is None:
            number = next((v.version + 1 for v in self._versions()), 1)
        target = free_target(self.location, number, layout=self._layout)
        job = Job.here(reporter=self._reporter)
        plan, settings = prepare_import(NamedArrays(arrays, ()), target, 1, job)
        execute_import(plan, settings, job, purpose="save", wait_seconds=self._wait_seconds)
        version = next(v for v in self._versions() if v.version == number)
        try:
            self._prune()
        except EdlCkptError as error:
            _LOG.warning("%s is committed, but older checkpoints could not be deleted: %s", version.ref, error)
        return version

    def _prune(self) -> None:
        policy = read_policy(self.location)
        if policy.is_empty and self._keep:
            policy = Policy((Latest(self._keep),))
        if not policy.is_empty:
            wait = self._wait_seconds
            done = prune([self.location], policy, guards=IN_A_JOB, wait_seconds=wait, reporter=self._reporter)
            for text in done.plan.unknown:
                _LOG.warning("%s: %s", self.location, text)
            for error in done.errors:
                raise error


class FileSystemCheckpoint(ElasticCheckpoint):
    """A checkpoint of `FileSystemCheckpointManager`; `sequence_id` is the number of its version, None until known."""

    def __init__(
        self, manager: FileSystemCheckpointManager, sequence_id: int | None = None, version: Version | None = None
    ) -> None:
        self.sequence_id = sequence_id
        self.version = version
        """The version once it is committed."""
        self._manager = manager
        self._spools: dict[str, BinaryIO] = {}
        self._streams = ExitStack()
        self._discarded = False

    def __repr__(self) -> str:
        state = "committed" if self.version else "not committed"
        if self._discarded:
            state = "discarded"
        return f"<FileSystemCheckpoint {self.sequence_id} of {self._manager.location.url}, {state}>"

    def open_output_stream(self, key: str = DEFAULT_KEY) -> BinaryIO:
        """Return a file to write to, which is seekable; the same key again replaces what was written.

        It is a temporary file in $TMPDIR. Raises UsageError for a checkpoint that is committed or discarded, and for a
        key that is no valid Unicode.
        """
        self._check_open()
        check_texts([f"{VARIABLE_PREFIX}{key}"], ())
        with storage_errors(tempfile.gettempdir()):
            if key not in self._spools:
                self._spools[key] = cast("BinaryIO", tempfile.TemporaryFile(prefix="edl-ckpt-"))  # noqa: SIM115
            spool = self._spools[key]
            os.ftruncate(spool.fileno(), 0)
            os.lseek(spool.fileno(), 0, os.SEEK_SET)
            return self._streams.enter_context(os.fdopen(os.dup(spool.fileno()), "wb", _BUFFER_BYTES))

    def open_input_stream(self, key: str = DEFAULT_KEY) -> BinaryIO:
        """Return a stream, buffered and seekable, over what was committed; bytes are read when they are wanted.

        Raises NotFoundError for an unknown key, UsageError for a checkpoint that is not committed.
        """
        if self.version is None:
            raise UsageError("the checkpoint is not committed, so it cannot be read", path=self._manager.location.url)
        reader = open_checkpoint(self.version)
        try:
            return io.BufferedReader(_VariableStream(reader, key), _BUFFER_BYTES)
        except BaseException:
            reader.close()
            raise

    def commit(self) -> None:
        """Write the version, prove it, make it visible and seal it; streams that are still open are closed first.

        When it fails, nothing is visible, and it can be called again. Raises the errors of `save_checkpoint`, and
        UsageError when no stream was opened or the checkpoint was discarded.
        """
        if self.version is not None:
            return
        self._check_open()
        if not self._spools:
            raise UsageError("no stream of the checkpoint was opened, so there is nothing to commit")
        with storage_errors(tempfile.gettempdir()):
            self._streams.close()
        with ExitStack() as stack:
            arrays: dict[str, ArrayData] = {}
            for key, spool in self._spools.items():
                reader = stack.enter_context(LocalReader(f"stream {key!r}", spool))
                name = f"{VARIABLE_PREFIX}{key}"
                arrays[name] = ArrayData(name, DTYPES["int8"], (reader.size_bytes,), reader, 0)
            self.version = self._manager.write(self.sequence_id, arrays)
        self.sequence_id = self.version.version
        self._release()

    def discard(self) -> None:
        """Drop the streams; nothing of them was visible. RefusedError for a committed checkpoint."""
        if self.version is not None:
            raise RefusedError(
                "a committed checkpoint cannot be discarded", path=self.version.ref, hint="`edl-ckpt prune` deletes it"
            )
        self._discarded = True
        with suppress(OSError):  # what is dropped need not be whole
            self._streams.close()
        self._release()

    def _check_open(self) -> None:
        if self._discarded or self.version is not None:
            state = "discarded" if self._discarded else "committed"
            raise UsageError(f"the checkpoint is {state}; create another one", path=self._manager.location.url)

    def _release(self) -> None:
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()


class _VariableStream(RangeStream):
    """The bytes of a dense variable as a stream; it owns the open checkpoint."""

    def __init__(self, checkpoint: Checkpoint, key: str) -> None:
        name = f"{VARIABLE_PREFIX}{key}"
        if name not in checkpoint:
            hint = meant(key, _keys_of(checkpoint), "streams")
            raise NotFoundError(f"no stream {key!r}", path=checkpoint.version.ref, hint=hint)
        shard, entry = checkpoint.find_variable(name)
        super().__init__(checkpoint.reader(shard, entry.values), entry.values.start, entry.size_bytes)
        self.name = f"{checkpoint.version.ref}:{key}"
        self._checkpoint = checkpoint

    def close(self) -> None:
        if not self.closed:
            try:
                self._checkpoint.check_unchanged()
            finally:
                self._checkpoint.close()
                super().close()


def _keys_of(checkpoint: Checkpoint) -> set[str]:
    names = checkpoint.variable_names
    return {name.removeprefix(VARIABLE_PREFIX) for name in names if name.startswith(VARIABLE_PREFIX)}


def _keys(version: Version) -> set[str]:
    """Return the keys of a version's streams; none for a version of something else, or one that cannot be opened."""
    try:
        with open_checkpoint(version) as checkpoint:
            return _keys_of(checkpoint)
    except PASSED_OVER:
        return set()


def _fault(version: Version) -> str | None:
    """Return why a checkpoint is not whole; None when every byte of it is as it was committed.

    It is '' for a version that is not of a job like this, or that is still being written.
    """
    if version.state in {State.WRITING, State.INCOMPLETE}:
        return ""
    try:
        with open_checkpoint(version) as checkpoint:
            if not _keys_of(checkpoint):
                return ""
            seal = check_trust(version).seal
            if seal is not None:
                readers = {base_name(shard.file.path): checkpoint.reader(shard) for shard in checkpoint.shards}
                found = next(check_chunks(seal, readers, workers=default_workers(remote=checkpoint.is_far)), None)
                return found and f"bytes {found.chunk.start} to {found.chunk.end} differ from its seal"
    except PASSED_OVER as error:
        return str(error)
    result = verify_version(version, level="deep", beside=False)  # a copy by other tools has no seal
    return next((finding.message for finding in result.findings if finding.severity == "error"), None)
