"""Marks of uploads that no journal lists yet: so that whoever comes after a killed command can abort them.

A journal lists uploads by their ids, so it is written after they have begun. A repair has no journal at all. Until then
a mark in the staging area has their names and their owner. An upload is of the mark's owner when it has one of the
names and began after the mark, as services round to seconds: a job that saves the same shard would have begun it then
too, while the owner had the lock of the location.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.state.owner import is_me, is_presumed_dead
from edl_ckpt.core.state.paths import STAGE_DIR
from edl_ckpt.core.state.signature import describe
from edl_ckpt.core.storage.interface import ObjectStore

MARK: Final = "uploads.json"
_SCHEMA: Final = "edl-ckpt/uploads/1"


@contextmanager
def marked_uploads(store: ObjectStore, names: Sequence[str], purpose: str) -> Iterator[None]:
    """Leave a mark of uploads, by their paths below the location, while the block runs."""
    relative = f"{STAGE_DIR}/{new_id()}/{MARK}"
    document = {"schema": _SCHEMA, "owner": describe(purpose), "names": list(names)}
    store.write_small(relative, json.dumps(document).encode())
    try:
        yield
    finally:
        with suppress(EdlCkptError):
            store.remove(relative)


def settle_marked(store: ObjectStore, relative: str, *, exclusive: bool) -> list[str]:
    """Abort the uploads of a mark whose owner is dead, and remove it; return what was done, in words.

    With an `exclusive` lock, which the caller holds, every owner is dead. A damaged mark is removed.
    """
    data, found = store.read_small(relative), store.stat(relative)
    if data is None or found is None:
        return []
    try:
        document = parse_document(data, store.path(relative))
    except EdlCkptError:
        document = {}
    owner, names = document.get("owner"), document.get("names")
    owner = owner if isinstance(owner, dict) else {}
    if not exclusive and not is_me(owner) and not is_presumed_dead(owner, found.age_seconds):
        return []
    done = [
        f"aborted an upload of {each.relative} that a killed command had left"
        for each in store.open_uploads()
        if each.relative in (names if isinstance(names, list) else ())
        and each.age_seconds <= found.age_seconds + 1
        and store.abort_upload(each.relative, each.upload_id)
    ]
    store.remove(relative)
    return done
