"""The journal of a commit: a small file in its staging directory that says how to finish it, undo it or resume it.

A commit that replaces a version takes several steps, and so does every commit on storage without rename. Its journal
lists the old files and the new ones, so that the next holder of the lock can finish it or roll it back. The journal of
a resumable commit (a copy) also names its source and the shards that are finished. There is one format for all of
them; a local commit needs no uploads, and a remote one no inode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from edl_ckpt.core.base.words import size
from edl_ckpt.core.model.versions import UNNUMBERED
from edl_ckpt.core.sources.registry import directory_named, number_named
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document
from edl_ckpt.core.state.paths import JOURNAL
from edl_ckpt.core.storage.inside import is_inside

Note = list[str]
"""What a writer wants to know of a finished shard when it resumes: the checksums of its chunks."""
JOURNAL_SCHEMA: Final = "edl-ckpt/journal/1"
DELETIONS_SCHEMA: Final = "edl-ckpt/deletions/1"
_KEYS: Final = {"sizes": "new"}
"""The fields that have another name in the file."""
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int,
    "str": str,
    "bool": bool,
    "tuple[str, ...]": lambda names: tuple(map(str, names)),
    "Mapping[str, Any]": dict,
    "Mapping[str, Any] | None": lambda value: None if value is None else dict(value),
    "Mapping[str, int]": lambda sizes: {str(name): int(size) for name, size in sizes.items()},
    "Mapping[str, str]": lambda texts: {str(name): str(text) for name, text in texts.items()},
    "Mapping[str, Note]": lambda notes: {str(name): list(map(str, note)) for name, note in notes.items()},
}
"""What reads a field of each type."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What a commit writes, what it replaces, and how far it is. Files are named by their names in `directory`."""

    version: int
    directory: str
    """The name of the version's directory in the location."""
    owner: Mapping[str, Any] = field(default_factory=dict)
    """The process at work, on storage where `owner.json` cannot be locked."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The new shards and their sizes in bytes."""
    source: str = ""
    """What the shards are made from (`Resume.source`); '' for a commit that cannot be resumed."""
    finished: Mapping[str, Note] = field(default_factory=dict)
    """The shards that are written to the last byte, with the writer's notes."""
    uploads: Mapping[str, str] = field(default_factory=dict)
    """The ids of open uploads."""
    write_ids: Mapping[str, str] = field(default_factory=dict)
    """What marks an object as written by this commit; '' where the storage cannot keep such a mark."""
    replaces: bool = True
    """False for a new version on a disk, which is undone unless it is visible."""
    old: tuple[str, ...] = ()
    """The shards that are replaced; nothing for a new version."""
    markers: tuple[str, ...] = ()
    """The placeholder objects that make the entry count invalid during the swap."""
    seal: Mapping[str, Any] | None = None
    """The seal of the new shards once they are proved: from then on the commit is finished, never rolled back."""
    deletes: tuple[str, ...] = ()
    """The files of a version that is being deleted, in the order of their removal; then nothing else is set."""
    metadata: str = ""
    """A digest of the metadata of a version that is being deleted."""
    loose: bool = False
    """True when its files lie in the location itself, and begin with the name of the directory and a dot."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """What tells new files that lie in the location itself from others, by name; the last one that appears first."""
    inode: int = 0
    """What tells the new local directory from the old one."""
    tree: str = ""
    """A digest of the old local directory: one that has changed since goes to the trash, and is not removed."""
    keep_old: bool = False
    """True when the old shards go to the trash."""
    work: str = ""
    """What an interrupted move was for: 'reshard', 'import'; '' for a commit."""
    trash: str = ""
    """The deletion in the trash that the new directory comes from, and goes back to; '' for one that was written."""

    @property
    def key(self) -> int | str:
        """Return the key of the version: its number, or the name of its directory where that has none."""
        return self.directory if self.version == UNNUMBERED else self.version

    def in_words(self, article: str = "an") -> str:
        """Return an interrupted copy or move in words, a move with the room that it takes.

        >>> Journal(7, "version_7", source="0a").in_words(), Journal(7, "v", sizes={"a": 4096}, work="edit").in_words()
        ('an interrupted copy of version 7', 'an interrupted edit of version 7 (4.0 KiB)')
        """
        room = f" ({size(sum(self.sizes.values()))})" if self.work else ""
        return f"{article} interrupted {self.work or 'copy'} of version {self.key}{room}"

    def path(self, name: str) -> str:
        """Return the path of a file below the location."""
        return name if self.loose else f"{self.directory}/{name}"

    def to_bytes(self) -> bytes:
        """Return the journal as its file has it; `parse_journal` is the other way."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        document = {_KEYS.get(name, name): dict(v) if isinstance(v, Mapping) else v for name, v in values}
        return json.dumps({"schema": JOURNAL_SCHEMA, **document}).encode()


