"""Every JSON document that a test makes the program print is checked against its published schema, strictly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from edl_ckpt.cli.render import schemas


def check_printed(arguments: Sequence[str], stdout: str, stderr: str, code: int) -> None:
    """Check what a command printed with --json: documents on stdout, and a failure as the last line on stderr."""
    if "--json" not in arguments or arguments[0] == "schema" or {"--help", "-h"} & {*arguments}:
        return
    for document in _documents(stdout):
        check_document(document)
    last = stderr.splitlines()[-1] if code not in {0, 3} and stderr else ""
    if last.startswith("{"):
        check_document(json.loads(last))


def _documents(text: str) -> list[Any]:
    """Return the documents in what was printed: one, or one on each line; none where it was cut off."""
    try:
        return [json.loads(text)] if text else []
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def check_document(document: Any) -> None:
    """Assert that a document is what its schema says, without a key that the schema does not know."""
    name = document["schema"].removeprefix("edl-ckpt/").rpartition("/")[0]
    errors = [f"{error.json_path}: {error.message}" for error in _validator(name).iter_errors(document)]
    assert not errors, f"{document['schema']} does not fit its schema (tests/docs/schema_documents.py): {errors[:5]}"


@cache
def _validator(name: str) -> Any:
    schema = _strict(schemas.all_schemas()[name])
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def _strict(schema: Any) -> Any:
    """Return a schema that refuses keys without a name: a published one allows what later versions add."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if "properties" in schema else inner
