"""Seals: the checksums of a version's bytes, kept beside its metadata, with which a deep verify compares them.

`.edl-ckpt-0/meta-0/{version}.seal.json` contains the version's fingerprint and, for each shard, its size and the
XXH3-128 of every chunk. Chunks begin where variables and tables begin, and are at most 4 MiB long. Beyond a TiB they
are twice as long for each doubling, and where there are hundreds of thousands of them, small variables and tables share
one: a seal never grows beyond what is read of our state. So a mismatch names the damaged variable or table, even when
the shard can no longer be parsed. edl-ckpt seals everything that it writes; `verify --seal` seals the versions of other
programs. The digest at the end covers the whole document: every field, its place and its value, but not white space.
`history` names the times when a person said `--force` over an older seal. A seal detects damage, not malice: a person
who can change a shard can change its seal too.

The one reader of JSON in files of our state, which other people may have written or damaged.

A document names its schema, such as `edl-ckpt/seal/2`. One of a higher number than this program knows was written by a
newer edl-ckpt. It is neither damaged nor ours to change, so every reader ends with UnsupportedError.

What it returns is bounded: its bytes and its depth, and its numbers are finite. So nothing that is done with a document
later recurses without end or takes minutes, and a document that is read can always be written again.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from itertools import chain, compress
from typing import Any, Final, NoReturn

from edl_ckpt.core.base.errors import CorruptError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.model.versions import Chunk, Override, Seal, SealedShard
from edl_ckpt.core.state.paths import is_inside, seal_file
from edl_ckpt.core.storage.interface import Store

MAX_BYTES: Final = 1 << 22
"""No file of our state is larger, except those that list the checksums of shards."""
MAX_SUMS_BYTES: Final = 1 << 26
"""The bound for seals and journals: 90 bytes for each chunk of a version, of which there are about 300,000 at most."""
MAX_DEPTH: Final = 32
MAX_VALUE_DEPTH: Final = 24
"""A value that a user gives is in a document, so it may be less deep."""
_NESTED: Final = frozenset({dict, list})
NEWEST: Final[Mapping[str, int]] = {"seal": 2, "shard": 2}
"""The number of the newest schema that this program writes, of each kind that is no longer at 1."""
_SCHEMA = re.compile(r"edl-ckpt/([a-z-]{1,40})/([1-9][0-9]{0,8})", re.ASCII)
_HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*"([!#-~]{1,60})"')
"""The begin of each document that we write. One of a newer schema may be beyond our bounds, or no JSON."""


def schema_at_head(data: bytes | None) -> str:
    """Return the schema that a file of our state begins with, '' when it begins otherwise or is gone."""
    head = _HEAD.match(data or b"")
    return head[1].decode("ascii") if head else ""


def is_newer(schema: object) -> bool:
    """Say whether a schema is one of ours, of a higher number than this program knows."""
    found = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    return found is not None and int(found[2]) > NEWEST.get(found[1], 1)


def check_schema(schema: object, path: str) -> None:
    """Raise UnsupportedError for the schema of a document that a newer edl-ckpt wrote; anything else passes."""
    if is_newer(schema):
        hint = "use the edl-ckpt that wrote it, or a later one; if there is none, the file is damaged: move it away"
        raise UnsupportedError(f"written by a newer edl-ckpt (schema {schema}); upgrade", path=path, hint=hint)


def parse_document(data: bytes, path: str, *, limit: int = MAX_BYTES, foreign: bool = False) -> dict[str, Any]:
    """Return a JSON object; UsageError when it is none, or is beyond a bound. `path` is for the message.

    Raises UnsupportedError for a document that a newer edl-ckpt wrote.
    In a `foreign` document, which Python's own writer may have made, numbers that are not finite become their names.

    >>> parse_document(b'{"version": 7}', "x.json")
    {'version': 7}
    """
    check_schema(schema_at_head(data), path)
    if len(data) > limit:
        raise UsageError(f"damaged: more than {limit} bytes", path=path)
    try:
        document = (_FOREIGN if foreign else _DECODER).decode(data.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise UsageError("damaged: nested too deeply", path=path) from None
    except ValueError as error:
        raise UsageError(f"damaged: not a JSON document ({str(error).partition(':')[0]})", path=path) from None
    if not isinstance(document, dict):
        raise UsageError("damaged: not a JSON object", path=path)
    check_schema(document.get("schema"), path)
    # The text has at least as many brackets as levels, so most documents are not walked.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and is_deep(document, MAX_DEPTH):
        raise UsageError(f"damaged: nested more than {MAX_DEPTH} levels deep", path=path)
    return document


def check_value(value: Any, what: str) -> Any:
    """Return a value as JSON has it: tuples as lists; `what` is for the message.

    Raises UsageError for a value that JSON lacks (NaN, bytes, a key that is not text), and for one that is nested
    deeper than a document of ours may be.

    >>> check_value({"lr": (0.1, 0.2)}, "metadata")
    {'lr': [0.1, 0.2]}
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what}: not a JSON value: {error}") from None
    made = _DECODER.decode(text)
    if is_deep([made], MAX_VALUE_DEPTH):
        raise UsageError(f"{what}: nested more than {MAX_VALUE_DEPTH} levels deep")
    return made


