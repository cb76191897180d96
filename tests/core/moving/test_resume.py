"""A move that was killed goes on where it was, and writes what an undisturbed one writes; or it begins anew."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from checkpoints import at, drop_seal
from edl_ckpt.core import (
    Changes,
    Latest,
    Policy,
    Table,
    WriteResult,
    convert_version,
    execute_copy,
    export_version,
    import_arrays,
    list_versions,
    location_lock,
    plan_copy,
    plan_prune,
    recover,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import CorruptError, LockedError, NoSpaceError, UnavailableError
from edl_ckpt.core.base.progress import Progress as Reported
from edl_ckpt.core.base.words import size
from edl_ckpt.core.commit.progress import Progress
from edl_ckpt.core.commit.repair.survey import unfinished_work
from edl_ckpt.core.moving import legs, settings, write
from edl_ckpt.core.operations.usage import measure_usage
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.storage.beneath import Directory
from elasticdl_rules import leftovers
from forked import run_forked
from program import inside
from s3_fixtures import Bucket
from system_runs import tree

Move = Callable[[Path], WriteResult]
"""Writes a version to an output, or in place of the one there."""
SYSTEMS: Final = ("dcp", "tensorflow", "tfra", "dynamicemb")
STAGES: Final = ".edl-ckpt-0/stage-0"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each move be large enough to resume, and have many pieces, each of them a leg."""
    monkeypatch.setattr(write, "RESUMABLE_BYTES", 0)
    monkeypatch.setattr(legs, "LEG_SECONDS", 0.0)
    monkeypatch.setattr(settings, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(settings, "VALUE_BATCH_BYTES", 1 << 16)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with version 7 of one model in the files of several systems."""
    place = tmp_path_factory.mktemp("sources")
    random = np.random.default_rng(5)
    save_checkpoint(
        place / "elasticdl",
        7,
        2,
        variables={"kernel": random.standard_normal((600, 500), np.float32), "bias": np.ones(9, np.float32)},
        tables={"users": Table(np.arange(60_000), random.standard_normal((60_000, 16), np.float32))},
        layout="elasticdl",
    )
    for system in SYSTEMS:
        convert_version(f"{place / 'elasticdl'}@7", 2, output=place / system, system=system)
    export_version(f"{place / 'elasticdl'}@7", place / "model.safetensors", format_name="safetensors")
    return place


@pytest.fixture
def run(sources: Path, tmp_path: Path) -> Path:
    """Return a location of ElasticDL with version 7."""
    return Path(shutil.copytree(sources / "elasticdl", tmp_path / "run"))


def killed(move: Callable[[], object], pieces: int) -> None:
    """Do a move in a process that is killed after so many pieces, if it has more."""

    def act() -> None:
        moved, real = [0], legs.Legs.move

        def counted(self: legs.Legs, task: Any) -> None:
            moved[0] += 1
            if moved[0] > pieces:
                os.kill(os.getpid(), signal.SIGKILL)
            real(self, task)

        legs.Legs.move = counted  # type: ignore[method-assign]
        move()

    assert run_forked(act) in {-signal.SIGKILL, 0}


def pieces_of(move: Callable[[], object]) -> int:
    """Return how many pieces a move has."""
    moved, real = [0], legs.Legs.move

    def counted(self: legs.Legs, task: Any) -> None:
        moved[0] += 1
        real(self, task)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(legs.Legs, "move", counted)
        move()
    return moved[0]


def stage_of(location: Path) -> Path:
    """Return the one staging directory of a location."""
    (stage,) = (location / STAGES).iterdir()
    return stage


def moves(sources: Path) -> dict[str, Move]:
    """Return moves by what they show."""
    elasticdl = f"{sources / 'elasticdl'}@7"
    changes = Changes(rename=(("users", "members"),), cast=(("kernel", "float16"),))
    found: dict[str, Move] = {
        "reshard": lambda out: reshard_version(elasticdl, 3, output=out, workers=2),
        "edit": lambda out: convert_version(elasticdl, output=out, changes=changes, purpose="edit"),
        "import": lambda out: import_arrays(sources / "model.safetensors", out, 7, 3),
    }
    for system in SYSTEMS:
        ref = f"{sources / system}@7"
        found[system] = lambda out, ref=ref: convert_version(ref, 3, output=out)  # type: ignore[misc]
    return found


NAMES: Final = ("reshard", "edit", "import", *SYSTEMS)


@pytest.mark.parametrize("name", NAMES)
def test_resumes(sources: Path, tmp_path: Path, name: str) -> None:
    """Wherever a move is killed, the same command goes on there, and the files are those of an undisturbed one."""
    move = moves(sources)[name]
    whole = tmp_path / "whole"
    results: list[WriteResult] = []
    count = pieces_of(lambda: results.append(move(whole)))
    expected = results[0]
    assert expected.resumed_bytes == 0
    for pieces in sorted({1, count // 3, 2 * count // 3, count - 1}):
        out = tmp_path / f"after-{pieces}"
        killed(lambda out=out: move(out), pieces)  # type: ignore[misc]
        done = move(out)
        assert pieces < 9 or done.resumed_bytes > 0  # pieces of a leg that others still move are not noted
        assert tree(out) == tree(whole)
        assert (done.fingerprint, done.checksums, done.items) == (
            expected.fingerprint,
            expected.checksums,
            expected.items,
        )
        assert leftovers(out) == []


@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(sources: Path, tmp_path: Path, seed: int) -> None:
    """A move that is killed time after time gets on each time, and ends with the files of an undisturbed one."""
    move = moves(sources)["dcp" if seed % 2 else "reshard"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    move(whole)
    chosen, resumed = random.Random(seed), 0
    for _ in range(6):
        killed(lambda: move(out), chosen.randrange(4, 20))
        if list_versions(out).versions:
            break
        progress = sum(waiting.size_bytes > 0 for waiting in list_versions(out).interrupted_moves)
        resumed = max(resumed, progress)
    if not list_versions(out).versions:
        assert move(out).resumed_bytes > 0
    assert resumed
    assert tree(out) == tree(whole)
    assert verify_version(at(out, 7), level="deep").findings == ()
    assert leftovers(out) == []


@pytest.mark.parametrize("system", ["elasticdl", "dcp", "tfra"])
def test_in_place(sources: Path, tmp_path: Path, system: str) -> None:
    """The old version stays in place while its replacement waits, which the same command ends."""
    whole, place = tmp_path / "whole", tmp_path / "place"
    for copied in (whole, place):
        shutil.copytree(sources / system, copied)
    before = tree(place)
    convert_version(f"{whole}@7", 3)
    killed(lambda: convert_version(f"{place}@7", 3), 6 if system == "tfra" else 18)
    assert tree(place) == before
    assert convert_version(f"{place}@7", 3).resumed_bytes > 0
    assert tree(place) == tree(whole)
    assert leftovers(place) == []
    assert verify_version(at(place, 7), level="deep").findings == ()


def reshard(run: Path, out: Path, ps_num: int = 3, **options: Any) -> WriteResult:
    return reshard_version(f"{run}@7", ps_num, output=out, **options)


def flip(path: Path, at_byte: int) -> None:
    """Change a byte of a file."""
    with path.open("r+b") as file:
        file.seek(at_byte)
        (byte,) = file.read(1)
        file.seek(at_byte)
        file.write(bytes([byte ^ 1]))


def test_another_source(run: Path, tmp_path: Path) -> None:
    """A source that has changed is read from the beginning, and nothing of the old one remains."""
    out, shard = tmp_path / "out", next((run / "version-7").iterdir())
    killed(lambda: reshard(run, out), 18)
    first = stage_of(out)
    os.utime(shard, (1, 1))
    assert reshard(run, out).resumed_bytes == 0
    assert not first.exists()
    assert leftovers(out) == []
    assert verify_version(at(out, 7), level="deep").findings == ()


@pytest.mark.parametrize("other", ["ranks", "changes", "memory"])
def test_another_plan(run: Path, tmp_path: Path, other: str) -> None:
    """Another command for the same version begins anew, in place of what waits."""
    out = tmp_path / "out"
    killed(lambda: reshard(run, out), 18)
    if other == "ranks":
        done = reshard(run, out, 4)
    elif other == "changes":
        done = convert_version(f"{run}@7", 3, output=out, changes=Changes(rename=(("users", "members"),)))
    else:
        done = reshard(run, out, max_memory_bytes=4 << 20)
    assert done.resumed_bytes == 0
    assert leftovers(out) == []
    assert verify_version(at(out, 7), level="deep").findings == ()


@pytest.mark.parametrize("how", ["torn", "flipped", "emptied", "gone", "strange", "cut head"])
def test_damaged_notes(run: Path, tmp_path: Path, how: str) -> None:
    """Notes count up to the first that is damaged or cut off; the files are right in any case."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    reshard(run, whole)
    killed(lambda: reshard(run, out), 18)
    notes = stage_of(out) / "progress"
    size = notes.stat().st_size
    if how == "torn":
        os.truncate(notes, size - 5)
    elif how == "flipped":
        flip(notes, size // 2)
    elif how == "emptied":
        os.truncate(notes, 0)
    elif how == "gone":
        notes.unlink()
    elif how == "strange":
        with notes.open("ab") as file:
            file.write(b"\xff" * 4096)
    else:
        os.truncate(notes, 11)
    done = reshard(run, out)
    assert (done.resumed_bytes > 0) is (how in {"torn", "flipped", "strange"})
    assert tree(out) == tree(whole)
    assert leftovers(out) == []


def test_a_record_of_something_else(run: Path, tmp_path: Path) -> None:
    """A record that no leg has written ends the notes, as damage does."""
    out = tmp_path / "out"
    killed(lambda: reshard(run, out), 18)
    with Directory.open(str(stage_of(out))) as stage:
        progress = Progress(stage, lambda: None)
        list(progress.earlier())
        progress.note([b"\4\0\0\0null"])
        progress.close()
    assert reshard(run, out).resumed_bytes > 0
    assert verify_version(at(out, 7), level="deep").findings == ()


@pytest.mark.parametrize("pieces", ["the others", "10^15", "one too many"])
def test_a_leg_without_its_sums(run: Path, tmp_path: Path, pieces: str) -> None:
    """A leg that says all other pieces have moved, or pieces that there are not, is refused; the move begins anew."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    count = pieces_of(lambda: reshard(run, whole))
    killed(lambda: reshard(run, out), 18)
    first, end = {"the others": (18, count), "10^15": (18, 10**15), "one too many": (count, count + 1)}[pieces]
    invented = legs.LegSums(first, end, 1, ContentSketch(), ContentSketch(), 0, [])
    with Directory.open(str(stage_of(out))) as stage:
        progress = Progress(stage, lambda: None)
        list(progress.earlier())
        progress.note(invented.to_record())
        progress.close()
    warned = list[str]()
    done = reshard(run, out, reporter=Reported(lambda *_: None, on_warning=warned.append))
    assert done.resumed_bytes == 0
    assert any("begins anew" in text for text in warned)
    assert tree(out) == tree(whole)


@pytest.mark.parametrize("lost", ["flipped", "zeros", "short", "gone", "linked"])
def test_lost_data(run: Path, tmp_path: Path, lost: str) -> None:
    """Staged bytes that a power cut lost are found by the proof, and the same command writes everything anew."""
    whole, out, kept, warned = tmp_path / "whole", tmp_path / "out", tmp_path / "kept", list[str]()
    reshard(run, whole)
    killed(lambda: reshard(run, out), 18)
    staged = min((stage_of(out) / "version-7").iterdir())
    if lost == "flipped":
        data = np.fromfile(staged, np.uint8)
        written = np.flatnonzero(data)
        flip(staged, int(written[len(written) // 2]))
    elif lost == "zeros":
        staged.write_bytes(bytes(staged.stat().st_size))
    elif lost == "short":
        os.truncate(staged, 100)
    elif lost == "gone":
        staged.unlink()
    else:
        os.link(staged, kept)
    done = reshard(run, out, reporter=Reported(lambda *_: None, on_warning=warned.append))
    assert done.resumed_bytes == 0
    assert any("begins anew" in text for text in warned) is (lost in {"flipped", "zeros"})
    assert tree(out) == tree(whole)
    assert done.fingerprint == list_versions(whole).versions[0].fingerprint
    assert leftovers(out) == []


def test_a_lost_source_sum(sources: Path, tmp_path: Path) -> None:
    """Checksums of the source's files count what an interrupted run has read of them; a wrong one is found."""
    place, out = Path(shutil.copytree(sources / "tensorflow", tmp_path / "place")), tmp_path / "out"
    data = max(place.rglob("*.data-*"), key=lambda path: path.stat().st_size)
    times = data.stat()
    flip(data, times.st_size // 2)
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    drop_seal(place, 7)
    killed(lambda: convert_version(f"{place}@7", 3, output=out), 18)
    with pytest.raises(CorruptError, match="crc32c"):
        convert_version(f"{place}@7", 3, output=out)
    assert tree(out) == {}


def test_two_commands_at_a_time(run: Path, tmp_path: Path) -> None:
    """What a living command writes is taken by none; what waits is no obstacle to other work."""
    out = tmp_path / "out"
    killed(lambda: reshard(run, out), 18)
    with location_lock(out, "test"), pytest.raises(LockedError):
        reshard(run, out, wait_seconds=0.0)
    reshard_version(f"{run}@7", 2, output=out, number=8)
    assert [move.version for move in list_versions(out).interrupted_moves] == [7]
    assert reshard(run, out).resumed_bytes > 0


def test_a_disk_without_room_for_notes(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move whose progress cannot be noted ends all the same."""
    out, real = tmp_path / "out", os.pwritev

    def full(fd: int, parts: Any, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/progress"):
            raise OSError(errno.ENOSPC, "full")
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", full)
    assert reshard(run, out).resumed_bytes == 0
    assert leftovers(out) == []


def test_an_error_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a kill and a signal leave something: a move that fails gives its room back, also that of an earlier run."""
    out = tmp_path / "out"
    killed(lambda: reshard(run, out), 18)

    def fails(self: legs.Legs, task: Any) -> None:
        raise NoSpaceError("full", path="x")

    monkeypatch.setattr(legs.Legs, "move", fails)
    with pytest.raises(NoSpaceError):
        reshard(run, out)
    assert leftovers(out) == []


def test_a_source_on_s3(run: Path, tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are known by their ETags, so a move whose source gave no answer for a while goes on."""
    out, real, moved = tmp_path / "out", legs.Legs.move, [0]

    def silent(self: legs.Legs, task: Any) -> None:
        moved[0] += 1
        if moved[0] > 14:
            raise UnavailableError("no answer", path=s3.url)
        real(self, task)

    execute_copy(plan_copy([at(run, 7)], s3.url))
    with monkeypatch.context() as patched:
        patched.setattr(legs.Legs, "move", silent)
        with pytest.raises(UnavailableError):
            reshard_version(f"{s3.url}@7", 3, output=out, workers=2)
    assert reshard_version(f"{s3.url}@7", 3, output=out).resumed_bytes > 0
    assert verify_version(at(out, 7), level="deep").findings == ()
    assert leftovers(out) == []


@pytest.mark.parametrize("whose", ["source", "target"])
def test_a_storage_without_an_answer(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    """A source that gives no answer for a while costs nothing; a target that does may have lost something."""
    out, real, moved = tmp_path / "out", legs.Legs.move, [0]

    def silent(self: legs.Legs, task: Any) -> None:
        moved[0] += 1
        if moved[0] > 18:
            raise UnavailableError("no answer", path=f"{stage_of(out) if whose == 'target' else run}/x")
        real(self, task)

    with monkeypatch.context() as patched:
        patched.setattr(legs.Legs, "move", silent)
        with pytest.raises(UnavailableError):
            reshard(run, out)
    assert bool(leftovers(out)) is (whose == "source")
    assert bool(reshard(run, out).resumed_bytes) is (whose == "source")


@pytest.mark.parametrize(("pieces", "waits"), [(0, False), (18, True)])
def test_a_signal(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, waits: bool) -> None:
    """After Ctrl-C the same command goes on; before anything was noted, nothing is left."""
    out, real, moved = tmp_path / "out", legs.Legs.move, [0]

    def interrupted(self: legs.Legs, task: Any) -> None:
        moved[0] += 1
        if moved[0] > pieces:
            raise KeyboardInterrupt
        real(self, task)

    with monkeypatch.context() as patched:
        patched.setattr(legs.Legs, "move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reshard(run, out, workers=1)
    assert bool(leftovers(out)) is waits
    assert bool(reshard(run, out, workers=1).resumed_bytes) is waits


def test_what_waits_is_shown_and_dropped(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`list` and `recover` name an interrupted move with its size; `--drop-copies` discards it."""
    out = tmp_path / "out"
    killed(lambda: reshard(run, out), 18)
    (waiting,) = list_versions(out).interrupted_moves
    assert (waiting.version, waiting.work) == (7, "reshard")
    assert waiting.size_bytes == sum(path.stat().st_size for path in (stage_of(out) / "version-7").iterdir())
    assert list_versions(out).problems == ()
    words = f"an interrupted reshard of version 7 ({size(waiting.size_bytes)})"
    assert unfinished_work(out).moves == (words,)
    notice = f"{out}: {words.replace(' (', ' takes ').replace(')', '')}: the same command resumes it; to discard it: "
    assert [text for text in plan_prune([out], Policy((Latest(1),))).warnings if text.startswith(notice)]
    assert inside(capsys, "list", out)["locations"][0]["interrupted_moves"] == [waiting._asdict()]
    assert [one.size_bytes >= waiting.size_bytes for one in measure_usage(out).staging] == [True]
    assert recover(out).kept == (f"{words} resumes when the same command is run again",)
    assert recover(out, drop_copies=True).done == (f"discarded the{words[2:]}",)
    assert list_versions(out).interrupted_moves == ()
    assert leftovers(out) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"work": "\x1b[2Jwiped"},
        {"work": 7},
        {"new": {"a": -1}},
        {"new": {"a": 10**400}},
        {"new": {"../a": 1}},
        {"directory": "../elsewhere"},
        {"version": "7"},
        {"source": ""},
        {"schema": "edl-ckpt/journal/9"},
    ],
)
def test_a_hostile_description(run: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A description that no edl-ckpt has written is believed by none: the directory is removed as abandoned."""
    out = tmp_path / "out"
    killed(lambda: reshard(run, out), 18)
    path = stage_of(out) / "interrupted.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **wrong}), "utf-8")
    list_versions(out)
    assert unfinished_work(out).moves == ()
    assert reshard(run, out).resumed_bytes == 0
    assert leftovers(out) == []


@pytest.mark.parametrize("name", ["interrupted.json", "progress", "version-7/variables-0-of-3.ckpt"])
def test_a_link(run: Path, tmp_path: Path, name: str) -> None:
    """A link in the place of a file that waits leads to nothing that is read, or written."""
    out, victim = tmp_path / "out", tmp_path / "victim"
    killed(lambda: reshard(run, out), 18)
    path = stage_of(out) / name
    path.rename(victim)
    path.symlink_to(victim)
    before = victim.read_bytes()
    assert reshard(run, out).resumed_bytes == 0
    assert victim.read_bytes() == before
    assert leftovers(out) == []
    assert verify_version(at(out, 7), level="deep").findings == ()


def test_a_small_move_notes_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that takes no time begins anew, and leaves nothing behind that waits."""
    monkeypatch.setattr(write, "RESUMABLE_BYTES", 1 << 40)
    monkeypatch.setattr(Progress, "__init__", None)
    assert reshard(run, tmp_path / "out").resumed_bytes == 0


_CHANGING: Final = (
    "open",
    "pwrite",
    "pwritev",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "fsync",
    "ftruncate",
    "posix_fallocate",
)
"""The calls of the system that change something; of `open`, those that make a file."""


class Calls:
    """Counts the calls that change something, and kills the process before one of them."""

    def __init__(self, last: int) -> None:
        self.count, self._last = 0, last
        for name in _CHANGING:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name != "open" or args[1] & os.O_CREAT:
                self.count += 1
                if self.count == self._last:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call


@pytest.mark.parametrize("part", range(12))
@pytest.mark.parametrize("is_resumed", [False, True])
def test_killed_at_any_call(sources: Path, tmp_path: Path, is_resumed: bool, part: int) -> None:
    """Before any call that changes something, a kill leaves the old version or the new one; the next run ends it."""
    whole = Path(shutil.copytree(sources / "elasticdl", tmp_path / "whole"))
    old = tree(whole)
    reshard_version(f"{whole}@7", 3)
    new = tree(whole)

    def again(place: Path) -> object:
        return reshard_version(f"{place}@7", 3, workers=2) if tree(place) == old else recover(place)

    for last in range(part + 1, 1000, 12):
        place = Path(shutil.copytree(sources / "elasticdl", tmp_path / f"place-{last}"))
        if is_resumed:
            killed(lambda place=place: again(place), 12)  # type: ignore[misc]

        def act(place: Path = place, last: int = last) -> None:
            Calls(last)
            again(place)

        code = run_forked(act)
        assert code in {0, -signal.SIGKILL}
        assert tree(place) in (old, new), last
        again(place)
        assert tree(place) == new, last
        assert list_versions(place).versions[0].fingerprint, last
        assert list_versions(place).interrupted_moves == (), last
        assert leftovers(place) == [], last
        if code == 0:
            return
    raise AssertionError("it makes more calls than it should")
