"""Seals: the checksums of a version's bytes, kept beside its metadata, with which a deep verify compares them.

`.edl-ckpt-0/meta-0/{version}.seal.json` (`sealed-{name}.json` for a version without a number) contains the version's
fingerprint and, for each shard, its size and the XXH3-128 of every chunk. Chunks begin where variables and tables
begin, and are at most 4 MiB long. Beyond a TiB they are twice as long for each doubling, and where there are hundreds
of thousands of them, small variables and tables share one: a seal never grows beyond what is read of our state. So a
mismatch names the damaged variable or table, even when the shard can no longer be parsed. edl-ckpt seals everything
that it writes; `verify --seal` seals the versions of other programs. The digest at the end covers the whole document:
every field, its place and its value, but not white space. `history` names the times when a person said `--force` over
an older seal. A seal detects damage, not malice: a person who can change a shard can change its seal too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, NoReturn

from edl_ckpt.core.base.errors import CorruptError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.model.seals import Chunk, Override, PackedChunks, Seal, SealedShard
from edl_ckpt.core.state.document import check_schema, schema_at_head
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.storage.inside import is_inside
from edl_ckpt.core.storage.interface import Store

SEAL_SCHEMA: Final = "edl-ckpt/seal/2"
_WITHOUT_DIGEST: Final = "edl-ckpt/seal/1"
_SUM: Final = "xxh3-128"
_COLUMNS: Final = 5
"""What a chunk has in a seal: its kind and name, where it begins and ends, and its checksum."""
_FIRST_FIELDS: Final = frozenset({"schema", "version", "fingerprint", "sealed", "origin", "checksum", "shards"})


def read_seal(store: Store, key: int | str, *, with_chunks: bool = True) -> Seal | None:
    """Return the seal of a version, None only when there is no such file.

    `key` is `Version.key`, and `with_chunks` is that of `parse_seal`.

    Raises CorruptError for a seal that is damaged or that is of another version, UnsupportedError for a schema that is
    newer than this program, RefusedError where our state is in a directory of others, and the errors of storage.
    """
    path = f"{store.location}/{seal_file(key)}"
    try:
        data = store.read_small(seal_file(key))
        if data is None and store.properties.rename and os.path.lexists(store.path(seal_file(key))):
            _damaged("not a regular file")
        seal = None if data is None else parse_seal(data, with_chunks=with_chunks)
        if seal is not None and seal.version != key:
            _damaged(f"it is the seal of version {seal.version}")
    except (CorruptError, UnsupportedError) as error:
        error.path = path
        raise
    except (UsageError, RefusedError) as error:
        if os.path.basename(error.path or "") != os.path.basename(path):  # a directory above it is not one that we made
            raise
        # a pipe, say
        raise CorruptError(f"damaged seal: {error.message}", code="checksum-mismatch", path=path) from None
    return seal


def seal_bytes(seal: Seal) -> bytes:
    """Return a seal as its file contains it; `parse_seal` is the inverse.

    It is put together shard by shard: as one document, the chunks of thousands of tables take ten times their bytes.
    """
    import xxhash

    document: dict[str, Any] = {
        "schema": SEAL_SCHEMA,
        "version": seal.version,
        "fingerprint": seal.fingerprint,
        "sealed": seal.sealed,
    }
    optional = {"origin": seal.origin, "run": seal.run, "history": [override._asdict() for override in seal.history]}
    document |= {key: value for key, value in optional.items() if value}
    document["checksum"] = _SUM
    digest = xxhash.xxh3_128(f'{_compact(document)[:-1]},"shards":['.encode("ascii"))
    out = BytesIO()
    out.write(_utf8(f'{_spaced(document)[:-1]}, "shards": ['))
    for number, shard in enumerate(seal.shards):
        rows = _rows(shard.chunks)
        head, compact = {"name": shard.name, "size_bytes": shard.size_bytes}, _compact(rows)
        digest.update(f'{"," if number else ""}{_compact(head)[:-1]},"chunks":{compact}}}'.encode("ascii"))
        out.write(_utf8(f'{", " if number else ""}{_spaced(head)[:-1]}, "chunks": '))
        out.write(_utf8(_respaced(compact, rows)))
        out.write(b"}")
    digest.update(b"]}")
    out.write(_utf8(f'], "digest": "{digest.hexdigest()}"}}\n'))
    return out.getvalue()


def _rows(chunks: Sequence[Chunk]) -> list[tuple[str, str, int, int, str]]:
    """Return chunks as the rows of a document."""
    if isinstance(chunks, PackedChunks):
        return list(chunks.rows())
    return [(kind, name, start, end, total) for kind, name, _, start, end, total in chunks]


def _respaced(compact: str, rows: Sequence[Sequence[object]]) -> str:
    """Return the rows of chunks as a seal's file has them, from the same as the digest covers them.

    Where no text in them has a comma or is escaped, every comma separates: they are not encoded twice.
    """
    if "\\" not in compact and compact.count(",") == max(_COLUMNS * len(rows) - 1, 0):
        return compact.replace(",", ", ")
    return _spaced(rows)


def _utf8(text: str) -> bytes:
    return name_bytes(text)


def _compact(document: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return JSON as a digest covers it: in ASCII, without blanks."""
    return json.dumps(document, separators=(",", ":"))