def parse_value(text: str) -> Any:
    """Return the JSON value of a text; ValueError for a text that is none, or that Python would read beyond JSON.

    >>> parse_value("0.5"), parse_value('["a"]')
    (0.5, ['a'])
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_deep(document: Any, depth: int) -> bool:
    """Say whether a JSON object or list has more than so many levels; nothing recurses."""
    level: list[Any] = [document]
    for _ in range(depth):
        below = list(chain.from_iterable(each.values() if type(each) is dict else each for each in level))
        level = list(compress(below, map(_NESTED.__contains__, map(type, below))))
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _no_constant(_: str) -> NoReturn:
    raise ValueError("a number is not finite")


def json_number(value: float) -> float | str:
    """Return a number for JSON, where NaN and infinities are strings, as in protobuf's JSON.

    >>> json_number(float("nan")), json_number(0.5)
    ('NaN', 0.5)
    """
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


_FOREIGN: Final = json.JSONDecoder(parse_float=lambda text: json_number(float(text)), parse_constant=str)
_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


SEAL_SCHEMA: Final = "edl-ckpt/seal/2"
_WITHOUT_DIGEST: Final = "edl-ckpt/seal/1"
_SUM: Final = "xxh3-128"
_FIRST_FIELDS: Final = frozenset({"schema", "version", "fingerprint", "sealed", "origin", "checksum", "shards"})


def read_seal(store: Store, version: int, *, with_chunks: bool = True) -> Seal | None:
    """Return a version's seal, None only when there is no such file; `with_chunks` as in `parse_seal`.

    Raises CorruptError for a seal that is damaged or that is of another version, UnsupportedError for a schema that is
    newer than this program, and the errors of storage.
    """
    path = f"{store.location}/{seal_file(version)}"
    try:
        data = store.read_small(seal_file(version))
        if data is None and store.properties.rename and os.path.lexists(store.path(seal_file(version))):
            _damaged("not a regular file")
        seal = None if data is None else parse_seal(data, with_chunks=with_chunks)
        if seal is not None and seal.version != version:
            _damaged(f"it is the seal of version {seal.version}")
    except (CorruptError, UnsupportedError) as error:
        error.path = path
        raise
    except (UsageError, RefusedError) as error:  # a pipe, say
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
    optional = {"origin": seal.origin, "run": seal.run, "history": [asdict(override) for override in seal.history]}
    document |= {key: value for key, value in optional.items() if value}
    document["checksum"] = _SUM
    digest = xxhash.xxh3_128(f'{_compact(document)[:-1]},"shards":['.encode("ascii"))
    out = BytesIO()
    out.write(_utf8(f'{_spaced(document)[:-1]}, "shards": ['))
    for number, shard in enumerate(seal.shards):
        chunks = [[c.kind, c.name, c.start, c.end, c.sum] for c in shard.chunks]
        some = {"name": shard.name, "size_bytes": shard.size_bytes, "chunks": chunks}
        digest.update(f"{',' if number else ''}{_compact(some)}".encode("ascii"))
        out.write(_utf8(f"{', ' if number else ''}{_spaced(some)}"))
    digest.update(b"]}")
    out.write(_utf8(f'], "digest": "{digest.hexdigest()}"}}\n'))
    return out.getvalue()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _compact(document: Mapping[str, Any]) -> str:
    """Return JSON as a digest covers it: in ASCII, without blanks."""
    return json.dumps(document, separators=(",", ":"))


def _spaced(document: Mapping[str, Any]) -> str:
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
            int(document["version"]),
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
