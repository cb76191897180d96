"""One protocol for every operation that writes a version, on the local disk and on S3: old or new, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import only, save_small
from edl_ckpt.core import (
    execute_copy,
    export_version,
    import_arrays,
    list_versions,
    plan_copy,
    recover,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError
from edl_ckpt.core.commit.publish import objects as remote
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.s3.upload import Upload
from forked import run_forked
from s3_fixtures import Bucket

KILLED = 9
"""The exit code of a process that a test kills."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a version is written, and the source that it is made from."""

    source: Path
    url: str
    bucket: Bucket | None = None

    def leftovers(self) -> list[str]:
        """Return what is left there of our own state besides metadata and seals."""
        if self.bucket is None:
            return elasticdl_rules.leftovers(Path(self.url)) if os.path.isdir(self.url) else []
        state = [key for key in self.bucket.objects() if ".edl-ckpt-0/" in key and "/meta-0/" not in key]
        return [*state, *(key for key, _ in self.bucket.open_uploads())]

    def recover(self) -> None:
        """Settle all that is left, interrupted copies too; an empty target is an error of its own."""
        with suppress(NotFoundError):
            recover(self.url, drop_copies=True)

    def shards(self) -> int | None:
        """Return how many shards the version there has, None when no version is there; each is complete and correct."""
        try:
            versions = list_versions(self.url, grace_seconds=0).versions
        except NotFoundError:
            return None
        if not versions:
            return None
        version = only(self.url)
        check = verify_version(version, level="deep")
        assert (version.state.value, version.extra, check.findings) == ("complete", (), ())
        assert check.fingerprint == verify_version(only(self.source / "run"), level="deep").fingerprint
        return version.ps_num


def _reshard(place: Place, wait: float) -> None:
    reshard_version(only(place.source / "run"), 3, output=place.url, wait_seconds=wait)


def _reshard_in_place(place: Place, wait: float) -> None:
    reshard_version(only(place.url), 3, wait_seconds=wait)


def _import(place: Place, wait: float) -> None:
    import_arrays(str(place.source / "m.npz"), place.url, 7, 3, layout="elasticdl", wait_seconds=wait)


def _save(place: Place, wait: float) -> None:
    ids, rows = np.arange(60), np.full((60, 2), 7, np.float32)
    save_checkpoint(
        place.url, 7, 3, variables={}, tables={"t": Table(ids, rows)}, layout="elasticdl", wait_seconds=wait
    )


def _copy(place: Place, wait: float) -> None:
    execute_copy(plan_copy([only(place.source / "run")], place.url), workers=1, wait_seconds=wait)


OPERATIONS: dict[str, tuple[Callable[[Place, float], None], int | None, int]] = {
    "reshard": (_reshard, None, 3),
    "reshard in place": (_reshard_in_place, 2, 3),
    "import": (_import, None, 3),
    "save": (_save, None, 3),
    "copy": (_copy, None, 2),
}
"""Each operation, and how many shards the version has at its target before and after it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a version of two shards and the same values in an .npz, made once."""
    made = tmp_path_factory.mktemp("source")
    save_small(made / "run", 7)
    export_version(only(made / "run"), str(made / "m.npz"))
    return made


