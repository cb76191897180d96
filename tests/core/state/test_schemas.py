"""Every schema that was released is still read: `tests/data/schemas` has one location with a file of each."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from checkpoints import at, numbers
from edl_ckpt.core import list_versions, recover, undo, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.commit.deletion.records import RECORD_SCHEMA
from edl_ckpt.core.commit.journal import DELETIONS_SCHEMA, JOURNAL_SCHEMA, parse_journals
from edl_ckpt.core.operations.prune.plan_file import PLAN_SCHEMA, read_plan
from edl_ckpt.core.state.document import NEWEST, is_newer, parse_document
from edl_ckpt.core.state.index import INDEX_SCHEMA, parse_index
from edl_ckpt.core.state.managed import read_managed
from edl_ckpt.core.state.metadata import LOCATION_SCHEMA, VERSION_SCHEMA
from edl_ckpt.core.state.seal import SEAL_SCHEMA
from edl_ckpt.core.state.shard_note import NOTE_SCHEMA, note_names, read_note
from edl_ckpt.core.state.verdicts import VERDICTS_SCHEMA, parse_verdicts
from edl_ckpt.core.storage import open_store

DATA = Path(__file__).parents[2] / "data/schemas"
WRITTEN = (
    VERSION_SCHEMA, LOCATION_SCHEMA, SEAL_SCHEMA, NOTE_SCHEMA, JOURNAL_SCHEMA, DELETIONS_SCHEMA, RECORD_SCHEMA,
    PLAN_SCHEMA, INDEX_SCHEMA, "edl-ckpt/manager/1", VERDICTS_SCHEMA,
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of the location, whose commands were all killed long ago."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "run", run)
    for owner in run.rglob("owner.json"):
        os.utime(owner, (1, 1))
    return run


def test_the_newest_schemas_are_known() -> None:
    """No schema that this program writes is newer than what it reads, and the next number of each is."""
    for schema in WRITTEN:
        kind, _, number = schema.rpartition("/")
        assert not is_newer(schema)
        assert is_newer(f"{kind}/{int(number) + 1}")
    assert {f"edl-ckpt/{kind}/{number}" for kind, number in NEWEST.items()} <= set(WRITTEN)


def test_every_schema_has_a_file() -> None:
    """A new number of a schema needs a file here: all that were ever written are in the directory."""
    text = b"\n".join(path.read_bytes() for path in DATA.rglob("*.json")).decode("latin-1")
    assert set(WRITTEN) <= set(re.findall(r"edl-ckpt/[a-z-]+/[0-9]+", text))
    assert "edl-ckpt/seal/1" in text


def test_verdicts() -> None:
    """Verdicts of the first schema are read."""
    (found,) = parse_verdicts((DATA / "verdicts.json").read_bytes())
    assert (found.name, found.verdict.level, found.verdict.first) == ("version-100", "deep", "checksum of user")


def test_versions(run: Path) -> None:
    """Metadata, both schemas of seals and the policy are read, and the bytes are those that were sealed."""
    listing = list_versions(str(run))
    assert [(v.version, v.metrics, v.tags, bool(v.fingerprint)) for v in listing.versions] == [
        (10, {}, (), True),
        (20, {"auc": 0.5}, ("serving",), True),
    ]
    assert listing.versions[1].metadata == {"lr": 0.1}
    assert (listing.modes, listing.interrupted_copies) == ({"auc": "max"}, (40,))
    assert not any("newer" in problem or "damaged" in problem for problem in listing.problems)
    for version in listing.versions:
        assert verify_version(version, level="deep").ok


def test_what_managers_and_servers_wrote(run: Path) -> None:
    """The memory of managers and the notes of servers are read; of one without a digest, only the name of its run."""
    store = open_store(str(run))
    managed = read_managed(store)
    assert managed is not None
    assert (dict(managed.saved), managed.latest) == ({10: 1.0, 20: 2.0}, 20)
    old, new = (read_note(store, 30, name) for name in sorted(note_names(store, 30), key=str))
    assert old is not None
    assert new is not None
    assert (old.run, old.has_sums, new.run, new.has_sums) == ("job", False, "job", True)
    assert (len(new.chunks), list(new.variables)) == (1, ["bias"])


def test_recovery(run: Path) -> None:
    """The journals of dead commands are settled, the copy stays, and the deleted version comes back."""
    done = recover(str(run))
    assert [text.partition(";")[0] for text in done.done][:2] == ["rolled back the replacement of version 20"] * 2
    assert (len(done.kept), done.left) == (1, ())
    undo(str(run))
    assert numbers(run) == [5, 10, 20]
    assert verify_version(at(run, 5), level="deep").ok


def test_files_beside_a_location() -> None:
    """A journal of deletions, an index and a plan are read."""
    (deletion,) = parse_journals((DATA / "deletions.json").read_bytes())
    assert (deletion.version, deletion.deletes) == (20, ("variables-0-of-2.ckpt",))
    assert parse_index((DATA / "index.json").read_bytes()).names() == {"20.json", "20.seal.json"}
    assert [entry.version for entry in read_plan(DATA / "plan.json").deletions] == [10]


@pytest.mark.parametrize(
    "data",
    [
        b'{"schema": "edl-ckpt/journal/2"}',
        b'{"a": 1, "schema": "edl-ckpt/journal/999999999"}',
        b'\n {"schema" : "edl-ckpt/seal/3", "chunks": ' + b"[" * 5000,
        b'{"schema": "edl-ckpt/meta/2"}\nbytes that are no JSON',
        b'{"schema": "edl-ckpt/location/2", "x": "' + b"x" * (1 << 22) + b'"}',
        b'{"schema": "edl-ckpt/what-is-to-come/2"}',
    ],
)
def test_a_newer_document(data: bytes) -> None:
    """A document of a newer schema is named as that, also when it is beyond the bounds of this program."""
    message = r"x.json: written by a newer edl-ckpt \(schema edl-ckpt/[a-z-]+/[0-9]+\); upgrade"
    with pytest.raises(UnsupportedError, match=message):
        parse_document(data, "x.json")


@pytest.mark.parametrize("schema", ["edl-ckpt/seal/2", "edl-ckpt/seal/02", "edl-ckpt/seal/", "other/seal/9", 9, None])
def test_no_newer_document(schema: object) -> None:
    """What this program writes, and what is no schema of ours, is read as ever."""
    document = {"schema": schema}
    assert parse_document(json.dumps(document).encode(), "x.json") == document
