"""What docs/retention.md says of random locations, restated: which versions a rule may delete.

A location is described first, then made on a disk, so the oracle asks nothing of the product. All versions are of
safetensors but a few of TFRA; each has one file of a tensor, and most have an optimizer.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

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


@dataclass
class Step:
    """One version: its number, and what is in its directory."""

    number: int
    name: str
    is_tfra: bool = False
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
    steps: dict[int, Step] = {}
    for number in numbers:
        step = Step(number, str(number) if random.random() < 0.07 else f"step_{number}")
        real = [other for other, one in steps.items() if one.linked_to is None and one.file_in is None]
        chance = random.random()
        if chance < 0.12 and real:
            step.linked_to = random.choice(real)
        elif chance < 0.24 and real:
            same = [other for other in real if not steps[other].is_tfra]
            step.file_in = random.choice(same) if same else None
        elif chance < 0.3:
            step.is_tfra = True
        step.has_optimizer = random.random() > 0.1
        step.foreign = random.sample(FOREIGN, 1) if random.random() < 0.2 and step.linked_to is None else []
        step.known = random.sample(KNOWN, random.randint(0, 2)) if step.linked_to is None else []
        if step.is_tfra:
            step.foreign = ["notes.txt"] if step.foreign else []
            step.known = [name for name in step.known if name in HOSTS]
        step.tagged = random.random() < 0.1
        steps[number] = step
    place = Place(steps)
    for name in ("latest", "latest_checkpointed_iteration.txt", "best", "trainer_state.json"):
        if random.random() < 0.12:
            place.pointers[name] = random.choice(numbers)
    return place


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
    if step.is_tfra:
        (directory / "t_mht_1of1_rank0_size1-keys").write_bytes(struct.pack("<2q", 1, 2))
        (directory / "t_mht_1of1_rank0_size1-values").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    elif step.file_in is not None:
        (directory / "model.safetensors").symlink_to(f"../{place.steps[step.file_in].name}/model.safetensors")
    else:
        (directory / "model.safetensors").write_bytes(_tensor_file())
    if step.has_optimizer and not step.is_tfra:
        (directory / "optimizer.pt").write_bytes(b"optimizer")
    for path in (*step.foreign, *step.known):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(_tensor_file() if path.endswith(".safetensors") else b"content")


def _tensor_file() -> bytes:
    """Return a file of safetensors with one tensor."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


def kept(place: Place, keep: int) -> set[int]:
    """Return the versions that `prune --keep N` does not delete, by the page."""
    steps = place.steps
    named = [number for number in sorted(steps) if not steps[number].name.isdigit()] or sorted(steps)
    tfra = _content(place, named[-1]).is_tfra
    counted = [n for n in sorted(steps) if _content(place, n).is_tfra == tfra and not steps[n].name.isdigit()]
    good = _good(place, counted)
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


def _good(place: Place, counted: list[int]) -> list[int]:
    """Return the versions that have what the last good one has: an optimizer, and the files of its job."""
    good: list[int] = []
    last: dict[bool, set[str]] = {}
    for number in sorted(place.steps):
        step = _content(place, number)
        files = {name for name in step.known if name in {"config.json", "rng_state_0.pth"}}
        files |= {"optimizer.pt"} if step.has_optimizer and not step.is_tfra else set()
        if step.is_tfra or last.get(False, set()) <= files:
            last[step.is_tfra] = files
            good += [number] if number in counted else []
    return good


def _would_go(counted: list[int], good: list[int], keep: int) -> set[int]:
    """Return the suspect versions that no rule keeps: a rule keeps one where it would if it were good."""
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
