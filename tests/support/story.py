"""A long story: random commands over two locations, killed and failing on the way, and a model of what must be there.

    python tests/support/story.py --seconds 300              on the local disk
    python tests/support/story.py --seconds 300 --s3         on moto behind the proxy, two processes at once
    python tests/support/story.py --steps 40 --seed 7        another story; a seed tells the same one again

The content of a version follows from its number, so whatever wrote, moved or restored a version, an independent reader
(the protobuf library) knows what it must find. The model has one item for each version, tag, metric and note. A command
that ends with 0 has brought all of its items to their new values. Any other end leaves each item old or new. No command
touches an item that is not its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import elasticdl_rules
from builders import write_checkpoint
from s3_fixtures import Bucket, fresh_bucket, make_moto
from s3_proxy import Fault, hook, lose_reply, reset, status, truncate
from story_model import (
    PLACES,
    Files,
    Items,
    World,
    check_done,
    check_failed,
    content,
    leftovers,
    numbers,
    observe,
    tagged,
    with_copies,
    without,
)

Effect = Callable[[Items], Items]

KINDS: Final = ("kill", "killed-after", "error", "done", "full", "short")
FOR_EVER: Final = 1e9
_KILLED: Final = -9
_CODES: Final = {0, 1, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, _KILLED}
_FIRST_CALLS: Final = 120
"""How many calls a command makes, until one has ended and its number is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the story, and what it does to the items when it ends with 0."""

    argv: tuple[str, ...]
    effect: Effect


@dataclass(slots=True)
class Running:
    """A command at work in an actor."""

    actor: Actor
    step: Step
    pid: int
    log: Path

    def end(self) -> int:
        """Wait for the end of the command and return its code."""
        code = int(self.actor.line())
        text = self.log.read_text(errors="replace")
        words = f"{' '.join(self.step.argv)} ended with {code}:\n{text}"
        assert code in _CODES, words
        assert "Traceback" not in text, words
        match = re.search(r"(\d+) calls$", text)
        if match:
            self.actor.calls[self.step.argv[0]] = int(match[1])
        return code


class Actor:
    """A process that runs the commands of a story, one after the other."""

    def __init__(self, work: Path, environment: Mapping[str, str], *modules: str) -> None:
        self._work = work
        self._environment = dict(environment)
        self.calls: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("story_actor.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_CONFIG_HOME": "/nowhere", **environment},
            text=True,
        )

    def line(self) -> str:
        """Return the next line of the actor."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the actor has ended"
        return line

    def start(self, step: Step, kind: str = "", at: int = 0) -> Running:
        """Start a command, with a fault of this kind at the call of this number."""
        log = self._work / f"{id(self)}.log"
        request = {
            "argv": step.argv, "root": str(self._work), "kind": kind, "at": at, "log": str(log),
            "environment": self._environment,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Running(self, step, int(self.line()), log)

    def run(self, step: Step, kind: str = "", at: int = 0) -> int:
        """Run a command to its end and return its code."""
        return self.start(step, kind, at).end()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(300)
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Disk:
    """Locations on the local disk."""

    work: Path

    def url(self, place: str) -> str:
        """Return the location of a place."""
        return str(self.work / place)

    def files(self, place: str) -> Files:
        """Return every file of a place, by its path in it."""
        top = self.work / place
        return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}

    def save(self, place: str, number: int, ps_num: int) -> None:
        """Save a version as a job does."""
        write_checkpoint(self.work / place, content(number), ps_num, layout="elasticdl")

    def check_scan(self, place: str, newest: int | None) -> None:
        """Check that ElasticDL's own scan finds this version."""
        name = "none" if newest is None else f"version-{newest}"
        assert elasticdl_rules.answer(self.work / place) == (name, name)


LOOKS: Final = ("list", "verify", "verify --seal", "recover")
ANNOTATIONS: Final = ("tag", "untag", "metrics", "note")
ON_S3: Final = ("reshard", "output", "copy", "copy all", "prune", *ANNOTATIONS, *LOOKS)
ON_DISK: Final = (*ON_S3, "prune --trash", "undo", "purge")


