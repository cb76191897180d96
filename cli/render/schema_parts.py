"""The parts of JSON Schemas: what each key means in all documents, and the objects that several documents contain."""

from __future__ import annotations

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
FINGERPRINT: Final[Schema] = {"type": "string", "pattern": "^edl1:[0-9a-f]{64}$"}
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
            "a address arguments b best code commands dashboard done dtype fault forced format gives hint host id"
            " initializer kept latest layout left left_out location message metric mixture name note origin output"
            " path place platform policy problems purpose python reasons ref restored rules script slice subject table"
            " tag tags to uuid value variable warnings what why words"
        ),
    ),
    (
        FLAG,
        (
            "alive applied dry_run equal in_place installed needed ok proved refused replaced sealed skipped stored"
            " trashed trusted unlocked unread wrote"
        ),
    ),
    (
        COUNT,
        (
            "added bytes_copied bytes_read bytes_written changed columns complete complete_versions deleted"
            " deleted_bytes deletions dim elements exit_code freed_bytes from_ps groups histogram ids_read inf"
            " interrupted_copies least_bytes memory_bytes missing missing_count nan of_elements offset open_bytes"
            " other_bytes overflowed parameters parts peak_memory_bytes pid ps_id ps_num removed resumed_bytes rows"
            " rows_per_shard sampled seed shape shard shards shards_read size_bytes"
            " spilled_bytes state_bytes step tables task_bytes tasks threads to_ps total_versions unchanged value_bytes"
            " values_read variables version versions zeros"
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
    (one_of("complete", "incomplete", "writing", "mixed", "invalid", "unreadable"), "state"),
    (one_of("fine", "weaker", "broken", "unknown"), "verdict"),
    (one_of("direct", "spilled", "grouped"), "strategy"),
    (one_of("variable", "table"), "kind"),
    (one_of("error", "warning"), "severity"),
    (one_of("names", "headers", "ids", "values", "seal"), "check"),
    (one_of("v0", "v1", "v2", "v3", "v4", "mixed"), "generation"),
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
    "version? uuid? ref path state ps_num? shards missing* missing_count size_bytes modified? metrics tags* metadata"
    " fingerprint? note sealed fault? mixture?"
)
CLUSTER: Final = record(
    "address dashboard? workers*", workers=record("name address threads memory_bytes? version", version=TEXT)
)
PARTS: Final = record(
    "strategy groups tasks parts value_bytes values_read ids_read open_bytes memory_bytes spilled_bytes least_bytes"
    " task_bytes times_read"
)
SHARD: Final = record("ps_id path size_bytes variables rows")
STATS_KEYS: Final = "name kind elements minimum? maximum? mean? std? l2? zeros nan inf histogram* edges*"
FINDING: Final = record("severity code shard? path subject offset? message hint check")
SUMMARY_KEYS: Final = "ref version? ps_num generation layout size_bytes parameters shards* variables* tables* metadata"
SUMMARY: Final[Mapping[str, Schema]] = {
    "shards": SHARD,
    "variables": record("name dtype shape* size_bytes shard"),
    "tables": record("name dim dtype? initializer? rows rows_per_shard* size_bytes"),
}
RESULT_KEYS: Final = "ref ok level findings* fingerprint? bytes_read sealed shards shards_read ids_read checks*"
RESULT: Final[Mapping[str, Schema]] = {
    "findings": FINDING,
    "ids_read": FLAG,
    "checks": record("name seconds", name=FINDING["properties"]["check"]),
}
WRITTEN_KEYS: Final = (
    "ref output from_ps? to_ps version size_bytes bytes_read bytes_written rows seconds? peak_memory_bytes?"
    " fingerprint? shards* forced?"
)
PLANNED_KEYS: Final = "(layout) (skew) (warnings*) (cluster?) (parts?)"
WRITTEN: Final[Mapping[str, Schema]] = {"shards": SHARD, "cluster": CLUSTER, "parts": PARTS}
ROWS_KEYS: Final = "ref table rows* missing* dtype? dim bytes_read"
ROWS: Final[Mapping[str, Schema]] = {"rows": record("id vector*", id=INTEGER), "missing": INTEGER}
USED: Final = record("name size_bytes")
