"""JSON Schemas of all documents that commands print: `edl-ckpt schema`, `docs/schemas/`.

A key that is not marked as optional is always there. A schema allows other keys, because documents gain keys; the
tests refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edl_ckpt.cli.schema_parts import (
    ANY,
    CHANGE,
    CLUSTER,
    COUNT,
    DIFF_TABLE,
    DIFFERENCE,
    FACT,
    FAILED,
    FAILURE,
    FINDING,
    FINGERPRINT,
    FLAG,
    HOLDER,
    INTEGER,
    KEY,
    METRICS,
    NUMBER,
    PARTS,
    RESULT,
    ROWS,
    SECONDS,
    STATE,
    STATS,
    STATS_KEYS,
    SUMMARY,
    TEXT,
    TIME,
    TRIAL,
    USED,
    VERSION,
    VERSION_KEYS,
    WRITTEN,
    Schema,
    list_of,
    map_of,
    one_of,
    or_null,
    record,
)

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_DOCUMENTS: Final[Mapping[str, Schema]] = {
    "list": record(
        ("experiment",),
        locations=list_of(
            record(
                location=TEXT,
                layout=or_null(TEXT),
                versions=list_of(VERSION),
                modes=map_of(one_of("max", "min")),
                interrupted_copies=list_of(COUNT),
                foreign=list_of(record(name=TEXT, elasticdl_version=or_null(INTEGER))),
            )
        ),
        experiment=record(
            location=TEXT,
            metric=or_null(TEXT),
            mode=or_null(one_of("max", "min")),
            best=or_null(TEXT),
            trials=list_of(TRIAL),
        ),
    ),
    "inspect": record(("stats",), **SUMMARY, stats=list_of(STATS)),
    "report": record(
        location=TEXT,
        made=TIME,
        seed=COUNT,
        layout=or_null(TEXT),
        total_versions=COUNT,
        complete_versions=COUNT,
        size_bytes=COUNT,
        versions=list_of(
            record(**VERSION_KEYS, action=or_null(one_of("keep", "delete")), reasons=list_of(TEXT)),
        ),
        best=map_of(TEXT),
        retention=or_null(
            record(rules=list_of(TEXT), stored=FLAG, deletions=COUNT, deleted_bytes=COUNT),
        ),
        opened=list_of(
            record(
                ref=TEXT,
                ok=FLAG,
                fault=or_null(TEXT),
                parameters=COUNT,
                tables=list_of(record(name=TEXT, rows=COUNT, size_bytes=COUNT)),
                findings=list_of(FINDING),
            )
        ),
        newest=or_null(record(**SUMMARY)),
        tensors=list_of(record(**STATS_KEYS, of_elements=COUNT)),
        drift=list_of(
            record(
                kind=one_of("variable", "table"),
                name=TEXT,
                a=TEXT,
                b=TEXT,
                **dict.fromkeys(("sampled", "added", "removed", "changed"), COUNT),
                **{key: value for key, value in DIFFERENCE.items() if key != "l2"},
            )
        ),
        problems=list_of(TEXT),
        left_out=list_of(TEXT),
        bytes_read=COUNT,
        unread=FLAG,
    ),
    "verify": record(**RESULT),
    "verify-failed": record(**FAILURE),
    "verify-all": record(location=TEXT, ok=FLAG, results=list_of(record(**RESULT)), failed=FAILED),
    "reshard": record(
        ("in_place", "layout", "skew", "warnings", "cluster", "parts"),
        **WRITTEN,
        **dict.fromkeys(("needed", "dry_run", "in_place"), FLAG),
        layout=TEXT,
        skew=NUMBER,
        warnings=list_of(TEXT),
        cluster=CLUSTER,
        parts=PARTS,
    ),
    "import": record(
        ("layout", "skew", "warnings", "cluster", "parts"),
        **WRITTEN,
        dry_run=FLAG,
        layout=TEXT,
        skew=NUMBER,
        warnings=list_of(TEXT),
        cluster=CLUSTER,
        parts=PARTS,
    ),
    "copy": record(
        ("failed", "cluster"),
        copied=list_of(
            record(
                ("resumed_bytes", "forced", "refused", "why"),
                ref=TEXT,
                to=TEXT,
                size_bytes=COUNT,
                fingerprint=or_null(FINGERPRINT),
                skipped=FLAG,
                resumed_bytes=COUNT,
                forced=or_null(TEXT),
                refused=FLAG,
                why=TEXT,
            )
        ),
        bytes_copied=COUNT,
        seconds=or_null(SECONDS),
        failed=FAILED,
        dry_run=FLAG,
        cluster=CLUSTER,
    ),
    "export": record(
        ("value_bytes", "bytes_read", "sending", "cluster"),
        ref=TEXT,
        output=TEXT,
        format=TEXT,
        files=list_of(record(path=TEXT, size_bytes=or_null(COUNT))),
        variables=COUNT,
        tables=COUNT,
        rows=COUNT,
        fingerprint=or_null(FINGERPRINT),
        seconds=or_null(SECONDS),
        overflowed=COUNT,
        proved=FLAG,
        forced=or_null(TEXT),
        dry_run=FLAG,
        value_bytes=COUNT,
        bytes_read=COUNT,
        sending=or_null(
            record(
                **dict.fromkeys(("tasks", "parts", "value_bytes", "again_bytes"), COUNT),
                **dict.fromkeys(("sorted_tables", "sorted_bytes"), COUNT),
            )
        ),
        cluster=CLUSTER,
    ),
    "prune": record(
        plan=list_of(
            record(
                ref=TEXT,
                version=or_null(COUNT),
                action=one_of("keep", "delete"),
                reasons=list_of(TEXT),
                size_bytes=COUNT,
                state=STATE,
                path=TEXT,
            )
        ),
        deleted=COUNT,
        freed_bytes=COUNT,
        applied=FLAG,
        trashed=FLAG,
        policy=list_of(TEXT),
        warnings=list_of(TEXT),
        failed=list_of(record(ref=TEXT, code=COUNT, id=TEXT, message=TEXT, path=or_null(TEXT))),
    ),
    "wait": record(
        ref=or_null(TEXT),
        version=or_null(COUNT),
        state=one_of("complete", "timed-out", "stalled"),
        waited_seconds=SECONDS,
        location=TEXT,
        path=or_null(TEXT),
        metrics=METRICS,
        why=or_null(TEXT),
        unfinished=list_of(record(ref=TEXT, version=COUNT, why=TEXT)),
    ),
    "watch": record(
        event=one_of("new-version", "shard-arrived", "complete", "stalled", "corrupt", "sealed", "deleted"),
        ref=TEXT,
        at=TIME,
        location=TEXT,
        version=COUNT,
        path=TEXT,
        ps_num=or_null(COUNT),
        shards=COUNT,
        size_bytes=COUNT,
        shard=or_null(record(ps_id=COUNT, path=TEXT, size_bytes=COUNT)),
        replaced=FLAG,
        fingerprint=or_null(FINGERPRINT),
        why=or_null(TEXT),
    ),
    "demo": record(
        location=TEXT,
        ps_num=COUNT,
        versions=list_of(COUNT),
        commands=list_of(record(arguments=list_of(TEXT), exit_code=COUNT, document=ANY)),
    ),
    "undo": record(location=TEXT, restored=list_of(TEXT)),
    "recover": record(location=TEXT, done=list_of(TEXT), kept=list_of(TEXT), left=list_of(TEXT)),
    "unlock": record(location=TEXT, unlocked=FLAG, holders=list_of(HOLDER)),
    "diff": record(
        a=TEXT,
        b=TEXT,
        equal=FLAG,
        tolerance=NUMBER,
        variables=list_of(record(name=TEXT, status=CHANGE, **DIFFERENCE, what=TEXT)),
        tables=list_of(DIFF_TABLE),
        fingerprint_a=FINGERPRINT,
        fingerprint_b=FINGERPRINT,
        histogram_edges=list_of(NUMBER),
    ),
    "get": record(
        ("table", "rows", "missing", "dim", "bytes_read", "nearest", "columns", "variable", "shape", "values", "slice"),
        **ROWS,
        nearest=list_of(record(id=INTEGER, neighbours=list_of(record(id=INTEGER, cosine=NUMBER)))),
        columns=list_of(COUNT),
        variable=TEXT,
        shape=list_of(COUNT),
        slice=TEXT,
        values={"$ref": "#/$defs/array"},
    ),
    "head": record(**ROWS),
    "sample": record(**ROWS),
    "ids": record(ref=TEXT, table=TEXT, rows=COUNT, ids=list_of(INTEGER)),
    "du": record(
        ("location", "versions", "trash", "staging", "state_bytes", "other_bytes", "ref", "tables", "variables"),
        location=TEXT,
        size_bytes=COUNT,
        versions=list_of(record(version=or_null(COUNT), ref=TEXT, state=STATE, size_bytes=COUNT)),
        trash=list_of(USED),
        staging=list_of(USED),
        state_bytes=COUNT,
        other_bytes=COUNT,
        ref=TEXT,
        tables=list_of(record(name=TEXT, rows=COUNT, size_bytes=COUNT)),
        variables=list_of(USED),
    ),
    "metrics": record(
        location=TEXT,
        modes=map_of(one_of("max", "min")),
        best=map_of(KEY),
        versions=list_of(record(version=or_null(COUNT), ref=TEXT, metrics=METRICS, tags=list_of(TEXT), note=TEXT)),
    ),
    "metrics-import": record(
        source=TEXT,
        location=TEXT,
        matched=list_of(record(ref=TEXT, version=or_null(COUNT), step=COUNT, metrics=METRICS, replaced=METRICS)),
        steps_without_version=list_of(INTEGER),
        versions_without_metrics=list_of(INTEGER),
        skipped=list_of(TEXT),
        applied=FLAG,
    ),
    "tags": record(
        ("moved_from",),
        location=TEXT,
        tags=list_of(record(tag=TEXT, versions=list_of(KEY))),
        moved_from=list_of(KEY),
    ),
    "note": record(ref=TEXT, note=TEXT),
    "metadata": record(ref=TEXT, version=or_null(COUNT), metadata=map_of(ANY)),
    "policy": record(location=TEXT, policy=or_null(map_of(ANY)), words=list_of(TEXT)),
    "version": record(
        version=TEXT,
        python=TEXT,
        platform=TEXT,
        kernel=one_of("compiled", "numpy"),
        libraries=map_of(or_null(TEXT)),
    ),
    "doctor": record(
        ok=FLAG,
        program=list_of(FACT),
        extras=list_of(record(name=TEXT, installed=FLAG, gives=TEXT)),
        storage=or_null(record(location=TEXT, wrote=FLAG, facts=list_of(FACT))),
    ),
    "config": record(
        files=list_of(record(path=TEXT, trusted=FLAG)),
        settings=list_of(
            record(
                name=TEXT,
                value=ANY,
                source=one_of("environment", "file", "default"),
                origin=or_null(TEXT),
                variable=or_null(TEXT),
                commands=list_of(TEXT),
                fault=or_null(TEXT),
            )
        ),
        warnings=list_of(TEXT),
    ),
    "completion": record(shell=one_of("bash", "zsh", "fish"), place=TEXT, script=TEXT),
    "error": record(
        code={"type": "integer", "minimum": 1, "maximum": 255},
        id=TEXT,
        message=TEXT,
        hint=or_null(TEXT),
        path=or_null(TEXT),
    ),
}
"""The keys of each document beside `schema`, by its name without `edl-ckpt/` and the version."""

_DEFINITIONS: Final[Mapping[str, Mapping[str, Schema]]] = {
    # The values of a variable: arrays of any rank; a scalar is its value.
    "get": {"array": {"anyOf": [NUMBER, FLAG, list_of({"$ref": "#/$defs/array"})]}},
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