@dataclass(slots=True)
class Author:
    """Makes up the next step of a story, from what is there."""

    world: World
    chance: random.Random
    words: Sequence[str]
    """What the steps are made from."""
    last: int = 0
    """The newest version that any job has saved."""
    trashed: dict[str, Items] = field(default_factory=dict)
    """By place, what the last prune into the trash took away, where that is known."""

    def step(self, items: Items) -> Step:
        """Return a step that must end with 0 when nothing fails and no other command runs."""
        place = self.chance.choice(PLACES)
        number = self.chance.choice(numbers(items, place))
        word = self.chance.choice(self.words)
        if word in {"reshard", "output", "copy", "copy all"}:
            return self._write(items, place, number, word)
        if word.startswith("prune"):
            return self._prune(place, keep=self.chance.randint(1, 3), trash=word == "prune --trash")
        if word == "undo" and place in self.trashed:
            back = self.trashed[place]
            return Step(("undo", self.world.url(place)), lambda i: i | back)
        if word == "purge":
            return Step(("prune", self.world.url(place), "--purge", "--yes"), lambda i: i)
        if word in ANNOTATIONS:
            return self._annotate(items, place, number, word)
        ref = f"{self.world.url(place)}@{number}"
        argv = {"verify": ("verify", ref), "verify --seal": ("verify", ref, "--seal", "--force")}
        return Step(argv.get(word, ("recover" if word == "recover" else "list", self.world.url(place))), lambda i: i)

    def _write(self, items: Items, place: str, number: int, word: str) -> Step:
        """Return a step that writes versions: in place, or in the other place."""
        other = PLACES[1 - PLACES.index(place)]
        url, key = self.world.url, ("version", place, number)
        ref, one = f"{url(place)}@{number}", ("--workers", "1")
        n = self.chance.choice([k for k in (1, 2, 3, 5) if k != items[key]])
        if word == "copy all" and all(self._is_twin(k) for k in numbers(items, place) if k in numbers(items, other)):
            return Step(
                ("copy", url(place), url(other), "--all", *one),
                lambda i: with_copies(i, place, other, {k: i["version", place, k] for k in numbers(i, place)}),
            )
        if word in {"output", "copy"} and number not in numbers(items, other):
            argv: tuple[str, ...] = ("copy", ref, url(other), *one)
            if word == "output":
                argv = ("reshard", ref, "--ps", str(n), "--output", url(other), *one)

            def effect(i: Items) -> Items:
                ps_num = n if word == "output" else i.get(key, 0)
                return with_copies(i, place, other, {number: ps_num} if key in i else {})

            return Step(argv, effect)
        return Step(("reshard", ref, "--ps", str(n), *one), lambda i: i | ({key: n} if key in i else {}))

    def _is_twin(self, number: int) -> bool:
        """Say whether a version has the same shards in both places: any other one is refused by a copy."""
        one, two = (
            {path: data for path, data in self.world.files(place).items() if path.startswith(f"version-{number}/")}
            for place in PLACES
        )
        return one == two

    def _prune(self, place: str, *, keep: int, trash: bool) -> Step:
        def effect(i: Items) -> Items:
            return without(i, place, [k for k in numbers(i, place)[:-keep] if k not in tagged(i, place)])

        flags = ("--trash",) if trash else ()
        return Step(("prune", self.world.url(place), "--keep", str(keep), "--yes", *flags), effect)

    def _annotate(self, items: Items, place: str, number: int, word: str) -> Step:
        """Return a step that writes metadata of a version that is there."""
        ref, own = f"{self.world.url(place)}@{number}", ("version", place, number)
        tag, value = f"{place}{self.chance.randint(1, 3)}", self.chance.randint(0, 99) / 100
        key = ("tag", place, tag)

        def with_item(name: tuple[Any, ...], new: Any) -> Effect:
            return lambda i: i | ({name: new} if own in i else {})

        def without_tag(i: Items) -> Items:
            rest = i.get(key, frozenset()) - {number}
            return {k: v for k, v in i.items() if k != key} | ({key: rest} if rest else {})

        if word == "untag" and number in items.get(key, ()):
            return Step(("tag", "remove", ref, tag), without_tag)
        if word in {"tag", "untag"}:
            return Step(("tag", "add", ref, tag), with_item(key, frozenset({number})))
        if word == "metrics":
            name = ("metric", place, number, "loss")
            return Step(("metrics", "set", ref, f"loss={value}"), with_item(name, value))
        return Step(("note", ref, f"note {value}"), with_item(("note", place, number), f"note {value}"))

    def save(self, items: Items) -> Items:
        """Let a job save the next version in a place that has few; return the items with it."""
        place = min(PLACES, key=lambda p: len(numbers(items, p)))
        self.last += 1
        ps_num = self.chance.randint(1, 4)
        self.world.save(place, self.last, ps_num)
        return items | {("version", place, self.last): ps_num}

    def remember(self, step: Step, before: Items, after: Items, *, done: bool) -> None:
        """Note what is in the trash, so that `undo` can be foretold."""
        place = next((p for p in PLACES if step.argv[1] == self.world.url(p)), "")
        if step.argv[0] in {"prune", "undo"}:
            self.trashed.pop(place, None)
        if step.argv[0] == "prune" and done and "--trash" in step.argv:
            gone = {k: v for k, v in before.items() if k not in after}
            if any(k[0] == "version" for k in gone):
                self.trashed[place] = gone
        for known in list(self.trashed):  # a number that is taken again cannot be restored
            if any(k in after for k in self.trashed[known]):
                del self.trashed[known]


