"""What docs/retention.md says of random locations, restated: which versions a rule may delete.

A location is described first, then made on a disk, so the oracle asks nothing of the product. Its versions are of one
system, but for a few of another one; most of those that a Trainer saves have an optimizer. Some are damaged in a way
that only their values show, and of some of these `verify` knows it.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from bundle_files import write_bundle
from checkpoints import save_small
from system_runs import SYSTEMS

HOUR = 3600.0
START = 1_000_000_000.0
FOREIGN = (
    "notes.txt",
    ".git/HEAD",
    "checkpoints/other.bin",
    ".hydra/config.yaml",
    "a/b/c/d/e/f/g/h.bin",
)
HOSTS = (".DS_Store", ".nfs0001", ".edl-ckpt-0/lock-0")
KNOWN = (*HOSTS, "config.json", "rng_state_0.pth")
OF_A_TRAINER = {"safetensors", "dcp", "dynamicemb"}
"""The systems next to which a Trainer's files belong to the version."""
WITHOUT_END = {"safetensors", "tfra", "dynamicemb", "tensorflow"}
"""The systems whose files do not say that a save has ended."""
MAIN = ("safetensors", "safetensors", "dcp", "tensorflow", "tfra", "dynamicemb", "elasticdl")
NAN = struct.pack("<f", float("nan"))
LINKED = {
    "safetensors": "model.safetensors",
    "dcp": "__1_0.distcp",
    "tfra": "t_mht_1of1_rank0_size1-values",
}
"""The files that may be links into another version: those that a damaged one has damaged."""


@dataclass
class Step:
    """One version: its number, and what is in its directory."""

    number: int
    name: str
    system: str = "safetensors"
    is_damaged: bool = False
    """A value is wrong, and names and sizes are right."""
    is_verified: bool = False
    """`verify --deep` was here, before the prune."""
    has_optimizer: bool = True
    foreign: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    linked_to: int | None = None
    """The version that its directory is a link to."""
    file_in: int | None = None
    """The version that has its file of a tensor, which is a link."""
    tagged: bool = False


@dataclass
class Place:
    """A location: its versions by number, and what names them."""

    steps: dict[int, Step]
    pointers: dict[str, int] = field(default_factory=dict)
    """By the name of a file or a link, the version that it names."""


def random_place(random: Random) -> Place:
    """Return the description of a location."""
    numbers = sorted(random.sample(range(1, 40), random.randint(2, 10)))
    main = random.choice(MAIN)
    steps: dict[int, Step] = {}
    for number in numbers:
        plain = f"version-{number}" if main == "elasticdl" else f"step_{number}"
        step = Step(number, str(number) if random.random() < 0.07 and main != "elasticdl" else plain, main)
        real = [other for other, one in steps.items() if one.linked_to is None and one.file_in is None]
        chance = random.random()
        if chance < 0.12 and real:
            step.linked_to = random.choice(real)
        elif chance < 0.24 and real and main in LINKED:
            same = [other for other in real if steps[other].system == main]
            step.file_in = random.choice(same) if same else None
        elif chance < 0.3 and main != "elasticdl":
            step.system = "safetensors" if main == "tfra" else "tfra"
        step.is_damaged = random.random() < 0.3
        step.is_verified = random.random() < 0.6
        step.has_optimizer = random.random() > 0.1
        step.tagged = random.random() < 0.1
        _add_guests(random, step)
        steps[number] = step
    place = Place(steps)
    for name in ("latest", "latest_checkpointed_iteration.txt", "best", "trainer_state.json"):
        if random.random() < 0.12:
            place.pointers[name] = random.choice(numbers)
    return place


def _add_guests(random: Random, step: Step) -> None:
    """Add what is in a step besides the checkpoint; in a version of ElasticDL it would tear it."""
    foreign = random.sample(FOREIGN, 1) if random.random() < 0.2 else []
    known = random.sample(KNOWN, random.randint(0, 2))
    if step.linked_to is not None or step.system == "elasticdl":
        return
    if step.system not in OF_A_TRAINER:
        foreign = ["notes.txt"] if foreign else []
        known = [name for name in known if name in HOSTS]
    step.foreign, step.known = foreign, known


def make(place: Place, root: Path) -> None:
    """Make a location on a disk; a version with a higher number is younger."""
    root.mkdir()
    for step in place.steps.values():
        directory = root / step.name
        if step.linked_to is not None:
            directory.symlink_to(place.steps[step.linked_to].name)
            continue
        directory.mkdir()
        _make_files(place, step, directory)
        moment = START + step.number * HOUR
        for inner in (*directory.rglob("*"), directory):
            os.utime(inner, (moment, moment), follow_symlinks=False)
    for name, number in place.pointers.items():
        target = place.steps[number].name
        texts = {"trainer_state.json": json.dumps({"best_model_checkpoint": f"/out/{target}"}), "latest": target}
        if name == "best":
            (root / name).symlink_to(target)
        else:
            (root / name).write_text(texts.get(name, str(number)))


