"""Exporting a version: to formats that other tools open, in bounded memory, published whole or not at all.

A format is a class that keeps `interface.ExportFormat`; `content.py` turns a checkpoint into the tensors it writes.
Everything is written under a hidden name beside the target and renamed when it is on the disk. What went out unchanged
is summed on the way and must have the fingerprint of the source.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.checkpoint.fingerprint import fingerprint_checkpoint, fingerprint_of
from edl_ckpt.core.checkpoint.partition import PART_BYTES
from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.commit.single_file import StagedOutput, put_files
from edl_ckpt.core.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import parse_version_dir
from edl_ckpt.core.operations.export.arrays import NpyDirectory, Npz, Safetensors, ShardedSafetensors
from edl_ckpt.core.operations.export.content import Exported, Selection, estimated_bytes
from edl_ckpt.core.operations.export.frameworks import Parquet, TensorFlow, Torch
from edl_ckpt.core.operations.export.interface import ExportContent, ExportFormat
from edl_ckpt.core.operations.export.text import Projector, csv_file, json_lines, word2vec
from edl_ckpt.core.operations.reshard.execute import execute_reshard
from edl_ckpt.core.operations.reshard.prepare import prepare_reshard
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.metadata import json_number
from edl_ckpt.core.storage import LocalStore, Location, LocationLike, open_store
from edl_ckpt.core.storage.files import check_space

__all__ = ["FORMATS", "ExportResult", "ExportedFile", "Selection", "export_version", "guess_format"]
CHECKPOINT: Final = "checkpoint"
_ENDINGS: Final = {
    ".safetensors": "safetensors",
    ".npz": "npz",
    ".npy": "npy",
    ".ckpt": CHECKPOINT,
    ".chkpt": CHECKPOINT,
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".vec": "word2vec",
    ".parquet": "parquet",
    ".pt": "torch",
    ".pth": "torch",
}
_MAKERS: Final[Mapping[str, Callable[[int | None], ExportFormat]]] = {
    "safetensors": lambda _: Safetensors(),
    "npz": lambda _: Npz(),
    "npy": lambda _: NpyDirectory(),
    "csv": csv_file,
    "jsonl": json_lines,
    "word2vec": word2vec,
    "projector": Projector,
    "parquet": lambda _: Parquet(),
    "torch": lambda _: Torch(),
    "tensorflow": lambda _: TensorFlow(),
}
FORMATS: Final = (CHECKPOINT, *_MAKERS)
_LIMITED: Final = {"csv", "jsonl", "word2vec", "projector"}


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file that was written."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was exported; `proved` when everything went out unchanged and had the fingerprint of the source."""

    ref: str
    output: str
    format: str
    files: tuple[ExportedFile, ...]
    variables: int
    tables: int
    rows: int
    fingerprint: str
    seconds: float
    overflowed: int
    proved: bool


def guess_format(output: str) -> str:
    """Return the format that the ending of a path says; UsageError when it says none.

    >>> guess_format("model.safetensors"), guess_format("arrays.npy")
    ('safetensors', 'npy')
    """
    ending = os.path.splitext(output.rstrip("/"))[1].lower()
    if ending not in _ENDINGS:
        raise UsageError(f"{output!r} does not say which format", hint=f"say --format {'|'.join(FORMATS)}")
    return _ENDINGS[ending]


def export_version(
    version: Version,
    output: LocationLike,
    *,
    format_name: str | None = None,
    selection: Selection | None = None,
    limit: int | None = None,
    max_shard_bytes: int | None = None,
    force: bool = False,
    part_bytes: int = PART_BYTES,
    reporter: Reporter = SILENT,
) -> ExportResult:
    """Write a version in another format to a path or URL, which must be free unless `force` is said.

    Memory is a few times `part_bytes`; what goes to a URL is written to the local disk first. Raises RefusedError for a
    target that exists or that would lie among checkpoints, where ElasticDL's scan would meet it; NoSpaceError before
    anything is written; UsageError for a selection that the format cannot hold; and what reading raises.
    """
    begin = time.perf_counter()
    goal = Location.of(output)
    chosen, wish = format_name or guess_format(goal.url), selection or Selection()
    if chosen not in FORMATS:
        raise UsageError(f"no format {chosen!r}; expected one of {', '.join(FORMATS)}")
    if limit is not None and chosen not in _LIMITED:
        raise UsageError(f"--limit is for {', '.join(sorted(_LIMITED))}")
    if goal.local_path is None and (chosen != CHECKPOINT or _is_shard_file(goal.url)):
        with _RemoteTarget(goal, force=force) as remote:
            result = export_version(
                version,
                remote.path,
                format_name=chosen,
                selection=wish,
                limit=limit,
                max_shard_bytes=max_shard_bytes,
                part_bytes=part_bytes,
                reporter=reporter,
            )
            return replace(result, output=goal.url, files=remote.publish(), seconds=time.perf_counter() - begin)
    target = goal.url.rstrip("/") if goal.local_path is None else os.path.normpath(goal.local_path)
    if chosen == CHECKPOINT:
        return _export_checkpoint(version, goal.with_url(target), wish, force=force, begin=begin, reporter=reporter)
    _check_place(target)
    form: ExportFormat = _MAKERS[chosen](limit)
    if chosen == "safetensors" and max_shard_bytes is not None and version.size_bytes > max_shard_bytes:
        form = ShardedSafetensors(max_shard_bytes)
    with (
        open_checkpoint(version) as checkpoint,
        StagedOutput(target, is_directory=form.is_directory, force=force) as staged,
    ):
        reporter.start("fingerprint", version.size_bytes)
        source = fingerprint_checkpoint(
            checkpoint,
            workers=default_workers(remote=open_store(version.location).properties.round_trips),
            reporter=reporter,
        )
        metadata = _metadata(version, source.text)
        folder = os.path.dirname(target) or "."
        with Exported(checkpoint, wish, metadata, folder, part_bytes, reporter) as exported:
            content = exported.content()
            check_space(folder, estimated_bytes(content))
            form.write(content, staged.path)
            checkpoint.check_unchanged()
            proved = wish.is_lossless and limit is None and chosen not in _LIMITED
            if proved and fingerprint_of(checkpoint, exported.sketch).text != source.text:
                raise EdlCkptError("what was written is not what was read; nothing was published", path=target)
            staged.publish()
        return ExportResult(
            version.ref,
            goal.url,
            chosen,
            _files(target),
            len(content.tensors) - 2 * len(content.notes) - (len(content.tables) if not content.notes else 0),
            len(content.tables),
            _rows(content, limit),
            source.text,
            time.perf_counter() - begin,
            exported.overflowed,
            proved,
        )