@dataclass(slots=True)
class Story:
    """A story that is being told: its world, what is there, and how the steps ended."""

    world: World
    seed: int
    words: Sequence[str]
    author: Author = field(init=False)
    items: Items = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.author = Author(self.world, random.Random(self.seed), self.words)
        while any(len(numbers(self.items, place)) < 2 for place in PLACES):
            self.items = self.author.save(self.items)

    def save_at_times(self) -> None:
        """Let a job save a version now and then, and always when few are left."""
        few = sum(len(numbers(self.items, place)) for place in PLACES) < 4
        if few or self.author.chance.random() < 0.15:
            self.items = self.author.save(self.items)

    def judge(self, ended: Sequence[tuple[Running, int]], *, faults: str) -> None:
        """Compare what is there after one or two steps with what may be there; `faults` says what went wrong."""
        words = faults or "no fault"
        for r, code in ended:
            words += f"\nseed {self.seed}, step {self.steps}: {' '.join(r.step.argv)} -> {code}"
            words += f"\n{r.log.read_text(errors='replace')}"
        observed = observe(self.world)
        try:
            assert faults or len(ended) > 1 or ended[0][1] == 0, "it failed"
            self._judge(observed, ended)
        except AssertionError as error:
            raise AssertionError(f"{words}\n{error}") from None
        for running, code in ended:
            self.author.remember(running.step, self.items, observed, done=code == 0)
            end = "killed" if code == _KILLED else f"exit {code}"
            self.counts[end] = self.counts.get(end, 0) + 1
        self.items = observed

    @property
    def steps(self) -> int:
        """Return how many steps there were."""
        return sum(self.counts.values())

    def _judge(self, observed: Items, ended: Sequence[tuple[Running, int]]) -> None:
        """Check that all steps that ended with 0 are done, in one order or the other, and the others wholly or not."""
        effects = [running.step.effect for running, _ in ended]
        done = [running.step.effect for running, code in ended if code == 0]
        after = [_all_of(order, self.items) for order in (effects, effects[::-1])]
        if len(done) == len(ended):
            check_done(observed, after)
            return
        before = _all_of(done, self.items)
        check_failed(observed, self.items, [before, *after])
        for key in {*before, *self.items}:
            touched = any(items.get(key) != before.get(key) for items in after)
            if before.get(key) != self.items.get(key) and not touched:
                assert observed.get(key) == before.get(key), f"{key} is {observed.get(key)}, not {before.get(key)}"

    def end(self, actor: Actor) -> None:
        """Check that nothing is left of the story but what the model has."""
        for place in PLACES:
            recover = actor.start(Step(("recover", self.world.url(place), "--drop-copies"), lambda i: i))
            assert recover.end() == 0, recover.log.read_text()
            left = leftovers(self.world.files(place))
            assert left == [], f"{place}: {left}"
        check_done(observe(self.world), [self.items])


def _all_of(effects: Sequence[Effect], items: Items) -> Items:
    for effect in effects:
        items = effect(items)
    return items


