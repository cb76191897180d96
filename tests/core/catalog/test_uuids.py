"""Versions in directories named by a UUID, as Determined names its checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from checkpoints import at, files_of, save_small
from determined_storage import BARE, DIGITS, ONE, TWO, fill, put
from edl_ckpt.core import (
    Guards,
    Latest,
    Location,
    Policy,
    State,
    add_tag,
    execute_copy,
    free_target,
    import_checkpoint,
    list_versions,
    open_checkpoint,
    plan_copy,
    plan_prune,
    prune,
    remove_own_shard,
    reshard_version,
    set_metrics,
    undo,
    verify_and_seal,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.elasticdl.loader import listed_crashes, mistaken
from reporters import Recorder
from s3_fixtures import Bucket


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Return Determined's storage with three checkpoints."""
    return fill(tmp_path / "storage")


def known(location: Path | str) -> list[tuple[int | None, str, str]]:
    """Return the number, the UUID and the state of each version."""
    return [(v.number, v.uuid, v.state.value) for v in list_versions(str(location)).versions]


def test_listing(storage: Path) -> None:
    """Each checkpoint is a complete version whatever else is in its directory; one without a number comes first."""
    assert known(storage) == [(None, BARE, "complete"), (100, ONE, "complete"), (200, TWO, "complete")]
    assert at(storage, ONE).metadata == {"steps_completed": 100, "trial": 7, "loss": "NaN"}
    assert at(storage, ONE).ref == f"{storage}@{ONE}"
    (storage / TWO / "variables-1-of-2.ckpt").unlink()
    assert at(storage, TWO).state is State.WRITING
    assert at(storage).uuid == ONE


def test_directories_of_others(storage: Path) -> None:
    """A UUID without shards, or in capitals, is no version: others use such names too."""
    (storage / DIGITS).mkdir()
    (storage / DIGITS / "weights.pt").touch()
    (storage / ONE).rename(storage / ONE.upper())
    assert [uuid for _, uuid, _ in known(storage)] == [BARE, TWO]
    assert {f.name for f in list_versions(str(storage)).foreign} == {DIGITS, ONE.upper()}


@pytest.mark.parametrize(
    ("word", "uuid"),
    [(ONE, ONE), (ONE[:10], ONE), (BARE[:4], BARE), (BARE[:4].upper(), BARE), (100, ONE), ("latest", TWO)],
)
def test_references(storage: Path, word: int | str, uuid: str) -> None:
    """The whole UUID, a start of it that is unique, its number, and the directory's own path name a checkpoint."""
    assert at(storage, word).uuid == uuid
    assert at(storage / uuid).uuid == uuid


def test_wrong_references(storage: Path) -> None:
    """A start that several have, or that is too short, and a number that several have, are errors that name them."""
    with pytest.raises(UsageError, match=f"2 versions have a UUID that begins with '4f8a': {ONE}, {TWO}"):
        at(storage, "4f8a")
    with pytest.raises(NotFoundError):
        at(storage, "aaa")
    put(storage, DIGITS, 200)
    with pytest.raises(UsageError, match="version 200 exists twice") as caught:
        at(storage, 200)
    assert (caught.value.hint or "").startswith("name one by its UUID")
    assert at(storage, 12345678).uuid == DIGITS


def test_numbers_win(storage: Path) -> None:
    """Beside a version directory of the same number, the number names that one, and so does latest."""
    save_small(storage, 200)
    assert (at(storage, 200).uuid, at(storage).uuid) == ("", "")
    assert at(storage, TWO).uuid == TWO


