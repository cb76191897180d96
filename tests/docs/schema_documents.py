"""JSON Schemas of all documents that commands print: `edl-ckpt schema`, `docs/schemas/`.

First what each key means in all documents, and the objects that several documents contain; then the documents. A key
that is not marked as optional is always there. A schema allows other keys, because documents gain keys; the tests
refuse them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
FINGERPRINT: Final[Schema] = {"type": "string", "pattern": "^edl1:[0-9a-f]{64}([+][0-9a-f]{32})?$"}
NUMBER: Final[Schema] = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
KEY: Final[Schema] = {"type": ["integer", "string"]}
"""What names a version in its location: its number, or its UUID."""
ANY: Final[Schema] = {}


def list_of(items: Schema) -> Schema:
    """Describe a list, by what each of its items is."""
    return {"type": "array", "items": items}


def one_of(*texts: str) -> Schema:
    """Describe a text that is one of a few."""
    return {"enum": list(texts)}


def map_of(values: Schema) -> Schema:
    """Describe an object whose keys are names, by what each of its values is."""
    return {"type": "object", "additionalProperties": values}


_KINDS: Final = (
    (
        TEXT,
        (
            "a address arguments b best code command commands companion_of dashboard done dtype fault forced format"
            " gives hint host id initializer judged_with kept lacks latest layout left left_out location message metric"
            " mixture name note origin output path place platform policy problems purpose python reasons ref restored"
            " rules script slice slot subject system table tag tags title to uuid value variable warnings what why"
            " suspect torch_location words work would"
        ),
    ),
    (
        FLAG,
        (
            "alive applied dry_run equal in_place installed needed ok proved reads refused replaced sealed skipped"
            " stored trashed trusted unlocked unread writes wrote"
        ),
    ),
    (
        COUNT,
        (
            "added bound bytes_copied bytes_read bytes_written changed columns complete count complete_versions deleted"
            " deleted_bytes deletions dim elements exit_code freed_bytes from_ps groups histogram ids_read inf"
            " interrupted_copies least_bytes left_out_bytes memory_bytes missing missing_count nan of_elements"
            " offset open_bytes other_bytes overflowed parameters parts peak_memory_bytes pid ps_id ps_num"
            " removed resumed_bytes rows rows_per_shard sampled seed shape shard shards shards_read size_bytes"
            " spilled_bytes state_bytes step tables task_bytes tasks threads to_ps torch_steps total_versions unchanged"
            " value_bytes values_read variables version versions zeros"
        ),
    ),
    (INTEGER, "elasticdl_version ids steps_without_version versions_without_metrics"),
    (SECONDS, "seconds silent_seconds waited_seconds"),
    (TIME, "at made modified"),
    (FINGERPRINT, "fingerprint fingerprint_a fingerprint_b"),
    (
        NUMBER,
        "cosine edges histogram_edges l2 max_abs maximum mean minimum relative skew std times_read tolerance vector",
    ),
    (KEY, "moved_from"),
    (ANY, "document since"),
    (map_of(ANY), "metadata"),
    (map_of(NUMBER), "metrics"),
    (map_of(one_of("max", "min")), "modes"),
    (one_of("max", "min"), "mode"),
    (one_of("keep", "delete"), "action"),
    (one_of("complete", "incomplete", "writing", "mixed", "invalid", "unreadable", "damaged", "suspect"), "state"),
    (one_of("fine", "weaker", "broken", "unknown"), "verdict"),
    (one_of("direct", "spilled", "grouped"), "strategy"),
    (one_of("variable", "table"), "kind"),
    (one_of("error", "warning"), "severity"),
    (one_of("names", "headers", "ids", "values", "seal"), "check"),
    (one_of("v0", "v1", "v2", "v3", "v4", "mixed", ""), "generation"),
    (one_of("quick", "default", "deep"), "level"),
    (one_of("equal", "changed", "added", "removed"), "status"),
)
_MEANINGS: Final[Mapping[str, Schema]] = {key: schema for schema, keys in _KINDS for key in keys.split()}
"""What each key means wherever a document has it; one whose meaning depends on the document is given with that."""
_WORD: Final = re.compile(r"(\()?(\w+)(\*)?(\?)?\)?")


def record(keys: str, **own: Schema) -> Schema:
    """Describe an object by its keys, in their order; `own` has what some of them mean only here.

    `key?` may be null, `key*` is a list, and `(key)` is not always there.

    >>> record("(why) tags*")
    {'type': 'object', 'required': ['tags'], 'properties': {'why': {'type': 'string'}, 'tags': {'type': 'array', \
'items': {'type': 'string'}}}}
    """
    properties, required = {}, []
    for optional, key, many, nullable in _WORD.findall(keys):
        found = own[key] if key in own else _MEANINGS[key]
        found = list_of(found) if many else found
        properties[key] = {"anyOf": [found, {"type": "null"}]} if nullable else found
        required += [] if optional else [key]
    return {"type": "object", "required": required, "properties": properties}


FACT: Final = record("name value verdict why")
FAILURE_KEYS: Final = "ref code id message"
FAILURE: Final = record(FAILURE_KEYS, code=COUNT)
VERSION_KEYS: Final = (
    "version? uuid? name? ref path state ps_num? shards missing* missing_count size_bytes modified? metrics tags*"
    " metadata fingerprint? note sealed verdict? fault? mixture? system lacks* suspect*"
)
VERDICT: Final = record("level ok at? errors first", errors=COUNT, first=TEXT)
CLUSTER: Final = record(
    "address dashboard? workers*", workers=record("name address threads memory_bytes? version", version=TEXT)
)
PARTS: Final = record(
    "strategy groups tasks parts value_bytes values_read ids_read open_bytes memory_bytes spilled_bytes least_bytes"
    " task_bytes times_read"
)
SHARD: Final = record("ps_id path size_bytes variables rows")
LOST: Final = record(
    "shards* tables* variables* is_named",
    shards=record("shard? path message code offset?"),
    tables=record("name rows? total? share? (is_exact)", total=COUNT, share=NUMBER, is_exact=FLAG),
    variables=TEXT,
    is_named=FLAG,
)
STATS_KEYS: Final = "name kind elements minimum? maximum? mean? std? l2? zeros nan inf histogram* edges*"
FINDING: Final = record("severity code shard? path subject offset? message hint check ids* count?")
SUMMARY_KEYS: Final = (
    "ref version? ps_num generation layout size_bytes parameters shards* variables* tables* metadata"
    " (file_metadata) system items*"
    " lacks*"
)
SUMMARY: Final[Mapping[str, Schema]] = {
    "shards": SHARD,
    "variables": record("name dtype shape* size_bytes shard"),
    "tables": record("name dim dtype? initializer? rows rows_per_shard* size_bytes companion_of slot (title)"),
    "items": record("name kind size_bytes shard", kind=TEXT),
    "file_metadata": map_of(map_of(TEXT)),
}
RESULT_KEYS: Final = (
    "ref ok? state suspect* path level findings* fingerprint? bytes_read sealed shards shards_read ids_read checks*"
    " checksums uncompared* unread_files* (sample) (loader) (like) (against) (newer*) (fallback?)"
)
FALLBACK: Final = record("ref path level why command")
RESULT: Final[Mapping[str, Schema]] = {
    "newer": record("ref state"),
    "fallback": FALLBACK,
    "findings": FINDING,
    "ids_read": FLAG,
    "checks": record("name seconds", name=FINDING["properties"]["check"]),
    "checksums": COUNT,
    "like": TEXT,
    "against": record(
        "path names equal differing* missing* others",
        names=COUNT,
        equal=COUNT,
        differing=TEXT,
        missing=TEXT,
        others=COUNT,
    ),
    "uncompared": TEXT,
    "unread_files": TEXT,
    "sample": record("percent seed", percent=NUMBER, seed=COUNT),
    "loader": record(
        "system world_size tables*",
        world_size=COUNT,
        tables=record(
            "name rows restored dropped twice misrouted ids*",
            **dict.fromkeys(("restored", "dropped", "twice", "misrouted"), COUNT),
            ids=INTEGER,
        ),
    ),
}
WRITTEN_KEYS: Final = (
    "ref output from_ps? to_ps version? size_bytes bytes_read bytes_written rows seconds? peak_memory_bytes?"
    " fingerprint? shards* forced? checksums items left_out* source? system dropped* untouched* overflowed"
    " resumed_bytes needed dry_run"
)
PLANNED_KEYS: Final = "(in_place) (layout) (skew) (warnings*) (cluster?) (parts?)"
COMPARED: Final = record("compared not_compared names*", compared=COUNT, not_compared=COUNT, names=TEXT)
ITEMS: Final = record("proved carried left_out", **dict.fromkeys(("proved", "carried", "left_out"), COUNT))
LEFT_OUT: Final = record("name rows size_bytes reason kind", reason=TEXT, kind=TEXT)
WRITTEN: Final[Mapping[str, Schema]] = {
    "shards": SHARD,
    "checksums": COMPARED,
    "cluster": CLUSTER,
    "parts": PARTS,
    "items": ITEMS,
    "left_out": LEFT_OUT,
    "dropped": LEFT_OUT,
    "source": TEXT,
    "untouched": record("name fingerprint", fingerprint=TEXT),
}
ROWS_KEYS: Final = "ref table rows* missing* dtype? dim bytes_read (lost) (unread*)"
ROWS: Final[Mapping[str, Schema]] = {
    "rows": record("id vector*", id=INTEGER),
    "missing": INTEGER,
    "lost": LOST,
    "unread": INTEGER,
}
USED: Final = record("name size_bytes")

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_DOCUMENTS: Final[Mapping[str, Schema]] = {
    "list": record(
        "locations* (experiment)",
        locations=record(
            "location layout? versions* modes interrupted_copies* interrupted_moves* foreign* bound",
            versions=record(VERSION_KEYS, verdict=VERDICT),
            interrupted_moves=record("version work size_bytes", version=KEY),
            foreign=record("name elasticdl_version?"),
        ),
        experiment=record(
            "location metric? mode? best? trials*",
            trials=record("name location versions complete size_bytes latest? best? value? fault?", value=NUMBER),
        ),
    ),
    "inspect": record(f"{SUMMARY_KEYS} (stats*) (lost)", **SUMMARY, stats=record(STATS_KEYS), lost=LOST),
    "report": record(
        "location made seed layout? total_versions complete_versions size_bytes versions* best retention? opened*"
        " newest? tensors* drift* problems* left_out* bytes_read unread",
        versions=record(f"{VERSION_KEYS} action? reasons*", verdict=VERDICT),
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
    "verify-all": record(
        "location ok results* failed* fallback?",
        results=record(RESULT_KEYS, **RESULT),
        failed=FAILURE,
        fallback=FALLBACK,
    ),
    "verify-newest": record(
        "location ok ref? path? level passed_over* results* failed*",
        passed_over=record("ref state why"),
        results=record(RESULT_KEYS, **RESULT),
        failed=FAILURE,
    ),
    "reshard": record(f"{WRITTEN_KEYS} {PLANNED_KEYS}", **WRITTEN),
    "edit": record(f"{WRITTEN_KEYS} {PLANNED_KEYS}", **WRITTEN),
    "import": record(f"{WRITTEN_KEYS} {PLANNED_KEYS}", **WRITTEN),
    "copy": record(
        "copied* bytes_copied seconds? (failed*) dry_run (cluster?)",
        copied=record(
            "ref to size_bytes fingerprint? skipped (resumed_bytes) (forced?) (refused) (why) (checksums) (items)",
            checksums=COMPARED,
            items=ITEMS,
        ),
        failed=FAILURE,
        cluster=CLUSTER,
    ),
    "export": record(
        "ref output format files* variables tables rows fingerprint? seconds? overflowed proved forced? dry_run"
        " (value_bytes) bytes_read (cluster?) (errors*) partial lost (checksums) left_out* items"
        " source size_bytes? bytes_written peak_memory_bytes? dropped*",
        checksums=COMPARED,
        left_out=LEFT_OUT,
        dropped=LEFT_OUT,
        source=TEXT,
        items=ITEMS,
        errors=record("name greatest mean", greatest=NUMBER),
        partial=FLAG,
        lost=LOST,
        files=record("path size_bytes?"),
        cluster=CLUSTER,
    ),
    "prune": record(
        "plan* deleted freed_bytes applied trashed policy* warnings* failed* stripped*",
        stripped=record("ref size_bytes left_out_bytes fingerprint? items left_out*", items=ITEMS, left_out=LEFT_OUT),
        plan=record("ref version? action reasons* size_bytes state path"),
        failed=record(f"{FAILURE_KEYS} path?", code=COUNT),
    ),
    "wait": record(
        "ref? version? state waited_seconds location path? metrics why? unfinished*",
        state=one_of("complete", "timed-out", "stalled"),
        unfinished=record("ref version? why"),
    ),
    "watch": record(
        "event ref at location version? path ps_num? shards size_bytes shard? replaced fingerprint? why?",
        event=one_of("new-version", "shard-arrived", "complete", "stalled", "corrupt", "sealed", "deleted"),
        shard=record("ps_id path size_bytes"),
    ),
    "demo": record(
        "location ps_num versions* torch_location torch_steps* commands*",
        commands=record("arguments* exit_code document"),
    ),
    "undo": record("location restored*"),
    "recover": record("location done* kept* left* (would*)"),
    "repair": record(
        "ref source replaced* proof? forced? fingerprint? seconds dry_run items",
        source=TEXT,
        items=ITEMS,
        replaced=record("shard path size_bytes reason kept? from", **{"from": TEXT, "kept": TEXT, "reason": TEXT}),
        proof=TEXT,
    ),
    "unlock": record("location unlocked holders*", holders=record("pid? host? since? purpose? alive? silent_seconds?")),
    "diff": record(
        "a b equal tolerance variables* tables* items* metadata* not_compared* fingerprint_a fingerprint_b"
        " histogram_edges*",
        items=record("name kind status", kind=TEXT),
        metadata=TEXT,
        not_compared=TEXT,
        variables=record("name status max_abs? l2? relative? cosine? what"),
        tables=record(
            "name status added removed changed unchanged max_abs? l2? relative? top* histogram* what (rows*)",
            top=record("id l2 max_abs", id=INTEGER),
            rows=record("id status l2?", id=INTEGER, status=one_of("changed", "added", "removed")),
        ),
    ),
    "get": record(
        "ref (table) (rows*) (missing*) dtype? (dim) (bytes_read) (nearest*) (columns*) (variable) (shape*) (slice)"
        " (values) (lost) (unread*)",
        **ROWS,
        nearest=record("id neighbours*", id=INTEGER, neighbours=record("id cosine", id=INTEGER)),
        values={"$ref": "#/$defs/array"},
    ),
    "head": record(ROWS_KEYS, **ROWS),
    "sample": record(ROWS_KEYS, **ROWS),
    "ids": record("ref table rows (lost) ids*", lost=LOST),
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
    "policy": record("location policy? words* layout?", policy=map_of(ANY)),
    "systems": record("systems*", systems=record("name title reads writes judged_with*")),
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
    "completion": record(
        "shell place script changed? next?", changed=FLAG, next=TEXT, shell=one_of("bash", "zsh", "fish")
    ),
    "error": record("code id message hint? path?", code={"type": "integer", "minimum": 1, "maximum": 255}),
}
"""The keys of each document beside `schema`, by its name without `edl-ckpt/` and the version."""

_DEFINITIONS: Final[Mapping[str, Mapping[str, Schema]]] = {
    # The values of a variable: arrays of any rank; a scalar is its value.
    "get": {"array": {"anyOf": [NUMBER, FLAG, list_of({"$ref": "#/$defs/array"})]}},
}
"""What the schema of a document refers to."""


def make() -> str:
    """Return the text of `cli/render/schemas.json`: the JSON Schema of every document by its name."""
    return json.dumps({name: schema_of(name) for name in _DOCUMENTS}, indent=1) + "\n"


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
