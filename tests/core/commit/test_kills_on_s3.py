"""Commands on object storage that are killed at a request: the old version or the new one, and nothing else is gone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from edl_ckpt.cli import app
from edl_ckpt.core import export_version, list_versions, recover, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.state.paths import is_verdicts
from forked import fork
from s3_fixtures import Bucket, begun_now
from s3_proxy import Fault, Request, hook
from zoo import GUESTS, settle, step_of

FOREIGN: Final = {"run/notes.txt": b"mine", "run/step_5/.hydra/config.yaml": b"lr: 1", "run/photos/2021/a.jpg": b"jpg"}
"""What is no file of a checkpoint."""
SECONDS: Final = 90


@dataclass(frozen=True, slots=True)
class Row:
    """A command on object storage, and what is there before it; `{run}` and `{other}` are locations."""

    prepare: Callable[[Bucket, Path], None]
    words: tuple[str, ...]
    places: tuple[str, ...] = ("run",)
    """The prefixes that may have something of ours."""
    resumes: bool = False
    """True for a command whose uploads `recover` keeps, so that the same command goes on with them."""
    in_parts: bool = False
    """True for a command without a journal: killed at its end, it leaves objects, but no index without the others."""


def _steps(s3: Bucket, tmp_path: Path) -> None:
    """Put two steps of torch there, the older one with a file of somebody."""
    place = tmp_path / "steps"
    shutil.rmtree(place, ignore_errors=True)
    for number in (5, 6):
        step_of("dcp", place, number)
    GUESTS["hydra"](place / "step_5")
    settle(place)
    s3.upload(place)
    for key, data in FOREIGN.items():
        s3.put(key, data)


def _shards(s3: Bucket, tmp_path: Path) -> None:
    """Put two versions of ElasticDL there, and files of somebody."""
    place = tmp_path / "shards"
    shutil.rmtree(place, ignore_errors=True)
    ids = np.arange(300)
    for number in (10, 20):
        rows = np.random.default_rng(number).standard_normal((300, 4)).astype(np.float32)
        variables = {"w": rows[:3]}
        save_checkpoint(str(place), number, 2, variables=variables, tables={"t": Table(ids, rows)}, layout="elasticdl")
    s3.upload(place)
    for key in ("run/notes.txt", "run/photos/2021/a.jpg"):
        s3.put(key, FOREIGN[key])


def _lacking(s3: Bucket, tmp_path: Path) -> None:
    """Put the same there, and a copy; a shard of the newer version is missing."""
    _shards(s3, tmp_path)
    s3.upload(tmp_path / "shards", "other")
    s3.delete(next(key for key in s3.keys("run/version-20/")))


def _arrays(s3: Bucket, tmp_path: Path) -> None:
    """Put the same there, and arrays to be imported on the disk."""
    _shards(s3, tmp_path)
    export_version(f"{tmp_path}/shards@20", tmp_path / "arrays.safetensors", force=True)


ROWS: Final[Mapping[str, Row]] = {
    "reshard": Row(_shards, ("reshard", "{run}@20", "--ps", "3", "--workers", "1")),
    "copy": Row(_steps, ("copy", "{run}@5", "{other}", "--workers", "1"), ("run", "other"), resumes=True),
    "repair": Row(_lacking, ("repair", "{run}@20", "--from", "{other}", "--workers", "1")),
    "prune": Row(_shards, ("prune", "{run}", "--keep", "1", "--yes")),
    "prune --with-foreign": Row(
        _steps, ("prune", "{run}", "--delete", "5", "--with-foreign", "--even-newest", "--grace", "0s", "--yes")
    ),
    "edit": Row(
        _shards, ("edit", "{run}@20", "--output", "{other}", "--drop", "w", "--workers", "1"), ("run", "other")
    ),
    "export --format dcp": Row(
        _steps,
        ("export", "{run}@5", "{other}/out", "--format", "dcp", "--ranks", "3", "--force"),
        ("run", "other"),
        in_parts=True,
    ),
    "import": Row(_arrays, ("import", "{tmp}/arrays.safetensors", "{run}@40", "--ps", "2")),
}


def words_of(row: Row, s3: Bucket, tmp_path: Path) -> list[str]:
    """Return the words of a command."""
    other = s3.url.removesuffix("run") + "other"
    return [word.format(run=s3.url, other=other, tmp=tmp_path) for word in row.words]


def killed_at(s3: Bucket, words: list[str], n: int) -> int:
    """Run a command in a child that is killed when its n-th request arrives; return its exit code."""
    children: list[int] = []
    armed = s3.proxy.fail(Fault(hook(lambda request: _kill(children, request)), nth=n)) if n else None

    def act() -> None:
        signal.alarm(SECONDS)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            app.run(words)
        except SystemExit as end:
            os._exit(int(end.code or 0))

    children.append(fork(act))
    code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    assert armed is None or (armed.hits > 0) == (code == -signal.SIGKILL)
    s3.proxy.heal()
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    return code


def _kill(children: list[int], request: Request) -> None:
    del request
    while not children:
        pass
    os.kill(children[0], signal.SIGKILL)


def content(s3: Bucket) -> dict[str, bytes]:
    """Return all objects but those of ours."""
    return {key: s3.get(key) for key in s3.objects() if ".edl-ckpt-0/" not in key}


def try_kill(s3: Bucket, tmp_path: Path, row: Row, n: int, new: Mapping[str, bytes]) -> Iterator[str]:
    """Kill a command at its n-th request, recover, and run it again; yield what is not as it must be."""
    s3.abort()
    s3.delete(*s3.objects())
    s3.proxy.heal()
    row.prepare(s3, tmp_path)
    old, words = content(s3), words_of(row, s3, tmp_path)
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    code = killed_at(s3, words, n)
    if code not in {0, -signal.SIGKILL}:
        yield f"ended with {code}"
    kept = {key: data for key, data in old.items() if new.get(key) == data}
    if {key: content(s3).get(key) for key in kept} != kept:
        yield "something that stays is gone"
    for place in row.places:
        with suppress(NotFoundError):  # nothing had begun there
            recover(s3.url.removesuffix("run") + place)
    if s3.open_uploads() and not row.resumes:
        yield f"uploads are left: {s3.open_uploads()}"
    yield from judge_recovered(s3, row, old, new)
    yield from judge_again(s3, row, words, new)


def judge_recovered(s3: Bucket, row: Row, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what is not as it must be after `recover`; of some, the file that makes it whole comes last."""
    now = content(s3)
    begun = {key: data for key, data in new.items() if key in now and not key.endswith("/.metadata")}
    is_partly_there = (row.resumes or row.in_parts) and now == {**old, **begun}
    if now not in (old, new) and not is_partly_there:
        yield f"neither the old version nor the new one: {sorted(set(now) ^ set(new))[:6]}"


