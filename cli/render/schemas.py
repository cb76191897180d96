"""JSON Schemas of all documents that commands print: `edl-ckpt schema`, `docs/schemas/`.

A key that is not marked as optional is always there. A schema allows other keys, because documents gain keys; the
tests refuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edl_ckpt.cli.catalogue import GROUPS
from edl_ckpt.cli.render.schema_parts import (
    ANY,
    CLUSTER,
    COUNT,
    FACT,
    FAILURE,
    FAILURE_KEYS,
    FINDING,
    FLAG,
    INTEGER,
    KEY,
    NUMBER,
    PLANNED_KEYS,
    RESULT,
    RESULT_KEYS,
    ROWS,
    ROWS_KEYS,
    STATS_KEYS,
    SUMMARY,
    SUMMARY_KEYS,
    TEXT,
    USED,
    VERSION_KEYS,
    WRITTEN,
    WRITTEN_KEYS,
    Schema,
    list_of,
    map_of,
    one_of,
    record,
)

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_DOCUMENTS: Final[Mapping[str, Schema]] = {
    "list": record(
        "locations* (experiment)",
        locations=record(
            "location layout? versions* modes interrupted_copies* foreign*",
            versions=record(VERSION_KEYS),
            foreign=record("name elasticdl_version?"),
        ),
        experiment=record(
            "location metric? mode? best? trials*",
            trials=record("name location versions complete size_bytes latest? best? value? fault?", value=NUMBER),
        ),
    ),
    "inspect": record(f"{SUMMARY_KEYS} (stats*)", **SUMMARY, stats=record(STATS_KEYS)),
    "report": record(
        "location made seed layout? total_versions complete_versions size_bytes versions* best retention? opened*"
        " newest? tensors* drift* problems* left_out* bytes_read unread",
        versions=record(f"{VERSION_KEYS} action? reasons*"),
        best=map_of(TEXT),
        retention=record("rules* stored deletions deleted_bytes"),
        opened=record(
            "ref ok fault? parameters tables* findings*", tables=record("name rows size_bytes"), findings=FINDING
        ),
        newest=record(SUMMARY_KEYS, **SUMMARY),
        tensors=record(f"{STATS_KEYS} of_elements"),
        drift=record("kind name a b sampled added removed changed max_abs? relative? cosine?"),
    ),
    "verify": record(RESULT_KEYS, **RESULT),
    "verify-failed": FAILURE,
    "verify-all": record("location ok results* failed*", results=record(RESULT_KEYS, **RESULT), failed=FAILURE),
    "reshard": record(f"{WRITTEN_KEYS} needed dry_run (in_place) {PLANNED_KEYS}", **WRITTEN),
    "import": record(f"{WRITTEN_KEYS} dry_run {PLANNED_KEYS}", **WRITTEN),
    "copy": record(
        "copied* bytes_copied seconds? (failed*) dry_run (cluster?)",
        copied=record("ref to size_bytes fingerprint? skipped (resumed_bytes) (forced?) (refused) (why)"),
        failed=FAILURE,
        cluster=CLUSTER,
    ),
    "export": record(
        "ref output format files* variables tables rows fingerprint? seconds? overflowed proved forced? dry_run"
        " (value_bytes) (bytes_read) (cluster?)",
        files=record("path size_bytes?"),
        cluster=CLUSTER,
    ),
    "prune": record(
        "plan* deleted freed_bytes applied trashed policy* warnings* failed*",
        plan=record("ref version? action reasons* size_bytes state path"),
        failed=record(f"{FAILURE_KEYS} path?", code=COUNT),
    ),
    "wait": record(
        "ref? version? state waited_seconds location path? metrics why? unfinished*",
        state=one_of("complete", "timed-out", "stalled"),
        unfinished=record("ref version why"),
    ),
    "watch": record(
        "event ref at location version path ps_num? shards size_bytes shard? replaced fingerprint? why?",
        event=one_of("new-version", "shard-arrived", "complete", "stalled", "corrupt", "sealed", "deleted"),
        shard=record("ps_id path size_bytes"),
    ),
    "demo": record("location ps_num versions* commands*", commands=record("arguments* exit_code document")),
    "undo": record("location restored*"),
    "recover": record("location done* kept* left*"),
    "unlock": record("location unlocked holders*", holders=record("pid? host? since? purpose? alive? silent_seconds?")),
    "diff": record(
        "a b equal tolerance variables* tables* fingerprint_a fingerprint_b histogram_edges*",
        variables=record("name status max_abs? l2? relative? cosine? what"),
        tables=record(
            "name status added removed changed unchanged max_abs? l2? relative? top* histogram* what (rows*)",
            top=record("id l2 max_abs", id=INTEGER),
            rows=record("id status l2?", id=INTEGER, status=one_of("changed", "added", "removed")),
        ),
    ),
    "get": record(
        "ref (table) (rows*) (missing*) dtype? (dim) (bytes_read) (nearest*) (columns*) (variable) (shape*) (slice)"
        " (values)",
        **ROWS,
        nearest=record("id neighbours*", id=INTEGER, neighbours=record("id cosine", id=INTEGER)),
        values={"$ref": "#/$defs/array"},
    ),
    "head": record(ROWS_KEYS, **ROWS),
    "sample": record(ROWS_KEYS, **ROWS),
    "ids": record("ref table rows ids*"),
    "du": record(
        "(location) size_bytes (versions*) (trash*) (staging*) (state_bytes) (other_bytes) (ref) (tables*)"
        " (variables*)",
        versions=record("version? ref state size_bytes"),
        trash=USED,
        staging=USED,
        tables=record("name rows size_bytes"),
        variables=USED,
    ),
    "metrics": record(
        "location modes best versions*", best=map_of(KEY), versions=record("version? ref metrics tags* note")
    ),
    "metrics-import": record(
        "source location matched* steps_without_version* versions_without_metrics* skipped* applied",
        source=TEXT,
        matched=record("ref version? step metrics replaced", replaced=map_of(NUMBER)),
        skipped=TEXT,
    ),
    "tags": record("location tags* (moved_from*)", tags=record("tag versions*", versions=KEY)),
    "note": record("ref note"),
    "metadata": record("ref version? metadata"),
    "policy": record("location policy? words*", policy=map_of(ANY)),
    "version": record(
        "version python platform kernel libraries",
        version=TEXT,
        kernel=one_of("compiled", "numpy"),
        libraries=map_of({"anyOf": [TEXT, {"type": "null"}]}),
    ),
    "doctor": record(
        "ok program* extras* storage?",
        program=FACT,
        extras=record("name installed gives"),
        storage=record("location wrote facts*", facts=FACT),
    ),
    "config": record(
        "files* settings* warnings*",
        files=record("path trusted"),
        settings=record(
            "name value source origin? variable? commands* fault?",
            value=ANY,
            source=one_of("environment", "file", "default"),
        ),
    ),
    "completion": record("shell place script", shell=one_of("bash", "zsh", "fish")),
    "error": record("code id message hint? path?", code={"type": "integer", "minimum": 1, "maximum": 255}),
}
"""The keys of each document beside `schema`, by its name without `edl-ckpt/` and the version."""

_DEFINITIONS: Final[Mapping[str, Mapping[str, Schema]]] = {
    # The values of a variable: arrays of any rank; a scalar is its value.
    "get": {"array": {"anyOf": [NUMBER, FLAG, list_of({"$ref": "#/$defs/array"})]}},
}
"""What the schema of a document refers to."""

OF_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "verify": ("verify", "verify-all", "verify-failed"),
    **{f"{group} {name}": ("tags" if group == "tag" else group,) for group in GROUPS for name in GROUPS[group][1]},
    "metrics import": ("metrics-import",),
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
