"""The published JSON Schemas are valid and complete; `documents.py` checks every document of the tests against them."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from documents import check_document
from edl_ckpt.cli.catalogue import COMMANDS
from edl_ckpt.cli.render import schemas
from places import GOLDEN, TOP
from program import edl


@pytest.mark.parametrize("name", schemas.all_schemas())
def test_a_schema_is_one(name: str) -> None:
    """Each is a valid schema of the dialect that it names, and the page of documents has exactly its keys."""
    schema = schemas.all_schemas()[name]
    Draft202012Validator.check_schema(schema)
    page = (TOP / "docs/reference/documents.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| \(?`(\w+)`\)? \|", section, re.MULTILINE)} == {*schema["properties"]}
    assert f"| `schema` | `edl-ckpt/{name}/1` |" in section


def test_every_document_has_a_schema() -> None:
    """Whatever document the code of the commands makes has a schema, and no schema is left without a document."""
    named = re.compile(r'(?:"schema": "edl-ckpt/|show_converted\(out, "|written_document\("|document_of\(\s*")([\w-]+)')
    made = {
        name for path in (TOP / "cli").rglob("*.py") for name in named.findall(path.read_text(encoding="utf-8"))
    } | {"get", "head", "sample"}  # render_get makes them
    assert made == {*schemas.all_schemas()}
    assert {name for names in schemas.OF_COMMANDS.values() for name in names} <= made
    assert {*schemas.OF_COMMANDS} <= {*COMMANDS}


def test_schema_command() -> None:
    """`schema COMMAND` prints what fits the command's output; of several documents any one; without one, of all."""
    listed = json.loads(edl("list", GOLDEN / "multi", "--json").stdout)
    for words in (["list"], []):
        schema = json.loads(edl("schema", *words).stdout)
        Draft202012Validator.check_schema(schema)
        assert Draft202012Validator(schema).is_valid(listed)
    schema = json.loads(edl("schema", "verify").stdout)
    assert not Draft202012Validator(schema).is_valid(listed)
    for flags in ([], ["--all"]):
        verified = json.loads(edl("verify", GOLDEN / "multi", *flags, "--json").stdout)
        assert Draft202012Validator(schema).is_valid(verified)
    wrong = edl("schema", "tag", "ad")
    assert wrong.returncode == 10
    assert "tag add" in wrong.stderr


def test_documents_are_checked() -> None:
    """The check of the tests refuses a key without a name, a missing key, and a value of another type."""
    good = {"schema": "edl-ckpt/note/1", "ref": "run@1", "note": ""}
    check_document(good)
    for bad in ({**good, "new": 1}, {"schema": "edl-ckpt/note/1", "ref": "run@1"}, {**good, "note": None}):
        with pytest.raises(AssertionError, match="does not fit its schema"):
            check_document(bad)
