"""What there is before and after a command of the fault sweep: each item of it, to be compared."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elasticdl_rules
from edl_ckpt.core import list_versions, verify_version
from edl_ckpt.core.commit.deletion.records import list_trash
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.paths import STATE_DIR, is_verdicts

LOCATIONS = ("run", "other")
EXPORTS = "out"
"""What a command works on, in a directory of its own that it is started in."""


State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version as it is found: in its place or in the trash, its shards and its content."""

    place: str
    ps_num: int | None
    fingerprint: str
    digest: str

    def __str__(self) -> str:
        return f"{self.ps_num} shards {self.place}"


def snapshot(work: Path) -> State:
    """Return all items that are there: what is neither in its place nor, to stay, in the trash has none."""
    state: State = {}
    for location in LOCATIONS:
        place = work / location
        state[f"{location} latest"] = _latest(place)
        if not place.is_dir():
            continue
        kept = [Path(e.path) for e in list_trash(str(place)) if e.keep]
        for where, top, documents in (
            ("in place", place, place / STATE_DIR / "meta-0"),
            *(("in the trash", entry, entry / "meta") for entry in kept),
            *(("in the trash", inside, inside / "meta") for entry in kept for inside in entry.glob("*.index")),
        ):
            for version in list_versions(str(top)).versions:
                if where == "in the trash" and version.number is None:
                    continue  # the directory in which the files of a bundle wait, which has a row of its own
                state.setdefault(f"{location}@{version.key}", _found(version, where))
            seals = {*documents.glob("*.seal.json"), *documents.glob("sealed-*.json")}
            for path in sorted(set(documents.glob("*.json")) - seals):
                if is_verdicts(path.name):  # a look at the state, as this one is, may leave them
                    continue
                state.setdefault(f"{location} {path.name}", (where, _document(path)))
    for path in sorted((work / EXPORTS).glob("[!.]*")):
        if path.is_file():
            state[f"{EXPORTS}/{path.name}"] = _digest([path])
    return state


def _latest(place: Path) -> str:
    """Return what ElasticDL would restore, or how its scan fails."""
    try:
        first, second = elasticdl_rules.answer(place) if place.is_dir() else ("none", "none")
    except OSError as error:
        return f"crash {type(error).__name__}"
    return first if first == second else f"{first} or {second}"


def _found(version: Version, where: str) -> FoundVersion:
    result = verify_version(version, level="deep", workers=1)
    fingerprint = result.fingerprint or "none"
    if not result.ok:
        fingerprint = f"not whole: {', '.join(sorted({f.code for f in result.findings}))}"
    return FoundVersion(where, version.ps_num, fingerprint, _digest(Path(file.path) for file in version.files))


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return {"damaged": path.name}


def _digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def described(item: Any) -> Any:
    """Return an item as the rows of `COMMANDS` say it."""
    if isinstance(item, tuple):
        where, document = item
        away = {} if where == "in place" else {"place": where}
        return {key: value for key, value in document.items() if key not in {"schema", "version"}} | away
    if isinstance(item, FoundVersion):
        return str(item)
    return "file" if re.fullmatch("[0-9a-f]{64}", str(item)) else item


def leftovers(work: Path) -> list[str]:
    """Return what is there and that no command is documented to keep; of a directory only its name."""
    found = [*(work / EXPORTS).glob(".*")]
    for location in LOCATIONS:
        top = work / location / STATE_DIR
        kept = {
            Path(e.path)
            for e in list_trash(str(work / location))
            if e.keep and _record(Path(e.path)) and _holds(Path(e.path))
        }
        found += [
            path
            for room in (top.iterdir() if top.is_dir() else ())
            for path in (_inside(room) if room.name in {"stage-0", "trash-0", "meta-0"} else [room])
            if path not in kept and not (room.name == "meta-0" and path.suffix == ".json")
        ]
        found += [top] if top.is_dir() and not any(top.iterdir()) else []
    return sorted(str(path.relative_to(work)) for path in found)


def _inside(room: Path) -> list[Path]:
    return [*room.iterdir()] or [room]


def _record(entry: Path) -> dict[str, Any]:
    path = entry / "record.json"
    return dict(_document(path)) if path.is_file() else {}


def _holds(entry: Path) -> bool:
    """Say whether anything of value is in an entry of the trash."""
    return any(path.is_file() and path.name != "record.json" for path in entry.rglob("*"))


def is_for_prune(path: Path) -> bool:
    """Say whether a leftover is what the next prune is documented to finish: of a deletion for good, or empty."""
    if path.name.startswith("copy-"):  # and what is whole of an interrupted copy waits for the same copy to go on
        return (path / "journal.json").is_file()
    if "trash-0" not in {path.name, path.parent.name} or not path.is_dir():
        return False
    return path.name.startswith("drop-") or not _holds(path) or _record(path).get("keep") is False
