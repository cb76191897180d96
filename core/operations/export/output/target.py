"""The targets of exports: a local path, visible by one rename, a URL, visible after all was uploaded, or a stream.

A format may have a second output, a directory beside the first. It becomes visible first, because the other refers to
it.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, Self, TypeAlias, cast

from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.parallel import Meeting, impatient
from edl_ckpt.core.base.words import command
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.cluster.choice import not_shared
from edl_ckpt.core.commit.meeting import SharedDirectory, SharedPrefix
from edl_ckpt.core.commit.publish.file_upload import Ahead
from edl_ckpt.core.commit.publish.replaceable import check_names
from edl_ckpt.core.commit.publish.single_file import StagedOutput, sweep_work, work_name
from edl_ckpt.core.commit.publish.staged_objects import StagedObjects
from edl_ckpt.core.commit.sent_parts import SharedUpload, SharedUploads
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export.interface import ExportedFile, FormatTraits
from edl_ckpt.core.operations.export.output.places import OutputFile, flush_file
from edl_ckpt.core.operations.export.output.shared import NewPart, SentUpload, SharedPart, WrittenFile
from edl_ckpt.core.sources.registry import is_own_name, is_version_dir, version_named
from edl_ckpt.core.sources.side_files import unaccounted
from edl_ckpt.core.storage import Location, open_objects, open_store
from edl_ckpt.core.storage.directories import remove_tree
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import Flusher, check_space
from edl_ckpt.core.storage.inside import path_inside
from edl_ckpt.core.storage.interface import Properties, Sink, has_parts
from edl_ckpt.core.storage.local import is_there
from edl_ckpt.core.storage.streams import descriptor_of, is_stream, open_stream

NewFile = Callable[[str, int], OutputFile]
"""Makes a file of known size at a path of the output."""
DENSE_FILE: Final = "dense.safetensors"
"""The only file in the directory beside an output."""
_STAGED: Final = "staged"
"""Below the hidden prefix of an output: its files until they are proved."""
_CHUNK_BYTES: Final = 1 << 20
_DEPTH: Final = 8
"""No file of a version lies deeper in its directory."""
_OF_BUCKET: Final = 3
"""The parts of a URL up to its bucket: scheme, nothing, bucket."""


class ExportTarget(AbstractContextManager["ExportTarget"]):
    """An output that is being written; a context manager that removes everything unless it was published."""

    path: str
    """The path to write to; a directory exists already."""
    beside: str = ""
    """The directory beside it; '' when there is none."""

    def open_text(self) -> AbstractContextManager[IO[str]]:
        """Return the output as a new file of text."""
        return text_file(self.path)

    @abstractmethod
    def new_file(self, path: str, size_bytes: int) -> OutputFile:
        """Make a file of known size at a path of the output."""

    @contextmanager
    def opened(self, sizes: Mapping[str, int]) -> Iterator[OpenedFiles]:
        """Yield the open files of a directory, by their names in it; NoSpaceError where there is no room for them.

        What was written can be read at `place` of them once `all_written` was called; it is safe when the block ends.
        """
        check_space(self.path, sum(sizes.values()))
        paths = {path_inside(self.path, name): size for name, size in sizes.items()}
        for path in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        outputs = [self.new_file(path, size) for path, size in paths.items()]
        with ExitStack() as opening:
            files = [opening.enter_context(output) for output in outputs]
            durable = [file for output, file in zip(outputs, files, strict=True) if output.durable]
            flusher = opening.enter_context(Flusher(durable))
            room = Location(os.path.dirname(self.path) or ".")
            yield OpenedFiles(
                files,
                Location(self.path),
                room,
                open_store(room).properties,
                flusher.all_written,
                flusher.others_write,
            )

    @abstractmethod
    def publish(self) -> tuple[ExportedFile, ...]:
        """Make everything visible; return the files under their final names."""


class OpenedFiles(NamedTuple):
    """New files of a directory, in which each byte is written once, at any offset."""

    sinks: Sequence[Sink]
    place: Location
    """The directory, where the proof reads it."""
    room: Location
    """Where temporary files go."""
    properties: Properties
    """Those of the storage that has the new files."""
    all_written: Callable[[], None]
    """Called when every byte was written."""
    others_write: Callable[[], None] = lambda: None
    """Called when other processes begin to write, too."""


def open_target(
    goal: Location, traits: FormatTraits, *, is_directory: bool, force: bool, beside: Location | None = None
) -> ExportTarget:
    """Return the target for a path or URL, perhaps with a directory beside it.

    Raises RefusedError when it lies among checkpoints, or is there without `force`, or when what is beside it is not of
    an export; UsageError for a stream in the place of several files.
    """
    path, is_file = goal.local_path, not is_directory and beside is None
    if path is not None and (is_stream(path) if is_file else descriptor_of(path) is not None):
        return StreamTarget(path, traits, is_file=is_file)
    first = _place(goal, is_directory=is_directory, force=force)
    if beside is None:
        return first
    _check_beside(beside)
    return PairTarget(first, _place(beside, is_directory=True, force=force))


def check_output(goal: Location, traits: FormatTraits, *, is_directory: bool, force: bool) -> None:
    """Raise what `open_target` and its target raise before anything is written."""
    target = open_target(goal, traits, is_directory=is_directory, force=force)
    if isinstance(target, LocalTarget):
        target.staged.check()


def _place(goal: Location, *, is_directory: bool, force: bool) -> LocalTarget | UploadTarget:
    if force:
        _check_is_no_version(goal)
    if goal.local_path is None:
        return UploadTarget(goal, is_directory=is_directory, force=force)
    return LocalTarget(os.path.normpath(goal.local_path), is_directory=is_directory, force=force)


def _check_is_no_version(goal: Location) -> None:
    """Raise RefusedError for a version of a location, and for a file in its directory that belongs to it.

    No option replaces them by an export. A checkpoint that is a file itself is replaced: the user has named it.
    """
    place = goal.url.rstrip("/") if goal.local_path is None else os.path.abspath(goal.local_path)
    names = place.split("/")
    least = 1 if goal.local_path is not None else _OF_BUCKET
    for depth in range(1, min(len(names) - least, _DEPTH) + 1):
        name, inside = names[-depth], "/".join(names[len(names) - depth + 1 :])
        version = _version_at(goal.with_url("/".join(names[:-depth]) or "/"), name)
        if version is None or version.is_file:
            continue
        if not inside:
            where = command("prune", str(goal.split()[0]), "--delete", "VERSION")
            raise RefusedError(
                "is a version of a location; nothing was changed",
                path=goal.url,
                hint=f"choose another OUTPUT; to delete it: {where}",
            )
        names_of_all = {version.name_of(file.path) for file in version.files}
        claimed = names_of_all - {*version.unclaimed, *version.extra}
        if inside in names_of_all and not unaccounted(version.layout.system, [inside], claimed):
            words = f"is a file of {version.ref}; nothing was changed"
            raise RefusedError(words, path=goal.url, hint="choose another OUTPUT")


def _version_at(folder: Location, name: str) -> Version | None:
    """Return the version that a name is in a location; None for any other."""
    listed: Sequence[Version] = ()
    if version_named(name) is not None:
        with suppress(NotFoundError):
            listed = list_versions(folder).versions
    return next((version for version in listed if version.path.rpartition("/")[2] == name), None)


@contextmanager
def text_file(path: str) -> Iterator[IO[str]]:
    """Open a new file of text, and flush it to the disk at the end."""
    with storage_errors(path), open(path, "x", encoding="utf-8", newline="\n") as file:
        yield file
        flush_file(file)


class LocalTarget(ExportTarget):
    """A local file or directory, staged under a hidden name beside its place."""

    def __init__(self, target: str, *, is_directory: bool, force: bool) -> None:
        _check_place(target)
        self.staged = StagedOutput(target, is_directory=is_directory, force=force)
        self.path = self.staged.path
        self._work = ""

    def new_file(self, path: str, size_bytes: int) -> OutputFile:
        """Make a file that is flushed to the disk."""
        return OutputFile(path, size_bytes)

    def meet(self) -> SharedDirectory:
        """Return a hidden directory next to the staged file, in which other processes write."""
        self._work = self._work or self.staged.share()
        return SharedDirectory(self._work)

    def part(self, path: str) -> SharedPart:  # noqa: ARG002 - it gets its name at the end
        """Return the hidden directory."""
        return SharedPart(self.meet().path)

    def take(self, path: str, written: WrittenFile) -> None:
        """Give a file its name."""
        with storage_errors(path):
            os.rename(os.path.join(self._work, written.name), path)

    def publish(self) -> tuple[ExportedFile, ...]:
        """Rename the output to its place; return its files."""
        self.staged.publish()
        return files_of(self.staged.target)

    def __enter__(self) -> Self:
        self.staged.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._work:
            ended = f"{self._work}.ended"  # from now on no late task makes a file there
            with suppress(OSError):
                os.rename(self._work, ended)
            remove_tree(ended)
        self.staged.__exit__()


class UploadTarget(ExportTarget):
    """A remote file or directory: written to the local disk, uploaded from there, and made visible at once.

    Files in which each byte is written once need no local disk where the storage takes parts: `opened` stages them.
    Raises RefusedError for a target that exists, or that ElasticDL's scan would meet.
    """

    def __init__(self, goal: Location, *, is_directory: bool, force: bool) -> None:
        folder, self._name = goal.split()
        self._goal, self._store, self._force = goal, open_objects(folder), force
        self._is_directory = is_directory
        self._staged: StagedObjects | None = None
        beside, url = self._store.names(""), goal.url.rstrip("/")
        if any(map(is_own_name, (url.split("/")[-2], *beside))):
            raise _among_checkpoints(url)
        if self._name in beside and not force:
            raise RefusedError("exists already; nothing was changed", path=url, hint="--force replaces it")

    def new_file(self, path: str, size_bytes: int) -> OutputFile:
        """Make a file on the local disk whose parts are uploaded as soon as they are final."""
        file = OutputFile(path, size_bytes, durable=False)
        file.final = self._ahead.begin(os.path.relpath(path, self._directory.name), path, size_bytes)
        return file

    @property
    def _prefix(self) -> SharedPrefix:
        return SharedPrefix(self._store.location, self._mark.partition("/")[0])

    def meet(self) -> SharedPrefix:
        """Return a hidden prefix next to the objects; UnsupportedError where those have no parts."""
        if not has_parts(self._store):
            raise not_shared(self._goal.url)
        sweep_work(self._store, self._prefix.relative)
        return self._prefix

    def part(self, path: str) -> SentUpload:
        """Begin an upload."""
        relative, store = os.path.relpath(path, self._directory.name), self._store
        item = self._ahead.by_others(relative)
        upload = SharedUpload(relative, item.size_bytes, item.begin())
        return SentUpload(SharedUploads(store.location, {0: upload}, store.properties.part_bytes))

    def take(self, path: str, written: WrittenFile) -> None:
        """Note the parts that were sent."""
        self._ahead.others[os.path.relpath(path, self._directory.name)].join(written.sent)

    @contextmanager
    def opened(self, sizes: Mapping[str, int]) -> Iterator[OpenedFiles]:
        """Yield objects below a hidden prefix; files of the local disk where the storage takes no parts."""
        if not has_parts(self._store):
            with super().opened(sizes) as files:
                yield files
            return
        hidden = f"{self._prefix.relative}/{_STAGED}"
        self._staged = staged = StagedObjects(self._store, hidden, sizes)
        staged.begin()
        room = Location(tempfile.gettempdir())
        yield OpenedFiles(staged.objects, staged.place, room, self._store.properties, staged.complete)

    def shared(self) -> StagedObjects:
        """Return the objects that `opened` has begun, whose parts other processes send."""
        assert self._staged is not None  # noqa: S101 - the storage has parts, as whoever asks has looked
        return self._staged

    def publish(self) -> tuple[ExportedFile, ...]:
        """Upload all files, complete them back to back, and return them under their remote names."""
        if self._staged is not None:
            self._ahead.others |= self._staged.under(self._name)
            self._staged.copy()
        here = files_of(self.path) if os.path.exists(self.path) else ()
        local = {os.path.relpath(file.path, self._directory.name): file.path for file in here}
        sizes = {name: item.size_bytes for name, item in self._ahead.others.items()}
        sizes |= {os.path.relpath(file.path, self._directory.name): file.size_bytes for file in here}
        old = self._store.tree(self._name) if self._force else []
        check_names(old, sizes, self._goal.url)
        self._ahead.publish(local, replace=self._force)
        self._store.remove_many([name for name in old if name not in sizes])
        return tuple(ExportedFile(self._store.path(name), size) for name, size in sorted(sizes.items()))

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="edl-ckpt-")
        self.path = path_inside(self._directory.name, self._name)
        self._ahead = Ahead(self._store)
        self._mark = f"{work_name(self._name)}/uploads"
        with suppress(EdlCkptError):  # only so that `recover` knows the uploads of a killed process
            self._store.write_small(self._mark, b"")
        if self._is_directory:
            os.mkdir(self.path)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with impatient(error):
            self._ahead.close()
            if self._staged is not None:
                self._staged.close()
            with suppress(EdlCkptError):
                self._store.remove(self._mark)
        self._directory.cleanup()


class PairTarget(ExportTarget):
    """Two outputs side by side: a file or directory, and a directory that it refers to."""

    def __init__(self, first: LocalTarget | UploadTarget, second: LocalTarget | UploadTarget) -> None:
        self._first, self._second = first, second
        self._entered = ExitStack()

    def new_file(self, path: str, size_bytes: int) -> OutputFile:
        """Make a file of the first output, or of the one beside it."""
        return self._of(path).new_file(path, size_bytes)

    def meet(self) -> Meeting:
        """Return that of the first output."""
        return self._first.meet()

    def part(self, path: str) -> NewPart:
        """Return where a file of either output is written."""
        return self._of(path).part(path)

    def take(self, path: str, written: WrittenFile) -> None:
        """Take over a file of either output."""
        self._of(path).take(path, written)

    def _of(self, path: str) -> LocalTarget | UploadTarget:
        """Return the output that a path belongs to."""
        return self._second if path.startswith(os.path.join(self.beside, "")) else self._first

    def publish(self) -> tuple[ExportedFile, ...]:
        """Make both visible; return their files, those of the first one first."""
        try:
            others = self._second.publish()
            if isinstance(self._first, UploadTarget):
                COMMIT.more()  # the larger output, whose upload takes time
            return self._first.publish() + others
        except EdlCkptError:
            if isinstance(self._first, LocalTarget) and isinstance(self._second, LocalTarget):
                self._second.staged.retract(but=self._first.staged)
            raise

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            self.path = entering.enter_context(self._first).path
            self.beside = entering.enter_context(self._second).path
            self._entered = entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)


class StreamTarget(ExportTarget):
    """A stream as a target; what was written into it cannot be taken back.

    Text goes out as it is made. Formats of arrays have their fingerprint in front, and are read back for the proof, so
    they are written to the local disk first. Nothing has to seek in the stream.
    """

    def __init__(self, name: str, traits: FormatTraits, *, is_file: bool) -> None:
        if not is_file:
            raise UsageError(
                f"this export as {traits.name} is several files; a stream takes one",
                path=name,
                hint="give a directory as OUTPUT",
            )
        self._name = name
        self._is_text = traits.is_text
        self._size = 0

    def __enter__(self) -> Self:
        self._stream = open_stream(self._name)
        if self._stream.isatty() and not self._is_text:
            self._stream.close()
            raise RefusedError(
                "is a terminal, and this format is not text", path=self._name, hint="give a file, or a pipe behind it"
            )
        self._directory = tempfile.TemporaryDirectory(prefix="edl-ckpt-")
        self.path = os.path.join(self._directory.name, "output")
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()
        with _sent(self._name):
            self._stream.close()

    @contextmanager
    def open_text(self) -> Iterator[IO[str]]:
        """Return a file of text whose lines go into the stream."""
        counted = _CountedStream(self._name, self._stream)
        with io.TextIOWrapper(cast("IO[bytes]", counted), encoding="utf-8", newline="\n") as text:
            yield text
        self._size = counted.size

    def new_file(self, path: str, size_bytes: int) -> OutputFile:
        """Make a file on the local disk, which is sent at the end."""
        return OutputFile(path, size_bytes, durable=False)

    def publish(self) -> tuple[ExportedFile, ...]:
        """Send what was written to the local disk, if it was; return the stream with its bytes."""
        if os.path.exists(self.path):
            counted = _CountedStream(self._name, self._stream)
            with open(self.path, "rb") as file:
                shutil.copyfileobj(file, cast("IO[bytes]", counted), _CHUNK_BYTES)
            self._size = counted.size
        with _sent(self._name):
            self._stream.flush()
        with COMMIT:  # not around the flush, which may wait for the reader
            pass
        return (ExportedFile(self._name, self._size),)


class _CountedStream(io.BufferedIOBase):
    """Counts the bytes that go into a stream, which it leaves open."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self._name, self._stream = name, stream
        self.size = 0

    def writable(self) -> bool:
        """Return True: `TextIOWrapper` asks."""
        return True

    def write(self, data: Any) -> int:
        """Write all of some bytes."""
        with _sent(self._name):
            done = self._stream.write(data)
        self.size += done
        return done