def tell(work: Path, seed: int, *, steps: int, seconds: float = FOR_EVER) -> dict[str, int]:
    """Tell a story on the local disk; return how many steps ended in each way."""
    story = Story(Disk(work), seed, ON_DISK)
    chance = story.author.chance
    with closing(Actor(work, {})) as actor:
        until = time.monotonic() + seconds
        while story.steps < steps and time.monotonic() < until:
            story.save_at_times()
            step = story.author.step(story.items)
            kind = chance.choice(KINDS) if chance.random() < 0.6 else ""
            at = chance.randint(1, actor.calls.get(step.argv[0], _FIRST_CALLS)) if kind else 0
            running = actor.start(step, kind, at)
            story.judge([(running, running.end())], faults=f"{kind} at call {at}" if kind else "")
        story.end(actor)
    return story.counts


@dataclass(frozen=True, slots=True)
class Cloud:
    """Locations in a bucket; what looks at them goes past the proxy."""

    bucket: Bucket

    def url(self, place: str) -> str:
        """Return the location of a place."""
        return f"s3://{self.bucket.name}/{place}"

    def files(self, place: str) -> Files:
        """Return every object of a place, by its path in it."""
        keys = [key for key in self.bucket.objects() if key.startswith(f"{place}/")]
        return {key.partition("/")[2]: self.bucket.get(key) for key in keys}

    def save(self, place: str, number: int, ps_num: int) -> None:
        """Save a version as a job does."""
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder), content(number), ps_num, layout="elasticdl")
            self.bucket.upload(Path(folder), place)

    def check_scan(self, place: str, newest: int | None) -> None:
        """Do nothing: ElasticDL has no scan of a bucket."""


def tell_on_s3(work: Path, bucket: Bucket, seed: int, *, steps: int, seconds: float = FOR_EVER) -> dict[str, int]:
    """Tell a story in a bucket, two commands at a time; return how many steps ended in each way.

    After a step that failed, `recover` runs before anybody looks: on S3 only that puts an end to what takes many steps.
    """
    story = Story(Cloud(bucket), seed, ON_S3)
    chance = story.author.chance
    variables = {n: v for n, v in os.environ.items() if n.startswith("AWS_") or n == "no_proxy"}
    with ExitStack() as stack:
        actors = [stack.enter_context(closing(Actor(work, variables, "botocore.session"))) for _ in "ab"]
        until = time.monotonic() + seconds
        while story.steps < steps and time.monotonic() < until:
            story.save_at_times()
            running = [actor.start(story.author.step(story.items)) for actor in actors]
            fault = _fault(chance, [r.pid for r in running]) if chance.random() < 0.8 else None
            armed = bucket.proxy.fail(fault) if fault else None
            ended = [(r, r.end()) for r in running]
            bucket.proxy.heal()
            if any(code for _, code in ended):
                for place in PLACES:
                    assert actors[0].run(Step(("recover", story.world.url(place)), lambda i: i)) == 0
            struck = f"{armed.fault.kind.__qualname__}, {armed.hits} times" if armed and armed.hits else ""
            story.judge(ended, faults=struck)
        story.end(actors[0])
        assert bucket.open_uploads() == []
    return story.counts


def _fault(chance: random.Random, pids: Sequence[int]) -> Fault:
    """Return a fault at a random request: of the service, of the line, or the death of a command."""
    victim = chance.choice(pids)

    def kill(_request: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    kinds = [status(503, "SlowDown"), reset, lose_reply, truncate, hook(kill), hook(kill)]
    return Fault(chance.choice(kinds), nth=chance.randint(1, 40), times=chance.choice([1, 1, 9]))


def main() -> None:
    """Tell one story, or one after the other, and print how the steps ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=FOR_EVER, help="the longest time")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="the most steps")
    parser.add_argument("--seed", type=int, default=1, help="which story (1)")
    parser.add_argument("--s3", action="store_true", help="in a bucket, two commands at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.s3:
            with pytest.MonkeyPatch.context() as patch, fresh_bucket(make_moto(), patch) as bucket:
                counts = tell_on_s3(Path(folder), bucket, options.seed, steps=options.steps, seconds=options.seconds)
        else:
            counts = tell(Path(folder), options.seed, steps=options.steps, seconds=options.seconds)
    print(
        f"seed {options.seed}: {sum(counts.values())} steps; {', '.join(f'{n} {e}' for e, n in sorted(counts.items()))}"
    )


if __name__ == "__main__":
    main()
