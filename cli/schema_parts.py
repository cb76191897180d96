"""The parts of JSON Schemas: kinds of values, and the objects that several documents contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
FINGERPRINT: Final[Schema] = {"type": "string", "pattern": "^edl1:[0-9a-f]{64}$"}
NUMBER: Final[Schema] = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
ANY: Final[Schema] = {}


def or_null(schema: Schema) -> Schema:
    """Allow null as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(items: Schema) -> Schema:
    """Describe a list, by what each of its items is."""
    return {"type": "array", "items": items}


def one_of(*texts: str) -> Schema:
    """Describe a text that is one of a few."""
    return {"enum": list(texts)}


def map_of(values: Schema) -> Schema:
    """Describe an object whose keys are names, by what each of its values is."""
    return {"type": "object", "additionalProperties": values}


def record(_optional: Sequence[str] = (), /, **keys: Schema) -> Schema:
    """Describe an object by its keys; those that are not always there come first, by their names."""
    return {"type": "object", "required": [key for key in keys if key not in _optional], "properties": keys}


KEY: Final[Schema] = {"type": ["integer", "string"]}
"""What names a version in its location: its number, or its UUID."""
METRICS: Final = map_of(NUMBER)
FACT: Final = record(name=TEXT, value=TEXT, verdict=one_of("fine", "weaker", "broken", "unknown"), why=TEXT)
STATE: Final = one_of("complete", "incomplete", "writing", "mixed", "invalid", "unreadable")
FAILURE: Final[Mapping[str, Schema]] = {"ref": TEXT, "code": COUNT, "id": TEXT, "message": TEXT}
FAILED: Final = list_of(record(**FAILURE))
VERSION_KEYS: Final[Mapping[str, Schema]] = {
    "version": or_null(COUNT),
    "uuid": or_null(TEXT),
    "ref": TEXT,
    "path": TEXT,
    "state": STATE,
    "ps_num": or_null(COUNT),
    "shards": COUNT,
    "missing": list_of(COUNT),
    "missing_count": COUNT,
    "size_bytes": COUNT,
    "modified": or_null(TIME),
    "metrics": METRICS,
    "tags": list_of(TEXT),
    "metadata": map_of(ANY),
    "fingerprint": or_null(FINGERPRINT),
    "note": TEXT,
    "sealed": FLAG,
    "fault": or_null(TEXT),
    "mixture": or_null(TEXT),
}
VERSION: Final = record(**VERSION_KEYS)
TRIAL: Final = record(
    name=TEXT,
    location=TEXT,
    versions=COUNT,
    complete=COUNT,
    size_bytes=COUNT,
    latest=or_null(TEXT),
    best=or_null(TEXT),
    value=or_null(NUMBER),
    fault=or_null(TEXT),
)
WORKER: Final = record(name=TEXT, address=TEXT, threads=COUNT, memory_bytes=or_null(COUNT), version=TEXT)
CLUSTER: Final = or_null(record(address=TEXT, dashboard=or_null(TEXT), workers=list_of(WORKER)))
PARTS: Final = or_null(
    record(
        strategy=one_of("direct", "spilled", "grouped"),
        **dict.fromkeys(("groups", "tasks", "parts", "value_bytes", "values_read", "ids_read"), COUNT),
        **dict.fromkeys(("open_bytes", "memory_bytes", "spilled_bytes", "least_bytes", "task_bytes"), COUNT),
        times_read=NUMBER,
    )
)
SHARD: Final = record(ps_id=COUNT, path=TEXT, size_bytes=COUNT, variables=COUNT, rows=COUNT)
STATS_KEYS: Final[Mapping[str, Schema]] = {
    "name": TEXT,
    "kind": one_of("variable", "table"),
    "elements": COUNT,
    "minimum": or_null(NUMBER),
    "maximum": or_null(NUMBER),
    "mean": or_null(NUMBER),
    "std": or_null(NUMBER),
    "l2": or_null(NUMBER),
    "zeros": COUNT,
    "nan": COUNT,
    "inf": COUNT,
    "histogram": list_of(COUNT),
    "edges": list_of(NUMBER),
}
STATS: Final = record(**STATS_KEYS)
FINDING: Final = record(
    severity=one_of("error", "warning"),
    code=TEXT,
    shard=or_null(COUNT),
    path=TEXT,
    subject=TEXT,
    offset=or_null(COUNT),
    message=TEXT,
    hint=TEXT,
    check=one_of("names", "headers", "ids", "values", "seal"),
)
SUMMARY: Final[Mapping[str, Schema]] = {
    "ref": TEXT,
    "version": or_null(COUNT),
    "ps_num": COUNT,
    "generation": one_of("v0", "v1", "v2", "v3", "v4", "mixed"),
    "layout": TEXT,
    "size_bytes": COUNT,
    "parameters": COUNT,
    "shards": list_of(SHARD),
    "variables": list_of(record(name=TEXT, dtype=TEXT, shape=list_of(COUNT), size_bytes=COUNT, shard=COUNT)),
    "tables": list_of(
        record(
            name=TEXT,
            dim=COUNT,
            dtype=or_null(TEXT),
            initializer=or_null(TEXT),
            rows=COUNT,
            rows_per_shard=list_of(COUNT),
            size_bytes=COUNT,
        )
    ),
    "metadata": map_of(ANY),
}
RESULT: Final[Mapping[str, Schema]] = {
    "ref": TEXT,
    "ok": FLAG,
    "level": one_of("quick", "default", "deep"),
    "findings": list_of(FINDING),
    "fingerprint": or_null(FINGERPRINT),
    "bytes_read": COUNT,
    "sealed": FLAG,
    "shards": COUNT,
    "shards_read": COUNT,
    "ids_read": FLAG,
    "checks": list_of(record(name=one_of("names", "headers", "ids", "values", "seal"), seconds=SECONDS)),
}
WRITTEN: Final[Mapping[str, Schema]] = {
    "ref": TEXT,
    "output": TEXT,
    "from_ps": or_null(COUNT),
    "to_ps": COUNT,
    "version": COUNT,
    "size_bytes": COUNT,
    "bytes_read": COUNT,
    "bytes_written": COUNT,
    "rows": COUNT,
    "seconds": or_null(SECONDS),
    "peak_memory_bytes": or_null(COUNT),
    "fingerprint": or_null(FINGERPRINT),
    "shards": list_of(SHARD),
    "forced": or_null(TEXT),
}
CHANGE: Final = one_of("equal", "changed", "added", "removed")
DIFFERENCE: Final[Mapping[str, Schema]] = {key: or_null(NUMBER) for key in ("max_abs", "l2", "relative", "cosine")}
DIFF_TABLE: Final = record(
    ("rows",),
    name=TEXT,
    status=CHANGE,
    **dict.fromkeys(("added", "removed", "changed", "unchanged"), COUNT),
    **{key: value for key, value in DIFFERENCE.items() if key != "cosine"},
    top=list_of(record(id=INTEGER, l2=NUMBER, max_abs=NUMBER)),
    histogram=list_of(COUNT),
    what=TEXT,
    rows=list_of(record(id=INTEGER, status=one_of("changed", "added", "removed"), l2=or_null(NUMBER))),
)
ROWS: Final[Mapping[str, Schema]] = {
    "ref": TEXT,
    "table": TEXT,
    "rows": list_of(record(id=INTEGER, vector=list_of(NUMBER))),
    "missing": list_of(INTEGER),
    "dtype": or_null(TEXT),
    "dim": COUNT,
    "bytes_read": COUNT,
}
USED: Final = record(name=TEXT, size_bytes=COUNT)
HOLDER: Final = record(
    pid=or_null(COUNT),
    host=or_null(TEXT),
    since=or_null(ANY),
    purpose=or_null(TEXT),
    alive=or_null(FLAG),
    silent_seconds=or_null(SECONDS),
)
