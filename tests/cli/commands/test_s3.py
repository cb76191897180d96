"""The commands on S3: what they print, and what they never print."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from places import GOLDEN
from program import inside
from s3_fixtures import Bucket
from s3_proxy import Fault, hook, status


def test_every_command(s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command set works on S3, and each command that writes leaves what verify finds nothing wrong with."""
    s3.upload(GOLDEN / "multi")
    run, other = s3.url, f"s3://{s3.name}/other"

    def edl(*arguments: str | Path, code: int = 0) -> Any:
        return inside(capsys, *arguments, code=code)

    result = edl("list", run)["locations"][0]["versions"]
    assert [(v["version"], v["shards"]) for v in result] == [(9, 2), (20, 2), (100, 1)]
    assert edl("inspect", f"{run}@20", "--stats")["ps_num"] == 2
    text = edl("verify", f"{run}@20", "--seal")["fingerprint"]
    assert edl("verify", f"{run}@20", "--deep")["sealed"] is True
    assert edl("list", run)["locations"][0]["versions"][1]["fingerprint"] == text
    assert edl("reshard", f"{run}@20", "--ps", "3", "--output", other)["fingerprint"] == text
    assert edl("reshard", f"{run}@20", "--ps", "4", "--output", tmp_path / "disk")["fingerprint"] == text
    assert (
        edl("reshard", f"{tmp_path}/disk@20", "--ps", "5", "--output", f"s3://{s3.name}/third")["fingerprint"] == text
    )
    assert edl("reshard", f"{run}@20", "--ps", "5")["fingerprint"] == text
    assert edl("verify", f"{run}@20", "--deep")["fingerprint"] == text
    edl("metrics", "set", f"{run}@20", "auc=0.7")
    edl("metrics", "set", f"{run}@9", "auc=0.6")
    edl("tag", "add", f"{run}@20", "good")
    edl("note", f"{run}@20", "words")
    edl("policy", "set", run, "--keep", "1")
    shown = edl("list", run)["locations"][0]["versions"]
    assert (shown[1]["metrics"], shown[1]["tags"], shown[1]["note"]) == ({"auc": 0.7}, ["good"], "words")
    assert edl("diff", f"{run}@good", f"{other}@20")["equal"] is True
    table = edl("inspect", f"{run}@20")["tables"][0]["name"]
    assert edl("get", f"{run}@20", "--table", table, "--id", "0")["ref"] == f"{run}@20"
    exported = edl("export", f"{run}@best:auc", f"s3://{s3.name}/out/m.safetensors")
    assert [f["path"] for f in exported["files"]] == [f"s3://{s3.name}/out/m.safetensors"]
    assert edl("export", f"{run}@20", f"s3://{s3.name}/out/m.safetensors", code=16)["id"] == "refused"
    edl("export", f"{run}@20", f"s3://{s3.name}/out/m.safetensors", "--force")
    edl("export", f"{run}@20", f"s3://{s3.name}/out/arrays", "--format", "npy")
    edl("export", f"{run}@20", f"s3://{s3.name}/out/bundle", "--format", "tensorflow")
    assert edl("export", f"{run}@20", f"{run}/m.npz", code=16)["id"] == "refused"
    for source in ("m.safetensors", "arrays", "bundle"):
        number = sum(source.encode())
        new = edl("import", f"s3://{s3.name}/out/{source}", f"s3://{s3.name}/in@{number}", "--ps", "3")
        assert new["fingerprint"] == text
        assert edl("verify", f"s3://{s3.name}/in@{number}", "--deep")["findings"] == []
    assert edl("copy", f"{run}@20", f"s3://{s3.name}/copied")["copied"][0]["fingerprint"] == text
    assert edl("list", f"s3://{s3.name}/copied")["locations"][0]["versions"][0]["tags"] == ["good"]
    pruned = edl("prune", run, "--yes")
    assert [p["version"] for p in pruned["plan"] if p["action"] == "delete"] == [9]
    assert not any("version-9/" in key or "/9.json" in key for key in s3.objects())
    assert edl("undo", run, code=15)["id"] == "unsupported"
    assert edl("recover", run) == {"schema": "edl-ckpt/recover/1", "location": run, "done": [], "kept": [], "left": []}
    assert s3.open_uploads() == []
    assert not any("stage-0" in key or "lock-0" in key for key in s3.objects())


def test_secrets_are_never_told(s3: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    """No option of storage is in any output, whether the command succeeds, fails, or says more."""
    from edl_ckpt.cli import app

    options = ("key=AKIDEXAMPLE", "secret=very-secret-words", "token=session-token-words")
    flags = [word for option in options for word in ("--storage-option", option)]
    for arguments in (
        ["list", s3.url],
        ["list", s3.url, "--storage-option", "nosuch=very-secret-words"],
        ["verify", s3.url],
    ):
        for more in ([], ["--json"], ["-v"]):
            with pytest.raises(SystemExit):
                app.run([*arguments, *flags, *more])
    printed = "".join(capfd.readouterr())
    assert "nosuch" in printed
    for option in options:
        assert option.partition("=")[2] not in printed
    s3.proxy.fail(Fault(status(403, "InvalidAccessKeyId"), operation="list", times=None))
    with pytest.raises(SystemExit) as end:
        app.run(["list", s3.url, *flags])
    assert end.value.code == 12


def test_no_object_has_a_secret(s3: Bucket, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Journals, locks, seals and metadata in the bucket have no storage option in them, at any moment."""
    from edl_ckpt.cli import app

    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    options = ("key=AKIDEXAMPLE99", "secret=very-secret-words", "token=session-token-words")
    flags = [word for option in options for word in ("--storage-option", option)]
    met: set[str] = set()

    def look(_request: object) -> None:
        for key in s3.objects():
            met.add(key.rpartition("/")[2].partition(".")[2] if "stage-0" in key else key.split("/")[2])
            assert not any(option.partition("=")[2].encode() in s3.get(key) for option in options), key

    s3.proxy.fail(Fault(hook(look), operation="complete", times=None))
    for command in (["copy", f"{tmp_path / 'run'}@20", s3.url], ["reshard", f"{s3.url}@20", "--ps", "3"]):
        with pytest.raises(SystemExit) as end:
            app.run([*command, *flags])
        assert not end.value.code, capfd.readouterr()
    look(None)
    assert {"json", "lock-0", "meta-0"} <= met
    assert not any(option.partition("=")[2] in "".join(capfd.readouterr()) for option in options)


def test_retries_are_told_with_v(multi: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    """With -v each request that is tried again is a line on stderr; without it there is silence."""
    from edl_ckpt.cli import app

    for flag in ("-v", "--no-color"):
        multi.proxy.fail(Fault(status(503, "SlowDown"), operation="list"))
        with pytest.raises(SystemExit):
            app.run(["list", multi.url, flag])
        assert ("retry 1 of 4: list_objects_v2" in capsys.readouterr().err) is (flag == "-v")