WRONG: dict[str, str | bytes] = {
    "text": "not json",
    "list": "[]",
    "true": '{"steps_completed": true}',
    "negative": '{"steps_completed": -5}',
    "fraction": '{"steps_completed": 1.5}',
    "huge number": '{"steps_completed": 1' + "0" * 30 + "}",
    "endless number": '{"steps_completed": ' + "9" * 5000 + "}",
    "deep": '{"a":' * 5000,
    "large": '{"a": "' + "x" * (1 << 20) + '"}',
    "bytes": b"\xff\xfe",
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_hostile_metadata(storage: Path, case: str) -> None:
    """Whatever is in metadata.json, the checkpoint is listed without a number, and the others as they are."""
    content = WRONG[case]
    (storage / ONE / "metadata.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert set(known(storage)) == {(None, ONE, "complete"), (None, BARE, "complete"), (200, TWO, "complete")}
    assert at(storage).uuid == TWO


@pytest.mark.parametrize("kind", ["absent", "pipe", "link", "directory", "locked"])
def test_odd_metadata(storage: Path, tmp_path: Path, kind: str) -> None:
    """A metadata.json that is no file stops nothing; a link to one is followed, as links among versions are."""
    path = storage / ONE / "metadata.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "there.json").write_text('{"steps_completed": 9}')
        path.symlink_to(tmp_path / "there.json")
    elif kind == "directory":
        path.mkdir()
    elif kind == "locked":
        path.symlink_to(path.name)
    number = {v.uuid: v.number for v in list_versions(str(storage)).versions}[ONE]
    assert number == (9 if kind == "link" else None)


def test_linked_directory(storage: Path, tmp_path: Path) -> None:
    """A link to a checkpoint of the storage, as people put it into a directory of their own, is a version there."""
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / ONE).symlink_to(storage / ONE)
    assert known(tmp_path / "trial") == [(100, ONE, "complete")]


def test_reads(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing reads one small file for each checkpoint with a UUID, and none for the others."""
    from edl_ckpt.core.storage.local import LocalReader

    opened: list[str] = []
    whole = LocalReader.__init__

    def noted(self: LocalReader, path: str) -> None:
        opened.append(path)
        whole(self, path)

    monkeypatch.setattr(LocalReader, "__init__", noted)
    save_small(storage, 1, 2, 3, sealed=False)
    opened.clear()
    list_versions(str(storage))
    assert sorted(opened) == sorted(f"{storage}/{uuid}/metadata.json" for uuid in (ONE, TWO, BARE))


def test_s3(storage: Path, s3: Bucket) -> None:
    """On S3 a listing is one request for the names and one for each metadata.json; a copy brings a checkpoint home."""
    s3.upload(storage)
    for key in (f"run/{ONE}/", f"run/{ONE}/code/"):  # as Determined and the console of S3 write directories
        s3.put(key, b"")
    s3.proxy.reset()
    assert known(s3.url) == [(None, BARE, "complete"), (100, ONE, "complete"), (200, TWO, "complete")]
    assert (s3.proxy.count("list"), s3.proxy.count("get"), s3.proxy.count()) == (1, 3, 4)
    execute_copy(plan_copy([at(s3.url, ONE)], storage.parent / "home"))
    assert verify_version(at(storage.parent / "home", 100), level="deep").ok


def test_scan(storage: Path) -> None:
    """Beside versions that ElasticDL reads, its scan crashes on a UUID, or takes its digits for a version."""
    assert listed_crashes(list_versions(str(storage))) == []
    save_small(storage, 7)
    put(storage, DIGITS, 400)
    listing = list_versions(str(storage))
    with pytest.raises(ValueError, match="invalid literal"):
        elasticdl_rules.latest_valid(storage)
    assert listed_crashes(listing) == [ONE, TWO, BARE]
    assert mistaken(listing) == [(DIGITS, 446655440000)]
    found = {f.subject for f in verify_version(at(storage, 7)).findings if f.code == "scan-crash"}
    assert found == {ONE, TWO, BARE, f"{DIGITS}/metadata.json", f"{DIGITS}/code"}
    warned = [free_target(Location(str(storage)), 8, layout=name).warnings for name in ("design", "elasticdl")]
    assert ["named by UUIDs" in " ".join(warnings) for warnings in warned] == [False, True]


def test_read_everywhere(storage: Path) -> None:
    """A checkpoint of Determined is verified and read as any other; its number need not be that of its shards."""
    put(storage, DIGITS, 7, {"steps_completed": 500})
    assert verify_version(at(storage, DIGITS), level="deep").findings == ()
    with open_checkpoint(at(storage, DIGITS)) as checkpoint:
        assert checkpoint.table_names == ["t"]


def test_copy(storage: Path, tmp_path: Path) -> None:
    """A copy is the download: a version with the number, in the layout of the shards' names, with all metadata."""
    set_metrics(at(storage, ONE), {"auc": 0.7})
    add_tag(at(storage, ONE), "good")
    execute_copy(plan_copy([at(storage, ONE)], tmp_path / "home"))
    copy = at(tmp_path / "home", "good")
    assert (copy.path, copy.metrics) == (f"{tmp_path}/home/version-100", {"auc": 0.7})
    assert copy.metadata == {"steps_completed": 100, "trial": 7, "loss": "NaN"}
    assert {p.name for p in Path(copy.path).iterdir()} == {"variables-0-of-2.ckpt", "variables-1-of-2.ckpt"}
    assert elasticdl_rules.latest_valid(tmp_path / "home") == "version-100"
    assert execute_copy(plan_copy([at(storage, ONE)], tmp_path / "home")).copied[0].skipped
    for suffix in (storage / TWO).glob("*.ckpt"):
        suffix.rename(suffix.with_suffix(".chkpt"))
    execute_copy(plan_copy([at(storage, TWO)], tmp_path / "design"))
    assert at(tmp_path / "design").layout.name == "design"
    with pytest.raises(RefusedError, match="a copy keeps its uuid layout"):
        execute_copy(plan_copy([at(storage, TWO)], tmp_path / "home"))


def test_copy_of_all_files(storage: Path, tmp_path: Path) -> None:
    """Code, configuration and metadata come along, as they are, where no scan sees them; links and pipes do not."""
    directory, home, warned = storage / ONE, tmp_path / "home", Recorder()
    (directory / "code/deep/er").mkdir(parents=True)
    (directory / "code/deep/er/a b\n.bin").write_bytes(bytes(range(256)) * 300)
    (directory / "code/empty").touch()
    (tmp_path / "secret").write_text("not of the checkpoint")
    (directory / "code/link").symlink_to(tmp_path / "secret")
    (directory / "code/loop").symlink_to(directory)
    before = {p.relative_to(directory): p.read_bytes() for p in sorted(directory.rglob("*")) if _is_own(p)}
    for _ in range(2):  # the second finds all of it there
        execute_copy(plan_copy([at(storage, ONE)], home), reporter=warned)
        kept = home / ".edl-ckpt-0/files-0" / ONE
        assert {p.relative_to(kept): p.read_bytes() for p in sorted(kept.rglob("*")) if p.is_file()} == before
    assert sum("not copied" in line for line in warned.warnings) == 4
    assert elasticdl_rules.latest_valid(home) == "version-100"
    assert list_versions(home).foreign == ()
    assert verify_version(at(home, 100), level="deep").findings == ()
    (kept / "code/empty").write_bytes(b"other")
    execute_copy(plan_copy([at(storage, ONE)], home))
    assert (kept / "code/empty").read_bytes() == b""
    execute_copy(plan_copy([at(home, 100)], tmp_path / "plain"))  # a version with a number has no others
    assert not (tmp_path / "plain/.edl-ckpt-0/files-0").exists()


def _is_own(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.suffix != ".ckpt" and "loop" not in path.parts


def test_other_files_never_lead_outside(storage: Path, tmp_path: Path, s3: Bucket) -> None:
    """Keys of S3 may be any text: those with '..' are left out; a link at the target is not written through."""
    s3.upload(storage)
    for key in ("../../../../evil", "code/../../../evil", "code//evil", "./evil"):
        s3.put(f"run/{ONE}/{key}", b"evil")
    home, warned = tmp_path / "one/two/home", Recorder()
    home.parent.mkdir(parents=True)
    execute_copy(plan_copy([at(s3.url, ONE)], home), reporter=warned)
    assert not [path for path in tmp_path.rglob("*evil*") if "run" not in path.parts]
    assert sum("not copied" in line for line in warned.warnings) == 4
    copied = home / ".edl-ckpt-0/files-0" / ONE
    assert (copied / "metadata.json").read_bytes() == (storage / ONE / "metadata.json").read_bytes()
    assert verify_version(at(home, 100), level="deep").ok
    back = f"{s3.url}-back"
    execute_copy(plan_copy([at(storage, TWO)], back))
    assert s3.get(f"run-back/.edl-ckpt-0/files-0/{TWO}/code/model_def.py") == b""
    assert verify_version(at(back, 200), level="deep").ok
    other = tmp_path / "other"
    (other / ".edl-ckpt-0/files-0").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (other / ".edl-ckpt-0/files-0" / TWO).symlink_to(tmp_path / "outside")
    with pytest.raises(EdlCkptError, match=TWO):
        execute_copy(plan_copy([at(storage, TWO)], other))
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("content", ['{"steps_completed": 100, "a": ' + "[" * 31 + "]" * 31 + "}", "long"])
def test_copy_of_much_metadata(storage: Path, tmp_path: Path, content: str) -> None:
    """Metadata that is too deep or too long for a document of ours stays behind; the copy can be read."""
    if content == "long":
        content = json.dumps({"steps_completed": 100, "a": "x" * 100_000})
    (storage / ONE / "metadata.json").write_text(content)
    assert (at(storage, ONE).number, at(storage, ONE).metadata) == (100, {})
    set_metrics(at(storage, ONE), {"auc": 0.5})
    execute_copy(plan_copy([at(storage, ONE)], tmp_path / "home"))
    assert (at(tmp_path / "home").metadata_fault, at(tmp_path / "home").metrics) == ("", {"auc": 0.5})


def test_copy_needs_a_number(storage: Path, tmp_path: Path) -> None:
    """A checkpoint without a number, or with another one in its shards, is not copied: the hint's import writes it."""
    put(storage, DIGITS, 7, {"steps_completed": 500})
    for uuid, fault in ((BARE, "its number is not known"), (DIGITS, "Determined's number is 500, and the shards have")):
        with pytest.raises(RefusedError, match=fault):
            execute_copy(plan_copy([at(storage, uuid)], tmp_path / "home"))
        assert known(tmp_path / "home") == [] if (tmp_path / "home").exists() else True
    import_checkpoint(at(storage, BARE), tmp_path / "home", 5, 2)
    reshard_version(at(storage, DIGITS), 3, output=tmp_path / "home")
    assert [number for number, _, _ in known(tmp_path / "home")] == [5, 500]
    assert all(verify_version(v).ok for v in list_versions(tmp_path / "home").versions)


def _refusals(version: Version) -> dict[str, Any]:
    return {
        "reshard": lambda: reshard_version(version, 3),
        "seal": lambda: verify_and_seal(version),
        "delete": lambda: prune([version.location], Policy(), guards=Guards(delete=(version.version,))),
    }


@pytest.mark.parametrize("how", ["reshard", "seal", "delete"])
def test_left_to_determined(storage: Path, how: str) -> None:
    """No command of ours replaces, seals or deletes a directory with a UUID: Determined keeps a record of it."""
    before = files_of(storage)
    with pytest.raises(EdlCkptError):
        _refusals(at(storage, ONE))[how]()
    assert files_of(storage) == before


def test_prune_beside(storage: Path) -> None:
    """A prune leaves UUIDs alone, and does not count them: the newest version with a number stays."""
    save_small(storage, 1, 2, 3, 4)
    set_metrics(at(storage, ONE), {"auc": 1.0})
    plan = plan_prune([storage], Policy((Latest(1),)))
    assert [(e.version, e.action.value) for e in plan.entries] == [
        (1, "delete"), (2, "delete"), (3, "delete"), (4, "keep"),
    ]  # fmt: skip
    assert plan.warnings[-1].endswith("3 versions named by a UUID: left to Determined, which deletes its own")
    prune([storage], Policy((Latest(1),)), trash=True)
    assert [v.key for v in list_versions(storage).versions] == [BARE, 4, ONE, TWO]
    assert at(storage, ONE).metrics == {"auc": 1.0}
    undo(storage)
    assert remove_own_shard(storage, 0, 2, 1) != ()
    prune([storage], Policy((Latest(1),)), guards=Guards(everything=True))
    assert {v.uuid for v in list_versions(storage).versions if v.uuid} == {ONE, TWO, BARE}
    assert all(v.state is State.COMPLETE for v in list_versions(storage).versions if v.uuid)


def test_own_metadata(storage: Path) -> None:
    """Metrics and tags go by the UUID, so checkpoints of one number have their own."""
    put(storage, DIGITS, 200)
    set_metrics(at(storage, TWO), {"auc": 0.5})
    set_metrics(at(storage, DIGITS), {"auc": 0.9})
    assert add_tag(at(storage, TWO), "prod") == ()
    assert add_tag(at(storage, DIGITS), "prod") == (TWO,)
    assert (at(storage, "best:auc").uuid, at(storage, "prod").uuid) == (DIGITS, DIGITS)
    names = sorted(p.name for p in (storage / ".edl-ckpt-0/meta-0").iterdir())
    assert names == [f"{DIGITS}.json", f"{TWO}.json"]
    document = json.loads((storage / f".edl-ckpt-0/meta-0/{TWO}.json").read_text())
    assert document == {"schema": "edl-ckpt/meta/1", "uuid": TWO, "metrics": {"auc": 0.5}}