def _make_files(place: Place, step: Step, directory: Path) -> None:
    """Make the files of one version."""
    for name, data in content_of(step.system, is_damaged=step.is_damaged).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if step.file_in is not None and name == LINKED[step.system]:
            path.symlink_to(f"../{place.steps[step.file_in].name}/{name}")
        else:
            path.write_bytes(bytes([8, step.number]) + data[2:] if step.system == "elasticdl" else data)
    if step.has_optimizer and step.system in OF_A_TRAINER:
        (directory / "optimizer.pt").write_bytes(b"optimizer")
    for name in (*step.foreign, *step.known):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"content")


@functools.cache
def content_of(system: str, *, is_damaged: bool) -> Mapping[str, bytes]:
    """Return the files of a sound version, or of one in which a value is not the one that was saved."""
    files = dict(_sound(system))
    name = LINKED.get(system) or max(files, key=lambda one: (not one.endswith("keys"), len(files[one])))
    if not is_damaged:
        return files
    data = files[name]
    if system in {"dcp", "tensorflow"}:  # they have checksums
        place = len(data) * 2 // 3
        files[name] = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    elif system == "elasticdl":
        files[name] = data.replace(struct.pack("<f", 1.0), NAN, 1)
    else:
        files[name] = data[:-4] + NAN
    return files


def _sound(system: str) -> Mapping[str, bytes]:
    """Return the files of a sound version by their names in its directory."""
    if system == "safetensors":
        return {"model.safetensors": _tensor_file()}
    if system == "tfra":
        prefix = "t_mht_1of1_rank0_size1"
        return {f"{prefix}-keys": struct.pack("<2q", 1, 2), f"{prefix}-values": struct.pack("<4f", 1, 2, 3, 4)}
    fixtures = {"dcp": SYSTEMS / "dcp/mch/step_6", "dynamicemb": SYSTEMS / "dynamicemb/step_1"}
    if system in fixtures:
        return _files_of(fixtures[system])
    with tempfile.TemporaryDirectory() as scratch:
        if system == "tensorflow":
            write_bundle(Path(scratch) / "model", {"w": np.arange(300, dtype="<f4")})
            return _files_of(Path(scratch))
        save_small(scratch, 1, sealed=False)
        return _files_of(Path(scratch) / "version-1")


def _files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _tensor_file() -> bytes:
    """Return a file of safetensors with one tensor."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


def kept(place: Place, keep: int) -> set[int]:
    """Return the versions that `prune --keep N` does not delete, by the page."""
    steps = place.steps
    named = [number for number in sorted(steps) if not steps[number].name.isdigit()] or sorted(steps)
    system = _content(place, named[-1]).system
    counted = [n for n in sorted(steps) if _content(place, n).system == system and not steps[n].name.isdigit()]
    good = [number for number in _without_doubts(place, counted) if not is_known_as_damaged(place, number)]
    stays = {n for n in steps if n not in counted or steps[n].tagged or steps[n].foreign}
    stays |= set(place.pointers.values())
    stays |= set(counted) - set(good) - _would_go(counted, good, keep)
    if not good:
        stays |= set(counted)
    else:
        newest = good[-1]
        stays |= {n for n in counted if n >= newest} | set(good[-keep:])
        stays |= {n for n in counted if n < newest and _time(place, n) > _time(place, newest) + 600.0}
    return _with_needs(place, stays)


def _content(place: Place, number: int) -> Step:
    """Return the version that has the content of one: itself, or what it is a link to."""
    linked = place.steps[number].linked_to
    return place.steps[number if linked is None else linked]


def is_known_as_damaged(place: Place, number: int) -> bool:
    """Say whether `verify --deep` has read the wrong value of a version, wherever the file with it lies."""
    named, step = place.steps[number], _content(place, number)
    has_wrong_number = step.system == "elasticdl" and step is not named  # ElasticDL's files have the number in them
    step = step if step.file_in is None else place.steps[step.file_in]
    return named.is_verified and (has_wrong_number or step.is_damaged)


def _without_doubts(place: Place, counted: list[int]) -> list[int]:
    """Return the versions that have what the last good one has: an optimizer, and the files of its job."""
    sure: list[int] = []
    last: dict[str, set[str]] = {}
    for number in sorted(place.steps):
        step = _content(place, number)
        files = {name for name in step.known if name in {"config.json", "rng_state_0.pth"}}
        files |= {"optimizer.pt"} if step.has_optimizer else set()
        needed = last.get(step.system, set()) if step.system in WITHOUT_END & OF_A_TRAINER else set[str]()
        if needed <= files:
            last[step.system] = needed if is_known_as_damaged(place, number) else files
            sure += [number] if number in counted else []
    return sure


def _would_go(counted: list[int], good: list[int], keep: int) -> set[int]:
    """Return the suspect and damaged versions that no rule keeps: a rule keeps one where it would if it were good."""
    return {n for n in counted if n not in good and n not in counted[-keep:]}


def _time(place: Place, number: int) -> float:
    """Return when a version changed last, as a listing that follows links sees it."""
    step = _content(place, number)
    numbers = [step.number] if step.file_in is None else [step.number, step.file_in]
    return START + max(numbers) * HOUR


def _with_needs(place: Place, stays: set[int]) -> set[int]:
    """Return versions with all that they need, over links in them."""
    while True:
        needed = {place.steps[n].linked_to for n in stays} | {place.steps[n].file_in for n in stays}
        more = {n for n in needed if n is not None} - stays
        if not more:
            return stays
        stays |= more
