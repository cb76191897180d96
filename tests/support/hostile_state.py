"""Locations with hostile state, made by anybody who may write there: links, pipes, huge and nested JSON, odd names.

`python tests/support/hostile_state.py DIRECTORY` makes one directory for each scene, with a location `run` and, beside
it, a directory `victim` that nothing may touch. `COMMANDS` has the words of every command of the program, to be run in
such a directory.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from edl_ckpt.core.state.paths import META_DIR, is_verdicts

SECONDS = 60
"""More than any command needs here; one that opened a pipe would wait for ever."""
STAGE = ".edl-ckpt-0/stage-0"
TRASH = ".edl-ckpt-0/trash-0"
META = ".edl-ckpt-0/meta-0"
DEAD = json.dumps({"pid": 7, "host": "elsewhere", "kernel": "0", "since": "then", "purpose": "reshard"})
"""The description of a process that is long gone."""
VERSIONS = (10, 20, 30)

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "list": ("run",),
    "inspect": ("run@20",),
    "edit": ("run@20", "--output", "edited", "--rename", "t=u"),
    "get": ("run@20", "--table", "t", "--id", "3"),
    "head": ("run@20", "--table", "t"),
    "sample": ("run@20", "--table", "t"),
    "ids": ("run@20", "--table", "t"),
    "diff": ("run@10", "run@20"),
    "du": ("run",),
    "report": ("run", "--json"),
    "browse": ("run",),
    "verify": ("run", "--all"),
    "reshard": ("run@20", "--ps", "3"),
    "copy": ("run@20", "target"),
    "export": ("run@20", "out.npz"),
    "import": ("arrays.npz", "run@50", "--ps", "2", "--layout", "elasticdl"),
    "prune": ("run", "--keep", "1", "--yes", "--trash"),
    "undo": ("run",),
    "policy show": ("run",),
    "policy set": ("run", "--keep", "5"),
    "policy clear": ("run",),
    "metrics set": ("run@20", "auc=0.5"),
    "metrics show": ("run",),
    "metrics import": ("metrics.csv", "run"),
    "metrics remove": ("run@30", "loss"),
    "metrics mode": ("run", "f1", "max"),
    "tag add": ("run@20", "serving"),
    "tag remove": ("run@30", "kept"),
    "tag list": ("run",),
    "note": ("run@20", "words"),
    "metadata set": ("run@20", "lr=0.1"),
    "metadata show": ("run@30",),
    "metadata remove": ("run@30", "owner"),
    "wait": ("run", "--timeout", "0"),
    "watch": ("run", "--after", "-1", "--timeout", "0"),
    "repair": ("run@20", "--from", "run@30", "--mix"),
    "recover": ("run",),
    "unlock": ("run", "--yes"),
    "demo": ("demo",),
    "help": ("refs",),
    "systems": (),
    "version": (),
    "schema": ("list",),
    "completion": ("bash",),
    "doctor": ("run",),
    "config show": ("--origin",),
}
"""Every command, with words for a scene. A new command needs a row: a test compares them with the program's."""
READING = frozenset({
    "list", "inspect", "get", "head", "sample", "ids", "diff", "du", "report", "verify", "export", "policy show",
    "metrics show", "metadata show", "tag list", "demo", "systems", "help", "version", "schema", "wait", "watch",
    "completion", "config show", "browse",
})  # fmt: skip
"""The commands that change nothing in a location."""


def put(path: Path, content: str | bytes | dict[str, Any]) -> None:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def link(path: Path, goal: str) -> None:
    """Make a symbolic link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(goal)


def pipe(path: Path) -> None:
    """Make a pipe that nobody reads or writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def stage(run: Path, number: int, **files: str | bytes | dict[str, Any]) -> Path:
    """Make a staging directory of a dead process, with files by their names without `.json`."""
    place = run / STAGE / f"20200101T000000-elsewhere-7-{number:08x}"
    for name, content in ({"owner": DEAD} | files).items():
        put(place / f"{name}.json", content)
    os.utime(place / "owner.json", (1, 1))
    return place


def trash(run: Path, number: int, record: str | bytes | dict[str, Any] | None) -> Path:
    """Make an entry of the trash with a version in it that was deleted."""
    place = run / TRASH / f"20200101T000000-elsewhere-7-{number:08x}"
    put(place / "version-5/variables-0-of-1.ckpt", b"")
    if record is not None:
        put(place / "record.json", record)
    return place


