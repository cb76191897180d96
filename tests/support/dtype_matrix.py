"""Each dtype that torch, safetensors and TensorFlow write, through each verb: the frameworks judge the results.

A cell is one verb on one checkpoint, which has a tensor of one dtype, the float32 tensor `w` and, of torch, values of
Python. The result has the bytes as the loader of its system reads them; or the command ends with 15, names the tensor
and a way on, writes nothing, and the way leads on.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.reading.reader import Checkpoint
from places import TESTS
from program import edl

TORCH, TENSORFLOW = "EDL_CKPT_TEST_TORCH_PYTHON", "EDL_CKPT_TEST_TENSORFLOW_PYTHON"
Described = Mapping[str, tuple[str, tuple[int, ...], str]]
"""The dtype, the shape and the bytes, in hex, of each tensor by its name."""
VALUES = frozenset({"value", "string", "scalar_string", "variant"})
"""What is no tensor of numbers: a format without a place for it leaves it out by name."""


class Judge:
    """A process with a framework that answers requests, a line of JSON each."""

    def __init__(self, variable: str, script: str) -> None:
        python = os.environ.get(variable)
        if not python:
            pytest.skip(f"{variable} does not name a Python that has what judges/{script} needs")
        self._process = subprocess.Popen(
            [python, str(TESTS / "support/judges" / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *request: Any) -> Any:
        """Return the answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def tensors(self, *request: Any) -> Described:
        """Return the tensors that a request is answered with; fail where the framework refuses."""
        answer = self.ask(*request)
        assert "error" not in answer, (request, answer)
        return {name: (dtype, tuple(shape), data) for name, (dtype, shape, data) in answer.items()}

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@dataclass
class System:
    """A system of checkpoints: its judge, and where a step of it is."""

    name: str
    judge: Judge

    def dtypes(self) -> list[str]:
        """Return the names of the tensors that its framework writes."""
        return list(self.judge.ask("dtypes", *self._kind))

    @property
    def _kind(self) -> tuple[str, ...]:
        return () if self.name == "tensorflow" else (self.name,)

    def save(self, run: Path, names: Sequence[str]) -> Described:
        """Save step 3 with tensors and `w` into a directory of runs."""
        step = {"dcp": "step_3", "safetensors": "checkpoint-3/model.safetensors", "tensorflow": "ckpt-3"}[self.name]
        (run / step).parent.mkdir(parents=True, exist_ok=True)
        return self.judge.tensors("save", *self._kind, str(run / step), list(names))

    def read(self, place: Path) -> Described:
        """Return what the framework reads of the one checkpoint in a directory, or in one below it."""
        if self.name == "dcp":
            (index,) = place.rglob(".metadata")
            return self.judge.tensors("read", "dcp", str(index.parent))
        if self.name == "tensorflow":
            (file,) = place.rglob("*.index")
            return self.judge.tensors("read", str(file).removesuffix(".index"))
        every: dict[str, tuple[str, tuple[int, ...], str]] = {}
        for file in [place] if place.is_file() else sorted(place.rglob("*.safetensors")):
            every |= self.judge.tensors("read", "safetensors", str(file))
        return every


def numpy_arrays(place: Path) -> Described:
    """Return what numpy reads of an .npz, or of a directory of .npy; a bfloat16 is there as its bits."""
    if place.is_dir():
        arrays = {file.stem: np.load(file) for file in sorted(place.glob("*.npy"))}
    else:
        with np.load(place) as file:
            arrays = {name: file[name] for name in file.files if not name.startswith("__edl_ckpt__")}
    named = {name: "bfloat16" if name == "bfloat16" else array.dtype.name for name, array in arrays.items()}
    return {name: (named[name], array.shape, array.tobytes().hex()) for name, array in arrays.items()}


def shards(place: Path) -> Described:
    """Return what edl-ckpt reads of ElasticDL's shards, or of any checkpoint."""
    with open_checkpoint(str(place)) as checkpoint:
        return dict(_variables(checkpoint))


