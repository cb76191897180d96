"""JSON Schemas of all documents that commands print: `edl-ckpt schema`, `docs/schemas/`.

A key that is not marked as optional is always there. A schema allows other keys, because documents gain keys; the
tests refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_INTEGER: Final[Schema] = {"type": "integer"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_FINGERPRINT: Final[Schema] = {"type": "string", "pattern": "^edl1:[0-9a-f]{64}$"}
_NUMBER: Final[Schema] = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
_ANY: Final[Schema] = {}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*texts: str) -> Schema:
    return {"enum": list(texts)}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _object(_optional: Sequence[str] = (), /, **keys: Schema) -> Schema:
    return {"type": "object", "required": [key for key in keys if key not in _optional], "properties": keys}


_KEY: Final[Schema] = {"type": ["integer", "string"]}
"""What names a version in its location: its number, or its UUID."""
_METRICS: Final = _map(_NUMBER)
_FACT: Final = _object(name=_TEXT, value=_TEXT, verdict=_one_of("fine", "weaker", "broken", "unknown"), why=_TEXT)
_STATE: Final = _one_of("complete", "incomplete", "writing", "mixed", "invalid", "unreadable")
_FAILURE: Final[Mapping[str, Schema]] = {"ref": _TEXT, "code": _COUNT, "id": _TEXT, "message": _TEXT}
_FAILED: Final = _list(_object(**_FAILURE))
_VERSION_KEYS: Final[Mapping[str, Schema]] = {
    "version": _or_null(_COUNT),
    "uuid": _or_null(_TEXT),
    "ref": _TEXT,
    "path": _TEXT,
    "state": _STATE,
    "ps_num": _or_null(_COUNT),
    "shards": _COUNT,
    "missing": _list(_COUNT),
    "missing_count": _COUNT,
    "size_bytes": _COUNT,
    "modified": _or_null(_TIME),
    "metrics": _METRICS,
    "tags": _list(_TEXT),
    "metadata": _map(_ANY),
    "fingerprint": _or_null(_FINGERPRINT),
    "note": _TEXT,
    "sealed": _FLAG,
    "fault": _or_null(_TEXT),
}
_VERSION: Final = _object(**_VERSION_KEYS)
_TRIAL: Final = _object(
    name=_TEXT,
    location=_TEXT,
    versions=_COUNT,
    complete=_COUNT,
    size_bytes=_COUNT,
    latest=_or_null(_TEXT),
    best=_or_null(_TEXT),
    value=_or_null(_NUMBER),
    fault=_or_null(_TEXT),
)
_WORKER: Final = _object(name=_TEXT, address=_TEXT, threads=_COUNT, memory_bytes=_or_null(_COUNT), version=_TEXT)
_CLUSTER: Final = _or_null(_object(address=_TEXT, dashboard=_or_null(_TEXT), workers=_list(_WORKER)))
_SHARD: Final = _object(ps_id=_COUNT, path=_TEXT, size_bytes=_COUNT, variables=_COUNT, rows=_COUNT)
_STATS_KEYS: Final[Mapping[str, Schema]] = {
    "name": _TEXT,
    "kind": _one_of("variable", "table"),
    "elements": _COUNT,
    "minimum": _or_null(_NUMBER),
    "maximum": _or_null(_NUMBER),
    "mean": _or_null(_NUMBER),
    "std": _or_null(_NUMBER),
    "l2": _or_null(_NUMBER),
    "zeros": _COUNT,
    "nan": _COUNT,
    "inf": _COUNT,
    "histogram": _list(_COUNT),
    "edges": _list(_NUMBER),
}
_STATS: Final = _object(**_STATS_KEYS)
_FINDING: Final = _object(
    severity=_one_of("error", "warning"),
    code=_TEXT,
    shard=_or_null(_COUNT),
    path=_TEXT,
    subject=_TEXT,
    offset=_or_null(_COUNT),
    message=_TEXT,
    hint=_TEXT,
    check=_one_of("names", "headers", "ids", "values", "seal"),
)
_SUMMARY: Final[Mapping[str, Schema]] = {
    "ref": _TEXT,
    "version": _or_null(_COUNT),
    "ps_num": _COUNT,
    "generation": _one_of("v0", "v1", "v2", "v3", "v4", "mixed"),
    "layout": _TEXT,
    "size_bytes": _COUNT,
    "parameters": _COUNT,
    "shards": _list(_SHARD),
    "variables": _list(_object(name=_TEXT, dtype=_TEXT, shape=_list(_COUNT), size_bytes=_COUNT, shard=_COUNT)),
    "tables": _list(
        _object(
            name=_TEXT,
            dim=_COUNT,
            dtype=_or_null(_TEXT),
            initializer=_or_null(_TEXT),
            rows=_COUNT,
            rows_per_shard=_list(_COUNT),
            size_bytes=_COUNT,
        )
    ),
    "metadata": _map(_ANY),
}
_RESULT: Final[Mapping[str, Schema]] = {
    "ref": _TEXT,
    "ok": _FLAG,
    "level": _one_of("quick", "default", "deep"),
    "findings": _list(_FINDING),
    "fingerprint": _or_null(_FINGERPRINT),
    "bytes_read": _COUNT,
    "sealed": _FLAG,
    "shards": _COUNT,
    "shards_read": _COUNT,
    "ids_read": _FLAG,
    "checks": _list(_object(name=_one_of("names", "headers", "ids", "values", "seal"), seconds=_SECONDS)),
}
_WRITTEN: Final[Mapping[str, Schema]] = {
    "ref": _TEXT,
    "output": _TEXT,
    "from_ps": _or_null(_COUNT),
    "to_ps": _COUNT,
    "version": _COUNT,
    "size_bytes": _COUNT,
    "bytes_read": _COUNT,
    "bytes_written": _COUNT,
    "rows": _COUNT,
    "seconds": _or_null(_SECONDS),
    "peak_memory_bytes": _or_null(_COUNT),
    "fingerprint": _or_null(_FINGERPRINT),
    "shards": _list(_SHARD),
    "forced": _or_null(_TEXT),
}
_CHANGE: Final = _one_of("equal", "changed", "added", "removed")
_DIFFERENCE: Final[Mapping[str, Schema]] = {key: _or_null(_NUMBER) for key in ("max_abs", "l2", "relative", "cosine")}
_DIFF_TABLE: Final = _object(
    ("rows",),
    name=_TEXT,
    status=_CHANGE,
    **dict.fromkeys(("added", "removed", "changed", "unchanged"), _COUNT),
    **{key: value for key, value in _DIFFERENCE.items() if key != "cosine"},
    top=_list(_object(id=_INTEGER, l2=_NUMBER, max_abs=_NUMBER)),
    histogram=_list(_COUNT),
    what=_TEXT,
    rows=_list(_object(id=_INTEGER, status=_one_of("changed", "added", "removed"), l2=_or_null(_NUMBER))),
)
_ROWS: Final[Mapping[str, Schema]] = {
    "ref": _TEXT,
    "table": _TEXT,
    "rows": _list(_object(id=_INTEGER, vector=_list(_NUMBER))),
    "missing": _list(_INTEGER),
    "dtype": _or_null(_TEXT),
    "dim": _COUNT,
    "bytes_read": _COUNT,
}
_USED: Final = _object(name=_TEXT, size_bytes=_COUNT)
_HOLDER: Final = _object(
    pid=_or_null(_COUNT),
    host=_or_null(_TEXT),
    since=_or_null(_ANY),
    purpose=_or_null(_TEXT),
    alive=_or_null(_FLAG),
    silent_seconds=_or_null(_SECONDS),
)

_DOCUMENTS: Final[Mapping[str, Schema]] = {
    "list": _object(
        ("experiment",),
        locations=_list(
            _object(
                location=_TEXT,
                layout=_or_null(_TEXT),
                versions=_list(_VERSION),
                modes=_map(_one_of("max", "min")),
                interrupted_copies=_list(_COUNT),
                foreign=_list(_object(name=_TEXT, elasticdl_version=_or_null(_INTEGER))),
            )
        ),
        experiment=_object(
            location=_TEXT,
            metric=_or_null(_TEXT),
            mode=_or_null(_one_of("max", "min")),
            best=_or_null(_TEXT),
            trials=_list(_TRIAL),
        ),
    ),
    "inspect": _object(("stats",), **_SUMMARY, stats=_list(_STATS)),
    "report": _object(
        location=_TEXT,
        made=_TIME,
        seed=_COUNT,
        layout=_or_null(_TEXT),
        total_versions=_COUNT,
        complete_versions=_COUNT,
        size_bytes=_COUNT,
        versions=_list(
            _object(**_VERSION_KEYS, action=_or_null(_one_of("keep", "delete")), reasons=_list(_TEXT)),
        ),
        best=_map(_TEXT),
        retention=_or_null(
            _object(rules=_list(_TEXT), stored=_FLAG, deletions=_COUNT, deleted_bytes=_COUNT),
        ),
        opened=_list(
            _object(
                ref=_TEXT,
                ok=_FLAG,
                fault=_or_null(_TEXT),
                parameters=_COUNT,
                tables=_list(_object(name=_TEXT, rows=_COUNT, size_bytes=_COUNT)),
                findings=_list(_FINDING),
            )
        ),
        newest=_or_null(_object(**_SUMMARY)),
        tensors=_list(_object(**_STATS_KEYS, of_elements=_COUNT)),
        drift=_list(
            _object(
                kind=_one_of("variable", "table"),
                name=_TEXT,
                a=_TEXT,
                b=_TEXT,
                **dict.fromkeys(("sampled", "added", "removed", "changed"), _COUNT),
                **{key: value for key, value in _DIFFERENCE.items() if key != "l2"},
            )
        ),
        problems=_list(_TEXT),
        left_out=_list(_TEXT),
        bytes_read=_COUNT,
        unread=_FLAG,
    ),
    "verify": _object(**_RESULT),
    "verify-failed": _object(**_FAILURE),
    "verify-all": _object(location=_TEXT, ok=_FLAG, results=_list(_object(**_RESULT)), failed=_FAILED),
    "reshard": _object(
        ("in_place", "layout", "skew", "warnings", "cluster"),
        **_WRITTEN,
        **dict.fromkeys(("needed", "dry_run", "in_place"), _FLAG),
        layout=_TEXT,
        skew=_NUMBER,
        warnings=_list(_TEXT),
        cluster=_CLUSTER,
    ),
    "import": _object(**_WRITTEN),
    "copy": _object(
        ("failed", "cluster"),
        copied=_list(
            _object(
                ("resumed_bytes", "forced", "refused", "why"),
                ref=_TEXT,
                to=_TEXT,
                size_bytes=_COUNT,
                fingerprint=_or_null(_FINGERPRINT),
                skipped=_FLAG,
                resumed_bytes=_COUNT,
                forced=_or_null(_TEXT),
                refused=_FLAG,
                why=_TEXT,
            )
        ),
        bytes_copied=_COUNT,
        seconds=_or_null(_SECONDS),
        failed=_FAILED,
        dry_run=_FLAG,
        cluster=_CLUSTER,
    ),
    "export": _object(
        ref=_TEXT,
        output=_TEXT,
        format=_TEXT,
        files=_list(_object(path=_TEXT, size_bytes=_COUNT)),
        variables=_COUNT,
        tables=_COUNT,
        rows=_COUNT,
        fingerprint=_FINGERPRINT,
        seconds=_SECONDS,
        overflowed=_COUNT,
        proved=_FLAG,
        forced=_or_null(_TEXT),
    ),
    "prune": _object(
        plan=_list(
            _object(
                ref=_TEXT,
                version=_or_null(_COUNT),
                action=_one_of("keep", "delete"),
                reasons=_list(_TEXT),
                size_bytes=_COUNT,
                state=_STATE,
                path=_TEXT,
            )
        ),
        deleted=_COUNT,
        freed_bytes=_COUNT,
        applied=_FLAG,
        trashed=_FLAG,
        policy=_list(_TEXT),
        warnings=_list(_TEXT),
        failed=_list(_object(ref=_TEXT, code=_COUNT, id=_TEXT, message=_TEXT, path=_or_null(_TEXT))),
    ),
    "wait": _object(
        ref=_or_null(_TEXT),
        version=_or_null(_COUNT),
        state=_one_of("complete", "timed-out", "stalled"),
        waited_seconds=_SECONDS,
        location=_TEXT,
        path=_or_null(_TEXT),
        metrics=_METRICS,
        why=_or_null(_TEXT),
        unfinished=_list(_object(ref=_TEXT, version=_COUNT, why=_TEXT)),
    ),
    "watch": _object(
        event=_one_of("new-version", "shard-arrived", "complete", "stalled", "corrupt", "sealed", "deleted"),
        ref=_TEXT,
        at=_TIME,
        location=_TEXT,
        version=_COUNT,
        path=_TEXT,
        ps_num=_or_null(_COUNT),
        shards=_COUNT,
        size_bytes=_COUNT,
        shard=_or_null(_object(ps_id=_COUNT, path=_TEXT, size_bytes=_COUNT)),
        replaced=_FLAG,
        fingerprint=_or_null(_FINGERPRINT),
        why=_or_null(_TEXT),
    ),
    "demo": _object(
        location=_TEXT,
        ps_num=_COUNT,
        versions=_list(_COUNT),
        commands=_list(_object(arguments=_list(_TEXT), exit_code=_COUNT, document=_ANY)),
    ),
    "undo": _object(location=_TEXT, restored=_list(_TEXT)),
    "recover": _object(location=_TEXT, done=_list(_TEXT), kept=_list(_TEXT), left=_list(_TEXT)),
    "unlock": _object(location=_TEXT, unlocked=_FLAG, holders=_list(_HOLDER)),
    "diff": _object(
        a=_TEXT,
        b=_TEXT,
        equal=_FLAG,
        tolerance=_NUMBER,
        variables=_list(_object(name=_TEXT, status=_CHANGE, **_DIFFERENCE, what=_TEXT)),
        tables=_list(_DIFF_TABLE),
        fingerprint_a=_FINGERPRINT,
        fingerprint_b=_FINGERPRINT,
        histogram_edges=_list(_NUMBER),
    ),
    "get": _object(
        ("table", "rows", "missing", "dim", "bytes_read", "nearest", "columns", "variable", "shape", "values", "slice"),
        **_ROWS,
        nearest=_list(_object(id=_INTEGER, neighbours=_list(_object(id=_INTEGER, cosine=_NUMBER)))),
        columns=_list(_COUNT),
        variable=_TEXT,
        shape=_list(_COUNT),
        slice=_TEXT,
        values={"$ref": "#/$defs/array"},
    ),
    "head": _object(**_ROWS),
    "sample": _object(**_ROWS),
    "ids": _object(ref=_TEXT, table=_TEXT, rows=_COUNT, ids=_list(_INTEGER)),
    "du": _object(
        ("location", "versions", "trash", "staging", "state_bytes", "other_bytes", "ref", "tables", "variables"),
        location=_TEXT,
        size_bytes=_COUNT,
        versions=_list(_object(version=_or_null(_COUNT), ref=_TEXT, state=_STATE, size_bytes=_COUNT)),
        trash=_list(_USED),
        staging=_list(_USED),
        state_bytes=_COUNT,
        other_bytes=_COUNT,
        ref=_TEXT,
        tables=_list(_object(name=_TEXT, rows=_COUNT, size_bytes=_COUNT)),
        variables=_list(_USED),
    ),
    "metrics": _object(
        location=_TEXT,
        modes=_map(_one_of("max", "min")),
        best=_map(_KEY),
        versions=_list(_object(version=_or_null(_COUNT), ref=_TEXT, metrics=_METRICS, tags=_list(_TEXT), note=_TEXT)),
    ),
    "metrics-import": _object(
        source=_TEXT,
        location=_TEXT,
        matched=_list(_object(ref=_TEXT, version=_or_null(_COUNT), step=_COUNT, metrics=_METRICS, replaced=_METRICS)),
        steps_without_version=_list(_INTEGER),
        versions_without_metrics=_list(_INTEGER),
        skipped=_list(_TEXT),
        applied=_FLAG,
    ),
    "tags": _object(
        ("moved_from",),
        location=_TEXT,
        tags=_list(_object(tag=_TEXT, versions=_list(_KEY))),
        moved_from=_list(_KEY),
    ),
    "note": _object(ref=_TEXT, note=_TEXT),
    "metadata": _object(ref=_TEXT, version=_or_null(_COUNT), metadata=_map(_ANY)),
    "policy": _object(location=_TEXT, policy=_or_null(_map(_ANY)), words=_list(_TEXT)),
    "version": _object(
        version=_TEXT,
        python=_TEXT,
        platform=_TEXT,
        kernel=_one_of("compiled", "numpy"),
        libraries=_map(_or_null(_TEXT)),
    ),
    "doctor": _object(
        ok=_FLAG,
        program=_list(_FACT),
        extras=_list(_object(name=_TEXT, installed=_FLAG, gives=_TEXT)),
        storage=_or_null(_object(location=_TEXT, wrote=_FLAG, facts=_list(_FACT))),
    ),
    "config": _object(
        files=_list(_object(path=_TEXT, trusted=_FLAG)),
        settings=_list(
            _object(
                name=_TEXT,
                value=_ANY,
                source=_one_of("environment", "file", "default"),
                origin=_or_null(_TEXT),
                variable=_or_null(_TEXT),
                commands=_list(_TEXT),
                fault=_or_null(_TEXT),
            )
        ),
        warnings=_list(_TEXT),
    ),
    "completion": _object(shell=_one_of("bash", "zsh", "fish"), place=_TEXT, script=_TEXT),
    "error": _object(
        code={"type": "integer", "minimum": 1, "maximum": 255},
        id=_TEXT,
        message=_TEXT,
        hint=_or_null(_TEXT),
        path=_or_null(_TEXT),
    ),
}
"""The keys of each document beside `schema`, by its name without `edl-ckpt/` and the version."""

_DEFINITIONS: Final[Mapping[str, Mapping[str, Schema]]] = {
    # The values of a variable: arrays of any rank; a scalar is its value.
    "get": {"array": {"anyOf": [_NUMBER, _FLAG, _list({"$ref": "#/$defs/array"})]}},
}
"""What the schema of a document refers to."""

OF_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "verify": ("verify", "verify-all", "verify-failed"),
    "metrics set": ("metrics",),
    "metrics show": ("metrics",),
    "metrics remove": ("metrics",),
    "metrics mode": ("metrics",),
    "metrics import": ("metrics-import",),
    "tag add": ("tags",),
    "tag remove": ("tags",),
    "tag list": ("tags",),
    "metadata set": ("metadata",),
    "metadata show": ("metadata",),
    "metadata remove": ("metadata",),
    "config show": ("config",),
    "policy show": ("policy",),
    "policy set": ("policy",),
    "policy clear": ("policy",),
}
"""The documents of each command that prints others than one of its own name."""


def names() -> tuple[str, ...]:
    """Return the names of all documents, such as 'verify-all'."""
    return tuple(_DOCUMENTS)


def schema_of(name: str) -> Schema:
    """Return the JSON Schema of a document, by its name such as 'verify-all'; KeyError when there is none."""
    found = _DOCUMENTS[name]
    return {
        "$schema": _DIALECT,
        "$id": f"urn:edl-ckpt:schema:{name}:1",
        "title": f"edl-ckpt/{name}/1",
        "type": "object",
        "required": ["schema", *found["required"]],
        "properties": {"schema": {"const": f"edl-ckpt/{name}/1"}, **found["properties"]},
        **({"$defs": _DEFINITIONS[name]} if name in _DEFINITIONS else {}),
    }


def schema_for(command: str | None = None) -> Schema:
    """Return the JSON Schema of all that a command prints, or of all documents; KeyError when it prints none.

    The name of a document does as well, and `error` is what any command prints when it fails.
    """
    wanted = names() if command is None else OF_COMMANDS.get(command, (command,))
    schemas = [schema_of(name) for name in wanted]
    return schemas[0] if len(schemas) == 1 else {"$schema": _DIALECT, "oneOf": schemas}
