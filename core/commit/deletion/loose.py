"""Versions whose files lie side by side in a location, moved to the trash and back file by file.

The index goes first, and comes back last. So a reader never takes a part of the files for the whole. On the way out
the record of the deletion has the mark of each file, which a rename keeps. When the index is in the trash, the next
command moves the rest there too; a file that a job has written again stays. While the index is not there, nothing has
begun, or everything is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.sources.registry import completes
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.local import file_mark

Marks: TypeAlias = Mapping[str, str]
"""What tells the files of a version from others of their names, by name: those first that go out first."""


def marks_of(directory: Directory, names: Iterable[str]) -> Marks:
    """Return the files of a version that are there, with their marks."""
    states = {name: directory.stat(name) for name in sorted(names, key=lambda name: not completes(name))}
    return {name: file_mark(state) for name, state in states.items() if state is not None}


def move_out(root: Directory, trash: Directory, name: str, names: Sequence[str]) -> bool:
    """Move files of a version into a directory of an entry of the trash; False when none was there any more."""
    with trash.enter(name, make=True) as target:
        return _move(root, target, names, flush_after=1)


def move_back(trash: Directory, root: Directory, name: str, names: Sequence[str]) -> None:
    """Move the files of a version back, the index last. RefusedError when a name is taken."""
    with trash.enter(name) as source:
        _move(source, root, names[::-1], flush_after=len(names) - 1)
    trash.rmdir(name)


def _move(source: Directory, target: Directory, names: Sequence[str], flush_after: int) -> bool:
    moved = False
    for number, name in enumerate(names, 1):
        if source.stat(name) is not None:
            source.rename_new(name, target, name)
            moved = True
        if number == flush_after:  # a power cut keeps the order
            target.flush()
            source.flush()
    return moved


def finish_publishing(root: Directory, stage: Directory, name: str, marks: Marks) -> bool:
    """Move the rest of staged files to their places; False where a name is taken: then all of them are staged again."""
    try:
        if stage.is_directory(name):
            move_back(stage, root, name, list(marks))
    except RefusedError:
        move_out(root, stage, name, _those_of(root, marks))
    return is_there(root, marks)


def is_there(root: Directory, marks: Marks) -> bool:
    """Say whether the file that goes out first, and comes in last, is in a location."""
    return next(iter(marks), "") in _those_of(root, marks)


def _those_of(directory: Directory, marks: Marks) -> list[str]:
    """Return the files in a directory that have their marks; a job may have written others of their names."""
    present = marks_of(directory, marks)
    return [name for name, mark in marks.items() if present.get(name) == mark]


def finish_moves(root: Directory, trash: Directory, record: Mapping[str, Any]) -> None:
    """Move the rest of the versions whose index is in the trash by now."""
    for name, marks in recorded_marks(record).items():
        if trash.is_directory(name):
            with trash.enter(name) as inside:
                has_begun = inside.stat(next(iter(marks), name)) is not None
            if has_begun:
                move_out(root, trash, name, _those_of(root, marks))
            else:
                trash.rmdir(name)


def recorded_marks(record: Mapping[str, Any]) -> dict[str, Marks]:
    """Return the marks in a record of a deletion, by the names of the versions; only of files that can be theirs."""
    files = record.get("files")
    versions = files.items() if isinstance(files, dict) else ()
    return {name: dict(_own(name.removesuffix("index"), marks)) for name, marks in versions if isinstance(marks, dict)}


def _own(prefix: str, marks: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    return ((name, str(mark)) for name, mark in marks.items() if name.startswith(prefix) and "/" not in name)