def parse_journal(data: bytes, path: str = JOURNAL) -> Journal:
    """Return a journal from its file; ValueError when it is damaged, UnsupportedError when a newer edl-ckpt wrote it.

    It must name a directory of its version, and files in it: no journal makes us touch another place.
    Journals of local commits once had `target` and `old_names` for `directory` and `old`.
    """
    return _journal(parse_document(data, path, limit=MAX_SUMS_BYTES))


def _journal(document: Mapping[str, Any]) -> Journal:
    try:
        known = {"directory": document.get("target"), "old": document.get("old_names", ()), **document}
        keys = ((field, _KEYS.get(field.name, field.name)) for field in fields(Journal))
        journal = Journal(**{f.name: _READ[str(f.type)](known[key]) for f, key in keys if key in known})
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"damaged journal: {type(error).__name__} {error}") from None
    number = _number_of_loose(journal.directory) if journal.loose else directory_named(journal.directory)
    if journal.version == UNNUMBERED:
        _check_named(journal)
    elif number != journal.version:
        raise ValueError(f"damaged journal: {journal.directory!r} is not a directory of version {journal.version}")
    named = (*journal.sizes, *journal.finished, *journal.uploads, *journal.write_ids, *journal.old, *journal.markers)
    named = (*named, *journal.deletes, *journal.marks, *filter(None, [journal.trash]))
    if not all(is_inside(name) and (not journal.loose or _is_of_loose(name, journal.directory)) for name in named):
        raise ValueError("damaged journal: it names a file outside of the version")
    return journal


def _number_of_loose(name: str) -> int | None:
    """Return the number of a version that is no directory: what its files begin with, or the one file."""
    number = number_named(f"{name}.index")
    return number_named(name) if number is None else number


def _is_of_loose(name: str, loose: str) -> bool:
    """Say whether a file belongs to a version that is no directory."""
    return "/" not in name and (name == loose or name.startswith(f"{loose}."))


def _check_named(journal: Journal) -> None:
    """Raise ValueError unless the journal of a version without a number is one of a new copy: nothing else has such."""
    name = journal.directory
    is_new = not (journal.old or journal.deletes or journal.markers or journal.trash or journal.keep_old)
    if not is_new or "/" in name or name.startswith(".") or not is_inside(name):
        raise ValueError(f"damaged journal: {name!r} is no new version")


def deletions_bytes(owner: Mapping[str, Any], deletions: Iterable[Journal]) -> bytes:
    """Return one journal of versions that are deleted together; `parse_journals` is the inverse."""
    rows = [
        {name: getattr(each, name) for name in ("version", "directory", "deletes", "metadata", "loose")}
        for each in deletions
    ]
    return json.dumps({"schema": DELETIONS_SCHEMA, "owner": dict(owner), "deletions": rows}).encode()


def parse_journals(data: bytes, path: str = JOURNAL) -> list[Journal]:
    """Return the journals in a file: one, or one for each version that is being deleted; errors as `parse_journal`."""
    document = parse_document(data, path, limit=MAX_SUMS_BYTES)
    if document.get("schema") != DELETIONS_SCHEMA:
        return [_journal(document)]
    rows = document.get("deletions")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("damaged journal: no list of deletions")
    owner = document.get("owner", {})
    return [_journal({**row, "owner": owner}) for row in rows]