def _variables(checkpoint: Checkpoint) -> Iterator[tuple[str, tuple[str, tuple[int, ...], str]]]:
    for shard in checkpoint.shards:
        for one in shard.variables:
            data = checkpoint.reader(shard, one.values).read(one.values.start, one.size_bytes)
            yield one.name, (one.dtype.name, one.shape, bytes(data).hex())


def middle_of_content(item: bytes) -> int:
    """Return where the middle of the largest record of an item of torch is: between records there is padding."""
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        records = [one for one in archive.infolist() if one.filename.endswith(("data/0", "data.pkl"))]
        record = next((one for one in records if one.filename.endswith("data/0")), records[0])
        start = item.index(archive.read(record), record.header_offset)
    return start + record.file_size // 2


@dataclass
class Cells:
    """The cells that were looked at: how many ended in which way, and what is wrong."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, verb: str, how: str) -> None:
        """Count a cell."""
        self.ended[verb, how] += 1

    def fault(self, *words: Any) -> None:
        """Note a cell that is wrong."""
        self.wrong.append(" ".join(map(str, words)))

    def lines(self) -> list[str]:
        """Return the counts of each verb."""
        verbs = dict.fromkeys(verb for verb, _ in self.ended)
        return [
            f"{verb}: " + ", ".join(f"{n} {how}" for (v, how), n in self.ended.items() if v == verb) for verb in verbs
        ]


@dataclass
class Column:
    """The verbs on one checkpoint: a tensor `name` of the dtype of that name, among others."""

    system: System
    name: str
    folder: Path
    readers: Mapping[str, Callable[[Path], Described]]
    """What reads an export, by its format."""
    cells: Cells

    def __post_init__(self) -> None:
        self.run = self.folder / "run"
        self.truth = self.system.save(self.run, [self.name])
        self.source = f"{self.run}@3"
        for file in self.run.rglob("*"):
            os.utime(file, (0, 0))  # a job that still writes has younger files

    def all(self) -> None:
        """Look at each verb."""
        self.looks()
        self.rewrites()
        self.exports()
        self.imports()
        self.flips()

    def command(self, verb: str, *arguments: str | Path, code: int = 0) -> str | None:
        """Run a command; return what it says on stderr, or None where it ended with another code, which is noted."""
        done = edl(*arguments)
        if done.returncode != code:
            self.cells.fault(self.system.name, self.name, verb, "ended with", done.returncode, done.stderr[-400:])
            return None
        return done.stderr

    def equal(self, verb: str, found: Callable[[], Described], wanted: Described) -> None:
        """Compare what a judge reads with what it should read."""
        try:
            tensors = found()
        except AssertionError as error:
            self.cells.fault(self.system.name, self.name, verb, "its loader says", error)
            return
        differ = [name for name in {*tensors, *wanted} if tensors.get(name) != wanted.get(name)]
        if differ:
            pairs = {name: (wanted.get(name), tensors.get(name)) for name in differ}
            self.cells.fault(self.system.name, self.name, verb, "differs:", str(pairs)[:400])
        else:
            self.cells.add(verb, "has the bytes")

    def looks(self) -> None:
        """List, inspect, verify, and compare with a copy."""
        listed = edl("list", self.run, "--json")
        versions = [v for place in json.loads(listed.stdout)["locations"] for v in place["versions"]]
        if [one["state"] for one in versions] != ["complete"]:
            self.cells.fault(self.system.name, self.name, "list", listed.stdout[-300:], listed.stderr)
        self.cells.add("list", "complete")
        shown = edl("inspect", self.source, "--json").stdout
        if not all(json.dumps(name) in shown for name in self.truth):
            self.cells.fault(self.system.name, self.name, "inspect", shown)
        self.cells.add("inspect", "names each")
        checked = json.loads(edl("verify", "--deep", self.source, "--json").stdout)
        if not checked["ok"]:
            self.cells.fault(self.system.name, self.name, "verify", checked)
        self.cells.add("verify --deep", "ok")

    def rewrites(self) -> None:
        """Reshard, edit, strip and copy."""
        kind, out, read = self.system.name, self.folder / "out", self.system.read
        more = ["--max-shard-size", "60B"] if kind == "safetensors" else ["--ranks", "3"]
        copied = self.folder / "copied"
        if self.command("copy", "copy", self.source, copied) is not None:
            self.equal("copy", partial(read, copied), self.truth)
            if self.command("diff", "diff", self.source, f"{copied}@3") is not None:
                self.cells.add("diff", "equal")
            self.in_place(copied, more)
        renamed = {"renamed" if name == self.name else name: one for name, one in self.truth.items()}
        rest = {name: one for name, one in self.truth.items() if name != self.name}
        float16 = np.frombuffer(bytes.fromhex(self.truth["w"][2]), np.float32).astype(np.float16)
        cast = {**self.truth, "w": ("float16", (3, 4), float16.tobytes().hex())}
        with np.errstate(over="ignore"):
            ways: list[tuple[str, list[str], Described]] = [
                ("reshard --output", ["reshard", self.source, *more], self.truth),
                ("edit --rename", ["edit", self.source, "--rename", f"{self.name}=renamed"], renamed),
                ("edit --drop", ["edit", self.source, "--drop", self.name], rest),
                ("edit --cast of another", ["edit", self.source, "--cast", "w=float16"], cast),
                ("edit --drop-companions", ["edit", self.source, "--drop-companions"], self.truth),
            ]
        for number, (verb, arguments, wanted) in enumerate(ways):
            place = out / str(number)
            if self.command(verb, *arguments, "--output", place) is not None:
                self.equal(verb, partial(read, place), wanted)
        floats = self.name in {"float16", "bfloat16", "float32", "float64", "half"}
        if not floats:
            arguments = ["edit", self.source, "--cast", f"{self.name}=float16", "--output", str(out / "cast")]
            said = self.command("edit --cast of it", *arguments, code=2)
            if said is not None:
                self.cells.add("edit --cast of it", "refused" if self.name in said else "REFUSED WITHOUT A NAME")
                if (out / "cast").exists():
                    self.cells.fault(self.system.name, self.name, "edit --cast of it: something was written")

    def in_place(self, location: Path, more: Sequence[str]) -> None:
        """Reshard in place; files side by side are refused, and are in a directory of their own then."""
        verb, files = "reshard in place", list(location.glob("ckpt-3.*"))
        if files:
            if self.command(verb, "reshard", f"{location}@3", *more, code=16) is not None:
                self.cells.add(verb, "refused: files side by side")
            (location / "step_3").mkdir()
            for file in files:
                file.rename(location / "step_3" / file.name)
            shutil.rmtree(location / ".edl-ckpt-0", ignore_errors=True)
        if self.command(verb, "reshard", f"{location}@3", *more) is not None:
            self.equal(verb, partial(self.system.read, location), self.truth)

    def imports(self) -> None:
        """Import into a checkpoint of ElasticDL, by its reference and as a file."""
        for verb, given in (("import REF", self.source), ("import FILE", self._file())):
            place = self.folder / verb.replace(" ", "-")
            done = edl("import", given, f"{place}@5", "--ps", "2")
            if done.returncode == 0:
                wanted = {n: one for n, one in self.truth.items() if self._goes("checkpoint", n)}
                if not all(name in done.stderr for name in self.truth if name not in wanted):
                    self.cells.fault(self.system.name, self.name, verb, "left out without a word", done.stderr)
                self.equal(verb, partial(shards, place), wanted)
            elif done.returncode != 15 or f"edit --drop {self.name!r}" not in done.stderr:
                self.cells.fault(self.system.name, self.name, verb, done.returncode, done.stderr[-300:])
            else:
                self.cells.add(verb, "refused by name with a way on")
                if place.exists():
                    self.cells.fault(self.system.name, self.name, verb, "refused, and something was written")

    def _file(self) -> Path:
        """Return the checkpoint as a path."""
        files = {"dcp": "step_3", "safetensors": "checkpoint-3/model.safetensors", "tensorflow": "ckpt-3"}
        return self.run / files[self.system.name]

    def exports(self) -> None:
        """Export to each format; where one refuses, go the way that it names."""
        for number, (format_name, read) in enumerate(self.readers.items()):
            verb, ending = f"export {format_name}", {"npz": ".npz", "torch": ".pt", "safetensors": ".safetensors"}
            place = self.folder / f"e{number}{ending.get(format_name, '')}"
            done = edl("export", self.source, place, "--format", format_name)
            if done.returncode == 0:
                wanted = {n: one for n, one in self.truth.items() if self._goes(format_name, n)}
                gone = [name for name in self.truth if name not in wanted]
                if not all(name in done.stderr for name in gone):
                    self.cells.fault(self.system.name, self.name, verb, "left out without a word", gone, done.stderr)
                self.equal(verb, partial(read, place), wanted)
                continue
            if done.returncode != 15 or repr(self.name) not in done.stderr:
                self.cells.fault(self.system.name, self.name, verb, done.returncode, done.stderr[-300:])
                continue
            self.refused(verb, format_name, place, done.stderr)

    def _goes(self, format_name: str, name: str) -> bool:
        kind = self.name if name == self.name else self.truth[name][0]
        return kind not in VALUES or format_name == self.system.name

    def refused(self, verb: str, format_name: str, place: Path, words: str) -> None:
        """Go the way that a refusal names."""
        if place.exists():
            self.cells.fault(self.system.name, self.name, verb, "refused, and something was written")
        hint = words.strip().splitlines()[-1]
        if f"edit --drop {self.name!r}" not in hint:
            self.cells.fault(self.system.name, self.name, verb, "names no way on:", words)
            return
        way = shlex.split(hint.partition("edit ")[2].partition(",")[0])
        less = self.folder / f"less-{format_name}"
        if self.command(f"{verb}: the way", "edit", self.source, *way, "--output", less) is None:
            return
        if self.command(f"{verb}: the way", "export", f"{less}@3", place, "--format", format_name) is not None:
            wanted = {n: one for n, one in self.truth.items() if n != self.name and self._goes(format_name, n)}
            before = len(self.cells.wrong)
            self.equal("the way on", partial(self.readers[format_name], place), wanted)
            if len(self.cells.wrong) == before:
                self.cells.add(verb, "refused, and the way leads on")

    def flips(self) -> None:
        """Flip one bit in each: diff names it, and verify does."""
        if self.command("verify --seal", "verify", "--seal", self.source) is None:
            return
        with open_checkpoint(self.source) as checkpoint:
            places = {}
            for name in self.truth:
                shard, one = checkpoint.find_variable(name)
                stored = bytes(checkpoint.reader(shard, one.values).read(one.values.start, one.size_bytes))
                offset = middle_of_content(stored) if self.system.name == "dcp" and one.is_item else len(stored) // 2
                places[name] = Path(shard.path(one.values)), one.values.start + offset
        for number, (name, (path, offset)) in enumerate(places.items()):
            other = self.folder / f"flipped-{number}"
            shutil.copytree(self.run, other)
            copied = other / path.relative_to(self.run)
            data = bytearray(copied.read_bytes())
            data[offset] ^= 1
            copied.write_bytes(data)
            for seal in (True, False):
                if not seal:
                    shutil.rmtree(other / ".edl-ckpt-0", ignore_errors=True)
                found = json.loads(edl("verify", "--deep", f"{other}@3", "--json").stdout)
                named = {one["subject"] for one in found["findings"] if one["severity"] == "error"}
                if name in named:
                    self.cells.add("a flipped bit", f"named by verify {'with' if seal else 'without'} a seal")
                elif seal or self.system.name != "safetensors":
                    self.cells.fault(self.system.name, name, "flip", seal, found["findings"])
            done = edl("diff", self.source, f"{other}@3", "--json")
            listed = json.loads(done.stdout)
            rows = [*listed["variables"], *listed.get("items", [])]
            differ = [row["name"] for row in rows if row["status"] != "equal"]
            if differ != [name]:
                self.cells.fault(self.system.name, name, "diff", differ, done.stderr)
            self.cells.add("a flipped bit", "named by diff")
            shutil.rmtree(other)