def judge_again(s3: Bucket, row: Row, words: list[str], new: Mapping[str, bytes]) -> Iterator[str]:
    """Run the command again, and yield what is not as it must be then."""
    again = killed_at(s3, words, 0)
    if again not in {0, 10, 16}:
        yield f"the same again ended with {again}"
    if content(s3) != new:
        yield f"the same again ended with {again}, and {sorted(set(content(s3)) ^ set(new))[:6]} differ"
    if s3.open_uploads():
        yield f"uploads are left at the end: {s3.open_uploads()}"
    left = [key for key in s3.state() if not is_verdicts(key.rpartition("/")[2])]
    if row.resumes:  # killed after its last object, a copy leaves its journal: it only says what is done
        left = [key for key in left if not key.endswith("/copy-5/journal.json")]
    if left:
        yield f"left at the end: {left}"
    for place in row.places:
        for version in list_versions(s3.url.removesuffix("run") + place).versions:
            if not verify_version(version, level="deep", remember=False).ok:
                yield f"{version.ref} does not verify"


@pytest.mark.parametrize("name", ["prune", "repair", "export --format dcp"])
def test_sample(s3: Bucket, tmp_path: Path, name: str) -> None:
    """Killed in the middle, and near its end, a command leaves the old version or the new one, and no upload."""
    row = ROWS[name]
    row.prepare(s3, tmp_path)
    counted = s3.proxy.fail(Fault(hook(lambda _: None), times=None))
    assert killed_at(s3, words_of(row, s3, tmp_path), 0) == 0
    new = content(s3)
    for n in (counted.seen // 2, counted.seen - 3):
        assert list(try_kill(s3, tmp_path, row, n, new)) == []


@pytest.mark.hours
@pytest.mark.parametrize("name", ROWS)
def test_every_request(s3: Bucket, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same at each request; `pytest -n 0 -m hours tests/core/commit/test_kills_on_s3.py` prints the counts."""
    row = ROWS[name]
    row.prepare(s3, tmp_path)
    counted = s3.proxy.fail(Fault(hook(lambda _: None), times=None))
    assert killed_at(s3, words_of(row, s3, tmp_path), 0) == 0
    new = content(s3)
    wrong = {n: found for n in range(1, counted.seen + 1) if (found := list(try_kill(s3, tmp_path, row, n, new)))}
    with capsys.disabled():
        print(f"\n{name}: {counted.seen} kills, {len(wrong)} wrong")
    assert not wrong, wrong
