"""What the storage of a location can do, found out by trying in a staging directory; `doctor` shows it.

It takes no lock of the location: every other command leaves a directory alone whose owner is alive, and ElasticDL's
scan never looks there.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.commit.publish.staging import Staging
from edl_ckpt.core.state.paths import STAGE_DIR
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.facts import Fact, Verdict, judged, yes
from edl_ckpt.core.storage.files import allocate
from edl_ckpt.core.storage.interface import ObjectStore
from edl_ckpt.core.storage.local import LocalStore

_PAGE: Final = 4096
_SLOW_FLUSH_SECONDS: Final = 0.2


def probe_disk(store: LocalStore) -> list[Fact]:
    """Return what the file system of a location can do; EdlCkptError where nothing can be written there."""
    with Staging(store.path(""), "doctor") as stage:
        return [fact for probe in _PROBES for fact in probe(stage.place)]


def _renames(place: Directory) -> Iterator[Fact]:
    for name in ("one", "two"):
        os.mkdir(name, dir_fd=place.fd)
    place.rename("one", place, "three")
    renamed = place.stat("three") is not None
    yield yes("rename", "no command can publish a version", able=renamed, verdict=Verdict.BROKEN)
    kept = False
    try:
        place.rename_new("three", place, "two")
    except EdlCkptError:
        kept = place.stat("three") is not None
    yield yes("rename without replacing", "two commands could publish the same version at once", able=kept)
    swapped = place.exchange("two", place, "three")
    why = "a reshard in place moves the old version away before the new one is there: for an instant there is none"
    yield yes("exchange of directories", why, able=swapped)


def _locks(place: Directory) -> Iterator[Fact]:
    first, second = (place.open_file("lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    works, why = False, "the lock of a location is only a file: a stale lock expires by its age"
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        works = True
    except OSError as error:
        why = f"{os.strerror(error.errno or 0)}: {why}"
    finally:
        os.close(first)
        os.close(second)
    yield yes("locks (flock)", why, able=works)


def _flushes(place: Directory) -> Iterator[Fact]:
    start = time.monotonic()
    try:
        place.write_new("flushed", b"x" * _PAGE)  # flushes the file
        place.flush()
    except EdlCkptError as error:
        yield Fact(
            "flush (fsync)", error.message, Verdict.BROKEN, "a version that was written may be lost with the power"
        )
        return
    seconds = time.monotonic() - start
    shown = f"yes, {seconds * 1000:.1f} ms"
    why = "every file of ours is flushed: metadata and tags take as long"
    yield judged("flush (fsync)", shown, why, weak=seconds > _SLOW_FLUSH_SECONDS)


def _allocates(place: Directory) -> Iterator[Fact]:
    file = place.open_file("allocated", os.O_RDWR | os.O_CREAT)
    try:
        allocate(file, 16 * _PAGE)
        reserved = os.fstat(file).st_blocks * 512 >= 16 * _PAGE
    except EdlCkptError:
        reserved = False
    finally:
        os.close(file)
    why = "a full disk shows in the middle of a command and not at its begin"
    yield yes("reserved space (fallocate)", why, able=reserved)


def _names(place: Directory) -> Iterator[Fact]:
    place.write_new("Case", b"")
    same = place.stat("case") is not None
    why = "arrays of an export to .npy whose names differ in case only would be one file"
    yield judged("case of names", "ignored" if same else "kept apart", why, weak=same)


_PROBES: Final[tuple[Callable[[Directory], Iterator[Fact]], ...]] = (_renames, _locks, _flushes, _allocates, _names)


def probe_objects(store: ObjectStore) -> list[Fact]:
    """Return what an object storage can do with small objects in a directory of ours, which are removed again."""
    below = f"{STAGE_DIR}/{new_id()}"
    one, two = f"{below}/one", f"{below}/two"
    facts: list[Fact] = []
    try:
        start = time.monotonic()
        store.write_small(one, b"one")
        facts.append(Fact("write", f"yes, {(time.monotonic() - start) * 1000:.0f} ms"))
        read = store.read_small(one) == b"one"
        facts.append(_needed("reads see earlier writes", "metadata and locks rely on it", able=read))
        store.write_small(two, b"two")
        listed = set(store.names(below)) == {"one", "two"}
        facts.append(_needed("listings see earlier writes", "the lock relies on it", able=listed))
        facts += store.tried(one)
        failed = store.remove_each([one, two])
        facts.append(_needed("delete many", "; ".join(e.message for e in failed.values()), able=not failed))
        gone = not store.names(below)
        facts.append(_needed("listings see earlier deletions", "the lock relies on it", able=gone))
    finally:
        for name in (one, two):
            store.remove(name)
    return facts


def _needed(name: str, why: str, *, able: bool) -> Fact:
    return yes(name, why, able=able, verdict=Verdict.BROKEN)