def _spaced(document: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return JSON as a seal's file has it."""
    return json.dumps(document, ensure_ascii=False)


def _document(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a seal's file; CorruptError for anything else, and for a key that is there twice.

    Raises UnsupportedError for a seal that a newer edl-ckpt wrote.
    """
    check_schema(schema_at_head(data), "")
    try:
        document = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _damaged(f"not a JSON document ({str(error).partition(':')[0]})")
    if not isinstance(document, dict):
        _damaged("not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _digest(document: Mapping[str, Any]) -> str:
    """Return the XXH3-128 of a seal's document without its digest: JSON in ASCII, without blanks, in its own order."""
    import xxhash

    rest = {key: value for key, value in document.items() if key != "digest"}
    return xxhash.xxh3_128_hexdigest(_compact(rest).encode("ascii"))


def _damaged(why: str) -> NoReturn:
    raise CorruptError(f"damaged seal: {why}", code="checksum-mismatch")


def parse_seal(data: bytes, *, with_chunks: bool = True) -> Seal:
    """Return a seal from its file. Without chunks it takes a third of the time, and the digest covers them too.

    Raises CorruptError when it is damaged, UnsupportedError when its schema is newer than this program.
    """
    document = _document(data)
    has_digest = _check_whole(document)
    with_chunks |= not has_digest
    if document.get("checksum") != _SUM:
        _damaged(f"the checksums are not {_SUM}")
    try:
        shards = tuple(
            SealedShard(str(s["name"]), int(s["size_bytes"]), tuple(number_chunks(s["chunks"]) if with_chunks else ()))
            for s in document["shards"]
        )
        seal = Seal(
            _key(document["version"]),
            str(document["fingerprint"]),
            shards,
            str(document["sealed"]),
            str(document.get("origin", "")),
            tuple(Override(**entry) for entry in document.get("history", ())),
            has_digest,
            str(document.get("run", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        _damaged(f"{type(error).__name__} {error}")
    if not all(is_inside(shard.name) for shard in shards):
        _damaged("it names a file outside of the version")
    for shard in shards if with_chunks else ():
        edges = [0, *(c.end for c in shard.chunks)]
        if [c.start for c in shard.chunks] != edges[:-1] or edges[-1] != shard.size_bytes:
            _damaged(f"the chunks of {shard.name} do not cover it")
    return seal


def _key(value: object) -> int | str:
    """Return the number of a sealed version, or its name; TypeError and ValueError for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        raise TypeError(f"version {value!r:.80}")
    return value


def _check_whole(document: Mapping[str, Any]) -> bool:
    """Compare a document with its digest; return False for the first schema, which has none."""
    schema = document.get("schema")
    check_schema(schema, "")
    if schema == _WITHOUT_DIGEST and document.keys() <= _FIRST_FIELDS:
        return False
    if schema != SEAL_SCHEMA:
        _damaged(f"not {SEAL_SCHEMA}")
    if list(document)[-1:] != ["digest"] or document["digest"] != _digest(document):
        _damaged("its content does not have its digest")
    return True


def number_chunks(rows: Iterable[Sequence[Any]]) -> Iterator[Chunk]:
    """Yield the chunks of a shard from their rows in a document; ValueError and TypeError for rows that are damaged."""
    last, number = ("", "", 0), 0
    for kind, name, start, end, total in rows:
        if not 0 <= int(start) <= int(end):
            raise ValueError(f"chunk from {start} to {end}")
        number = number + 1 if (kind, name) == last[:2] and start == last[2] else 0
        last = (kind, name, end)
        yield Chunk(str(kind), str(name), number, int(start), int(end), str(total))