def record(*versions: int, keep: bool = True) -> dict[str, Any]:
    """Return a record of the trash that is right."""
    return {"schema": "edl-ckpt/trash/1", "time": 1.0, "keep": keep, "versions": list(versions)}


def journal(version: Any, directory: str, **more: Any) -> dict[str, Any]:
    """Return a journal of a replacement."""
    return {"schema": "edl-ckpt/journal/1", "version": version, "directory": directory, "inode": 1, **more}


def facts(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return what there is below a directory, but for verdicts: kind and mode, size, time, the beginning of files."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for folder, directories, files in os.walk(top):
        if folder.count("/deep") > 3:  # the rest has no path
            directories.clear()
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            if is_verdicts(name):
                continue
            info = os.lstat(path)
            is_file = os.path.isfile(path) and not os.path.islink(path)
            with open(path, "rb") if is_file else io.BytesIO() as file:
                content = file.read(1 << 16)
            is_changed = path.endswith(("/run", f"/{META_DIR}"))  # `verify` remembers what it found there
            found[path] = (info.st_mode, info.st_size, 0 if is_changed else info.st_mtime_ns, content)
    return found


def run_command(base: Path, words: tuple[str, ...]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, and what it wrote to both streams."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with chdir(base), redirect_stdout(out), redirect_stderr(err):
        signal.alarm(SECONDS)
        try:
            from edl_ckpt.cli import app

            app.run(list(words))
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.alarm(0)
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()


# Scenes


def links(run: Path) -> None:
    """Links to the victim under every name that a command may look into, write to or remove."""
    victim = "../../../victim"
    link(run / STAGE / "x", victim)
    link(run / STAGE / "20200101T000000-elsewhere-7-000000aa", victim)
    link(run / STAGE / "copy-10", victim)
    link(run / STAGE / "copy-20/owner.json", f"../{victim}/precious")
    link(run / STAGE / "copy-20/journal.json", f"../{victim}/precious")
    put(stage(run, 1) / "version-20/x", "")
    link(stage(run, 2) / "version-20", f"../{victim}")
    link(stage(run, 3, journal=journal(20, "version-20")) / "old-version-20", f"../{victim}")
    link(stage(run, 4) / "journal.json", f"../{victim}/precious")
    link(stage(run, 5) / "seal.json", f"../{victim}/precious")
    link(run / TRASH / "y", victim)
    link(run / TRASH / "drop-z", victim)
    link(trash(run, 1, record(5)) / "version-6", f"../{victim}")
    link(trash(run, 2, None) / "record.json", f"../{victim}/precious")
    link(trash(run, 3, record(5, keep=False)) / "version-5/link", f"../../{victim}")
    link(trash(run, 4, record(5)) / "meta", f"../{victim}")
    link(run / META / "10.json", f"{victim}/precious")
    link(run / META / "10.seal.json", f"{victim}/precious")
    link(run / META / ".20.json.20200101T000000-elsewhere-7-000000aa.new", f"{victim}/precious")
    link(run / META / "location.json", f"{victim}/precious")
    link(run / ".edl-ckpt-0/lock-0", "../../victim/precious")


def linked_rooms(run: Path) -> None:
    """The directories for staging and for the trash are links to the victim."""
    link(run / STAGE, "../../victim")
    link(run / TRASH, "../../victim")


def linked_metadata(run: Path) -> None:
    """The directory of the metadata is a link to the victim, which has metadata."""
    (run / META).rename(run / ".edl-ckpt-0/away-0")
    link(run / META, "../../victim")


def linked_state(run: Path) -> None:
    """The state directory itself is a link to the victim."""
    (run / ".edl-ckpt-0").rename(run.parent / "away")
    link(run / ".edl-ckpt-0", "../victim")


def hard_links(run: Path) -> None:
    """Files that are rewritten in place are names of the victim's file."""
    for path in (run / ".edl-ckpt-0/lock-0", run / STAGE / "copy-20/owner.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(run.parent / "victim/precious")


def pipes(run: Path) -> None:
    """Pipes and sockets in the place of every file."""
    for name in (
        f"{STAGE}/pipe", f"{STAGE}/copy-10", f"{STAGE}/copy-20/owner.json", f"{STAGE}/copy-20/journal.json",
        f"{TRASH}/pipe", f"{TRASH}/drop-pipe", f"{META}/10.json", f"{META}/10.seal.json", f"{META}/location.json",
        ".edl-ckpt-0/lock-0", ".edl-ckpt-0/pipe-0",
    ):  # fmt: skip
        pipe(run / name)
    pipe(stage(run, 1) / "journal.json")
    pipe(stage(run, 2) / "owner.json")
    pipe(trash(run, 1, None) / "record.json")
    pipe(trash(run, 2, record(5)) / "version-5/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(run / STAGE)  # the path of a socket is short
        bound.bind("socket")
        os.chdir(here)


def documents(run: Path) -> None:
    """JSON that is huge, nested, beyond any number, or of other shapes."""
    nested = b'{"a": ' * 100_000
    bad: tuple[str | bytes | dict[str, Any], ...] = (
        nested, b"[" * 100_000, b'{"time": 1e400, "versions": [1e400]}', b'{"version": NaN}', b"\xff\xfe", b"{}", b"[]",
        b'{"version": ' + b"9" * 5000 + b"}", b'{"schema": 1, "versions": {"a": []}, "time": "x", "tags": 7}',
    )  # fmt: skip
    for number, content in enumerate(bad):
        stage(run, number, journal=content)
        stage(run, 100 + number, owner=content)
        trash(run, number, content)
        put(run / META / f"{400 + number}.json", content)
        put(run / META / f"{400 + number}.seal.json", content)
    outside = (
        "",
        ".",
        "..",
        "/",
        "../victim",
        ".edl-ckpt-0",
        "version-30",
        "version-20/x",
        "version-20\0",
        "x" * 300,
    )
    for number, directory in enumerate(outside):
        stage(run, 200 + number, journal=journal(20, directory))
        stage(run, 300 + number, journal={**journal(20, "version-20"), "old": [directory], "new": {directory: 1}})
        stage(run, 350 + number, journal={"version": 20, "target": directory, "old_names": [], "inode": 1})
    stage(run, 400, journal=journal(1e308, "version-20"))
    tags = {"tags": [f"tag-{number:06}" for number in range(20_000)]}
    put(run / META / "10.json", {"schema": "edl-ckpt/meta/1", "version": 10, **tags})
    put(run / META / "10.seal.json", (run / META / "20.seal.json").read_bytes())
    put(run / META / "location.json", nested)
    put(run / META / "400.json", "")
    os.truncate(run / META / "400.json", 1 << 40)
    put(run / ".edl-ckpt-0/lock-0", nested)


def names(run: Path) -> None:
    """Odd names, and a deep tree."""
    for folder in (run / STAGE, run / TRASH, run / META, run / ".edl-ckpt-0"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (
            b"new\nline",
            b"\xff\xfe",
            b"\x1b[31mred",
            b"n" * 255,
            b"-rf",
            b"copy-",
            b"copy-x",
            b"drop-",
            b"...",
        ):
            os.mkdir(os.path.join(os.fsencode(folder), name))
            os.close(os.open(os.path.join(os.fsencode(folder), name, b"file"), os.O_CREAT))
    fd = os.open(stage(run, 1), os.O_RDONLY)
    for _ in range(80):
        os.mkdir("deep", dir_fd=fd)
        below = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    put(run / META / "020.json", "{}")
    put(run / META / f"{'9' * 30}.json", "{}")


SCENES: Mapping[str, Callable[[Path], None]] = {
    scene.__name__.replace("_", " "): scene
    for scene in (links, linked_rooms, linked_metadata, linked_state, hard_links, pipes, documents, names)
}


def prepare(base: Path) -> None:
    """Make the location `run` with sound state, its `VERSIONS`, files to import, and the victim beside it."""
    from checkpoints import at, save_small
    from edl_ckpt.core import add_tag, export_version, set_metadata, set_metrics

    run, victim = base / "run", base / "victim"
    save_small(run, *VERSIONS)
    set_metrics(at(run, 30), {"loss": 0.25})
    add_tag(at(run, 30), "kept")
    set_metadata(at(run, 30), {"owner": "ads"})
    export_version(at(run, 30), str(base / "arrays.npz"))
    put(base / "metrics.csv", "step,auc\n20,0.5\n30,0.6\n")
    put(victim / "precious", "{}")
    for name in ("journal.json", "owner.json", "record.json", "20.json", "lock-0", "x/precious", "meta-0/20.json"):
        put(victim / name, "{}")
    put(victim / "version-5/variables-0-of-1.ckpt", "weights")
    put(victim / "20200101T000000-elsewhere-7-0000000a/precious", "{}")


if __name__ == "__main__":
    for title, scene in SCENES.items():
        place = Path(sys.argv[1]) / title.replace(" ", "-")
        prepare(place)
        scene(place / "run")