@pytest.fixture(params=["local", "S3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, source: Path) -> Place:
    """Return an empty target beside a copy of the sources."""
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    if request.param == "local":
        return Place(tmp_path, str(tmp_path / "target"))
    bucket: Bucket = request.getfixturevalue("s3")
    return Place(tmp_path, bucket.url, bucket)


def _stop(how: str) -> None:
    """End the operation here: as a killed process, or with an error."""
    if how == "kill":
        os._exit(KILLED)
    if how == "vanish":
        raise SystemError("the process is gone")
    raise EdlCkptError("injected")


def _around(
    patch: pytest.MonkeyPatch,
    how: str,
    owner: Any,
    name: str,
    *,
    before: bool,
    when: Callable[..., bool] = lambda *_: True,
) -> None:
    """Let the operation stop before or after a call."""
    real = getattr(owner, name)

    def call(*words: Any, **more: Any) -> Any:
        if before and when(*words):
            _stop(how)
        result = real(*words, **more)
        if not before and when(*words):
            _stop(how)
        return result

    patch.setattr(owner, name, call)


def _inject(patch: pytest.MonkeyPatch, point: str, how: str, kind: type[LocalOutput | RemoteOutput]) -> None:
    """Let an output of this kind stop at a point between two steps of the protocol."""
    if point == "created":
        _around(patch, how, kind, "create", before=False)
    elif point in {"written", "published"}:
        _around(patch, how, kind, "publish", before=point == "written")
    elif kind is LocalOutput and point == "proved":
        _around(patch, how, kind, "_stage_metadata", before=False)
    elif kind is LocalOutput:
        _around(patch, how, Directory, "rename_new", before=True)
        _around(patch, how, Directory, "exchange", before=False)
    elif point == "proved":
        _around(patch, how, remote, "settle_remote", before=True)
    else:
        _around(patch, how, Upload, "complete", before=True, when=lambda upload: "-1-of-" in upload.path)


def _leave_everything(output: RemoteOutput, *_: object) -> None:
    """Stand for the end of a process that is gone: only what the kernel closes is closed."""
    output._memory.close()


POINTS = ("created", "written", "visible", "proved", "published")
SAMPLE = {(False, "written"), (False, "visible"), (False, "published"), (True, "visible")}
ENDS = [
    pytest.param(fails, point, id=f"{way}-{point}", marks=() if (fails, point) in SAMPLE else pytest.mark.slow)
    for fails, way in ((True, "fails"), (False, "is killed"))
    for point in POINTS
]
"""How a write ends early, and where. A kill leaves more behind than a failure."""


@pytest.mark.parametrize("operation", OPERATIONS)
class TestEveryOperation:
    """What holds for reshard, import, save and copy alike."""

    @pytest.mark.parametrize(("fails", "point"), ENDS)
    def test_old_or_new(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, operation: str, point: str, fails: bool
    ) -> None:
        """Wherever it ends, the old version is there or the new one; `recover` leaves nothing, and again brings it."""
        act, before, after = OPERATIONS[operation]
        if before:
            save_small(place.url, 7, ps_num=before)
        kind = LocalOutput if place.bucket is None else RemoteOutput
        with monkeypatch.context() as patch:
            if fails or place.bucket is not None:  # no fork beside a client of S3
                _inject(patch, point, "fail" if fails else "vanish", kind)
                if not fails:
                    patch.setattr(RemoteOutput, "__exit__", _leave_everything)
                with pytest.raises((EdlCkptError, SystemError)):
                    act(place, 0)
            else:

                def in_child() -> None:
                    _inject(patch, point, "kill", kind)
                    act(place, 0)

                assert run_forked(in_child) == KILLED
        if operation == "copy" and (point == "written" or (point == "visible" and place.bucket is not None)):
            assert recover(place.url).kept == (
                "an interrupted copy of version 7 resumes when the same copy is run again",
            )
        elif fails and point != "proved":
            assert place.leftovers() == []
        place.recover()
        assert place.leftovers() == []
        found = place.shards()
        assert found in {before, after}
        if point in {"created", "written"}:
            assert found == before
        if point == "published":
            assert found == after
        if found != after:
            act(place, 0)
            assert place.shards() == after
        assert place.leftovers() == []

    def test_one_writer(self, place: Place, operation: str) -> None:
        """A second writer to a location is error 11, which names the holder; once the lock is free it succeeds."""
        act, before, after = OPERATIONS[operation]
        if before:
            save_small(place.url, 7, ps_num=before)
        with (
            location_lock(place.url, "holder", create=True),
            pytest.raises(LockedError, match=f"locked by process {os.getpid()} .*holder") as end,
        ):
            act(place, 0)
        assert end.value.exit_code == 11
        assert place.shards() == before
        act(place, 0)
        assert place.shards() == after
        assert place.leftovers() == []

    def test_lost_lock(self, place: Place, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
        """A writer that lost the lock while it was stopped publishes nothing, and leaves the new holder's lock."""
        act, before, _ = OPERATIONS[operation]
        if before:
            save_small(place.url, 7, ps_num=before)
        other = json.dumps({"pid": 7, "host": "elsewhere", "since": "then", "purpose": "prune"})

        def take_over() -> None:
            if place.bucket is not None:
                place.bucket.put("run/.edl-ckpt-0/lock-0", other.encode())
            else:
                Path(place.url, ".edl-ckpt-0/lock-0").write_text(other)

        kind = LocalOutput if place.bucket is None else RemoteOutput
        real: Callable[..., Seal] = kind.publish

        def publish(*words: object) -> Seal:
            take_over()
            return real(*words)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "publish", publish)
            with pytest.raises(LockedError, match="lost the lock while it was stopped; the lock is held by process 7"):
                act(place, 0)
        assert place.shards() == before
        if place.bucket is not None:
            place.bucket.delete("run/.edl-ckpt-0/lock-0")
        place.recover()
        assert place.leftovers() == []

    def test_locks_on_any_file_system(self, tmp_path: Path, operation: str) -> None:
        """On a file system of fsspec, without rename or conditions, each operation has the lock too."""
        import fsspec

        save_small(tmp_path / "run", 7)
        export_version(only(tmp_path / "run"), str(tmp_path / "m.npz"))
        act, before, after = OPERATIONS[operation]
        place = Place(tmp_path, f"memory://protocol-{os.getpid()}/run")
        try:
            if before:
                save_small(place.url, 7, ps_num=before)
            with (
                location_lock(place.url, "holder", create=True),
                pytest.raises(LockedError, match=f"locked by process {os.getpid()} .*holder"),
            ):
                act(place, 0)
            act(place, 0)
            assert place.shards() == after
            assert recover(place.url).kept == ()
        finally:
            fsspec.filesystem("memory").rm(f"/protocol-{os.getpid()}", recursive=True)