def _rows(content: ExportContent, limit: int | None) -> int:
    rows = sum(table.rows for table in content.tables)
    return rows if limit is None else min(rows, limit)


def _metadata(version: Version, fingerprint: str) -> dict[str, str]:
    metrics = {name: json_number(value) for name, value in version.metrics.items()}
    return {
        "format": "edl-ckpt/export/1",
        "version": str(version.version),
        "fingerprint": fingerprint,
        "metrics": json.dumps(metrics),
    }


def _check_place(target: str) -> None:
    """Raise RefusedError for a target among checkpoints: ElasticDL's scan crashes on names that it does not expect."""
    for place in (os.path.dirname(target) or ".", os.path.dirname(os.path.dirname(os.path.abspath(target)))):
        try:
            versions = list_versions(place).versions
        except NotFoundError:
            continue
        inside = place != (os.path.dirname(target) or ".")
        if any(not inside or os.path.samefile(v.path, os.path.dirname(target) or ".") for v in versions):
            raise RefusedError(
                "lies among checkpoints: ElasticDL's scan would meet it and fail", path=target, hint="export elsewhere"
            )


class _RemoteTarget:
    """A remote file or directory that is written to the local disk first, then uploaded and made visible at once."""

    def __init__(self, goal: Location, *, force: bool) -> None:
        self._url = goal.url.rstrip("/")
        folder, self._name = goal.split()
        store = open_store(folder)
        assert not isinstance(store, LocalStore)  # noqa: S101 - the caller asks only for what is not on the local disk
        self._store = store
        self._force = force
        self._check()
        self._directory = tempfile.TemporaryDirectory(prefix="edl-ckpt-")
        self.path = os.path.join(self._directory.name, self._name)

    def _check(self) -> None:
        """Raise RefusedError for a target that exists, or that ElasticDL's scan would meet."""
        beside = self._store.names("")
        if parse_version_dir(self._url.split("/")[-2]) or any(map(parse_version_dir, beside)):
            raise RefusedError(
                "lies among checkpoints: ElasticDL's scan would meet it and fail",
                path=self._url,
                hint="export elsewhere",
            )
        if self._name in beside and not self._force:
            raise RefusedError("exists already; nothing was changed", path=self._url, hint="--force replaces it")

    def publish(self) -> tuple[ExportedFile, ...]:
        """Upload all files, complete them back to back, and return them under their remote names."""
        made = {os.path.relpath(f.path, self._directory.name): f for f in _files(self.path)}
        old = self._store.tree(self._name) if self._force else []
        put_files(self._store, {relative: file.path for relative, file in made.items()}, replace=self._force)
        self._store.remove_many([relative for relative in old if relative not in made])
        return tuple(ExportedFile(self._store.path(n), f.size_bytes) for n, f in sorted(made.items()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()


def _is_shard_file(output: str) -> bool:
    return os.path.splitext(output)[1] in {".ckpt", ".chkpt"}


def _files(target: str) -> tuple[ExportedFile, ...]:
    if not os.path.isdir(target):
        return (ExportedFile(target, os.stat(target).st_size),)
    paths = sorted(os.path.join(top, name) for top, _, names in os.walk(target) for name in names)
    return tuple(ExportedFile(path, os.stat(path).st_size) for path in paths)


def _export_checkpoint(
    version: Version,
    goal: Location,
    wish: Selection,
    *,
    force: bool,
    begin: float,
    reporter: Reporter,
) -> ExportResult:
    """Write one merged v4 shard: a file of that name, or a checkpoint_dir that ElasticDL finds."""
    if not wish.is_lossless:
        raise UsageError("a checkpoint is exported whole: no --table, --variable, --dtype or --dense-rows")
    target = goal.url
    if _is_shard_file(target):
        _check_place(target)
        with StagedOutput(target, is_directory=False, force=force) as staged:
            inner = staged.path + ".d"
            staged.also(inner)
            plan, settings = prepare_reshard(version, 1, output=inner, layout="elasticdl", reporter=reporter)
            result = execute_reshard(plan, settings, reporter=reporter)
            os.rename(result.shards[0].path, staged.path)
            staged.publish()
    else:
        plan, settings = prepare_reshard(version, 1, output=goal, layout="elasticdl", reporter=reporter)
        result = execute_reshard(plan, settings, reporter=reporter)
    files = (
        _files(target)
        if os.path.isfile(target)
        else tuple(ExportedFile(shard.path, shard.size_bytes) for shard in result.shards)
    )
    tables = {info for layout in plan.layouts for info in layout.ids_at}
    return ExportResult(
        version.ref,
        target,
        CHECKPOINT,
        files,
        sum(shard.variables for shard in result.shards),
        len(tables),
        result.rows,
        result.fingerprint,
        time.perf_counter() - begin,
        0,
        proved=True,
    )
