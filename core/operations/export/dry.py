"""What an export would write: its files, and with a cluster the tasks that send them; headers and ids tell."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import IO, Self, cast

from edl_ckpt.core.checkpoint.catalog import VersionLike
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.checkpoint.trust import check_trust
from edl_ckpt.core.cluster.choice import ExecutorLike
from edl_ckpt.core.operations.export.content import ContentReader
from edl_ckpt.core.operations.export.content_format import ContentFormat, metadata_of
from edl_ckpt.core.operations.export.formats import requested
from edl_ckpt.core.operations.export.interface import ContentCounts, ExportContent, ExportedFile, ExportRequest
from edl_ckpt.core.operations.export.merged import MergedCheckpoint
from edl_ckpt.core.operations.export.places import Place, SentFile
from edl_ckpt.core.operations.export.selection import Selection
from edl_ckpt.core.operations.export.send import DrySending, SendPlan
from edl_ckpt.core.operations.export.spread import SpreadReader
from edl_ckpt.core.operations.export.target import check_output
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.storage import LocationLike, open_store
from edl_ckpt.core.storage.interface import ObjectWriter
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.meeting import SharedDirectory


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that would be written; `size_bytes` is None where only the values would tell."""

    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export would write."""

    ref: str
    output: str
    format: str
    files: tuple[PlannedFile, ...]
    variables: int
    tables: int
    rows: int
    value_bytes: int
    """The bytes of all values that would be written, ids included."""
    bytes_read: int
    """The bytes that were read for the plan."""
    sending: SendPlan | None = None
    """How the workers of a cluster would send the files to object storage."""


def plan_export(
    version: VersionLike,
    output: LocationLike,
    *,
    format_name: str | None = None,
    selection: Selection | None = None,
    limit: int | None = None,
    max_shard_bytes: int | None = None,
    force: bool = False,
    use_seal: bool = True,
    executor: ExecutorLike | None = None,
    reporter: Reporter = WARNINGS,
) -> ExportPlan:
    """Return what `export_version` would do; nothing is written, and no value is read.

    Errors are those that it raises before it writes.
    """
    goal, name, request, chosen = requested(
        version,
        output,
        format_name=format_name,
        selection=selection,
        limit=limit,
        max_shard_bytes=max_shard_bytes,
        use_seal=use_seal,
        executor=executor,
        reporter=reporter,
    )
    version, work = request.version, request.executor
    if isinstance(chosen, MergedCheckpoint):
        files, counts, read = chosen.plan(goal, force=force)
        return _plan(version.ref, goal, name, files, counts, sum(file.size_bytes for file in files), read)
    assert isinstance(chosen, ContentFormat)  # noqa: S101 - there are no others
    check_trust(version, force=not use_seal, reporter=reporter)
    with open_checkpoint(version) as checkpoint, tempfile.TemporaryDirectory(prefix="edl-ckpt-") as scratch:
        chosen.check_dtypes(checkpoint)
        check_output(goal, chosen.traits, is_directory=chosen.is_directory(checkpoint), force=force)
        target = _DryTarget(scratch, goal, chosen.beside(checkpoint, goal))
        read = 0 if work is None else work.bytes_read()
        with _reader(checkpoint, request, goal, scratch) as reader:
            content, sending = reader.content(), list[SendPlan]()

            def fill(places: Mapping[str, Place]) -> None:
                if isinstance(reader, DrySending):
                    sending.append(reader.planned(places))

            named = _files(chosen, replace(content, fill=fill, finish=lambda: content.metadata), target)
        read = checkpoint.bytes_read + (0 if work is None else work.bytes_read() - read)
        counts = chosen.counts(content)
        value_bytes = sum(tensor.size_bytes for tensor in content.tensors)
    made = _plan(version.ref, goal, name, named, counts, value_bytes, read)
    return replace(made, sending=sending[0] if sending else None)


def _plan(
    ref: str,
    goal: Location,
    name: str,
    files: Sequence[PlannedFile | ExportedFile],
    counts: ContentCounts,
    value_bytes: int,
    bytes_read: int,
) -> ExportPlan:
    planned = tuple(PlannedFile(file.path, file.size_bytes) for file in files)
    return ExportPlan(
        ref, goal.url, name, planned, counts.variables, counts.tables, counts.rows, value_bytes, bytes_read
    )


def _reader(checkpoint: Checkpoint, request: ExportRequest, goal: Location, scratch: str) -> ContentReader:
    common = (checkpoint, request.selection, metadata_of(request.version), scratch, lambda _: None)
    work = request.executor
    if work is None or not work.elsewhere:
        return ContentReader(*common, reporter=request.reporter)
    kind = SpreadReader if goal.local_path is not None else DrySending
    reader = kind(*common, reporter=request.reporter, executor=work, writes=False)
    if isinstance(reader, DrySending):
        reader.least_bytes = open_store(goal.split()[0]).properties.part_bytes
    return reader


def _files(chosen: ContentFormat, content: ExportContent, target: _DryTarget) -> list[PlannedFile]:
    """Return the files under their final names."""
    if not chosen.traits.sized:
        return [PlannedFile(target.shown(path), None) for path in chosen.paths(content, target)]
    chosen.write(content, target)
    return target.files()


class _DryTarget:
    """A target whose files have sizes, and are not there."""

    def __init__(self, scratch: str, goal: Location, beside: Location | None) -> None:
        self._scratch, self._goal = scratch, goal
        self.path = os.path.join(scratch, goal.split()[1])
        self.beside = "" if beside is None else os.path.join(scratch, beside.split()[1])
        self._sizes: dict[str, int] = {}

    def new_file(self, path: str, size_bytes: int) -> SentFile:
        """Note a file."""
        os.makedirs(os.path.dirname(path), exist_ok=True)  # small files are written beside it
        self._sizes[path] = size_bytes
        return SentFile(path, os.path.relpath(path, self._scratch), cast("ObjectWriter", _Sized(size_bytes)))

    def shown(self, path: str) -> str:
        """Return the final name of a path."""
        folder = self._goal.split()[0]
        relative = os.path.relpath(path, self._scratch)
        return os.path.join(folder.url, relative) if folder.local_path is None or folder.url != "." else relative

    def files(self) -> list[PlannedFile]:
        """Return all files, those too that were small enough to be written here."""
        sizes = dict(self._sizes)
        for top, _, names in os.walk(self._scratch):
            for path in (os.path.join(top, name) for name in names):
                sizes[path] = os.path.getsize(path)
        return [PlannedFile(self.shown(path), size) for path, size in sorted(sizes.items())]

    def open_text(self) -> AbstractContextManager[IO[str]]:
        """Raise NotImplementedError: text is not written in a dry run."""
        raise NotImplementedError

    def share(self) -> SharedDirectory:
        """Return the directory."""
        return SharedDirectory(self._scratch)

    def publish(self) -> tuple[ExportedFile, ...]:
        """Publish nothing."""
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class _Sized:
    """Stands for an upload that is not begun."""

    size_bytes: int