@contextmanager
def _sent(name: str) -> Iterator[None]:
    """Translate errors of writing into ours; that the reader has gone is none, and ends the program quietly.

    Only of writing: storage that hangs up while it is read is an error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        with storage_errors(name):
            raise error from None


PartsTarget: TypeAlias = LocalTarget | UploadTarget | PairTarget
"""A target whose files other processes write."""


def _check_beside(place: Location) -> None:
    """Raise RefusedError for a directory beside an output that has anything else than what an export writes there.

    `force` replaces it, and its name was not chosen by the user.
    """
    folder, name = place.split()
    if place.local_path is not None:
        path = os.path.join(folder.url, name)
        if not is_there(path):
            return
        with storage_errors(path):
            names = os.listdir(path)
    else:
        names = [each.removeprefix(f"{name}/") for each in open_objects(folder).tree(name)]
    if set(names) - {DENSE_FILE}:
        raise RefusedError(
            f"the dense variables go there, and it contains {min(set(names) - {DENSE_FILE})!r}; nothing was changed",
            path=place.url,
            hint="choose another name for OUTPUT",
        )


def files_of(path: str) -> tuple[ExportedFile, ...]:
    """Return a file, or all files below a directory."""
    if not os.path.isdir(path):
        return (ExportedFile(path, os.stat(path).st_size),)
    paths = sorted(os.path.join(top, name) for top, _, names in os.walk(path) for name in names)
    return tuple(ExportedFile(each, os.stat(each).st_size) for each in paths)


def _check_place(target: str) -> None:
    """Raise RefusedError for a target in a checkpoint_dir or in the directory of one of its versions.

    Names tell; nothing in these directories is opened, and the directory above need not be readable.
    """
    folder = os.path.dirname(target) or "."
    with storage_errors(folder):
        names = os.listdir(folder)
    inside_version = is_version_dir(os.path.basename(os.path.realpath(folder)), names)
    if inside_version or any(_is_version(folder, name) for name in names):
        raise _among_checkpoints(target)


def _is_version(folder: str, name: str) -> bool:
    """Say whether an entry of a directory is a version; one that cannot be looked at may be one."""
    path = os.path.join(folder, name)
    named = version_named(name)
    if named is None or named.number is None or named.is_file:
        return named is not None and named.is_file and not named.layout.needs_shards
    try:
        return stat.S_ISDIR(os.stat(path).st_mode) and is_version_dir(name, os.listdir(path))
    except OSError:
        return True


def _among_checkpoints(path: str) -> RefusedError:
    return RefusedError(
        "is among checkpoints: ElasticDL's scan would fail on it", path=path, hint="export to another location"
    )
