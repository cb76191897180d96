"""Tables that other processes encode and send: a part of an upload for each span, whatever its size turns out to be.

Where a span begins in its file is not known before all spans are encoded, and need not be: parts have numbers. What is
less than the storage takes for a part is not sent at first. It is encoded again, together with the spans behind it, and
at the end of a file together with its footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.commit.uploads import Extent, Sending, SharedUploads, TargetPart
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.operations.export.balance import Balance, weight_of
from edl_ckpt.core.operations.export.encoded import encoded_span
from edl_ckpt.core.operations.export.interface import EncodedPart, Encoder
from edl_ckpt.core.operations.export.places import SentFile
from edl_ckpt.core.operations.export.runs import Found
from edl_ckpt.core.operations.export.sent_runs import OPEN_PARTS_BYTES
from edl_ckpt.core.operations.export.spans import Span, Tables
from edl_ckpt.core.packing import packed
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.storage.interface import SentPart
from edl_ckpt.core.storage.parts import MAX_PARTS, PartMemory

MOST_SPANS: Final = MAX_PARTS - 1
"""How many spans a file may have: each is a part, and the end of the file is one."""

Batches = tuple[tuple[int, int, bytes], ...]


class GroupsTask(NamedTuple):
    """Spans that become one part of a file, with what stands before and behind them there."""

    file: int
    number: int
    """That of the part."""
    spans: tuple[Span, ...]
    head: bytes = b""
    tail: bytes = b""


class GroupsSent(NamedTuple):
    """The rows, the bytes and the note of each batch; the part, or none where the bytes are too few for one.

    The balance has the content of the spans, as if it was sent.
    """

    batches: Batches
    parts: list[TargetPart]
    balance: Balance

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all batches."""
        return sum(size for _, size, _ in self.batches)


@dataclass(frozen=True, slots=True, eq=False)
class SendGroupsWork:
    """Encoding spans and sending them; a task is some parts."""

    source: CheckpointValue
    tables: Tables
    encoder: Encoder
    uploads: SharedUploads

    def open(self) -> Sending[Checkpoint]:
        """Open the checkpoint in another process, if that encodes as this one would."""
        self.encoder.check()
        return Sending(self.source.open(), OPEN_PARTS_BYTES)

    def do(
        self, opened: Sending[Checkpoint], task: tuple[GroupsTask, ...], advance: Advance
    ) -> tuple[Found, list[GroupsSent]]:
        """Encode and send."""
        found = Found()
        return found, [self._send(opened, part, found, advance) for part in task]

    def _send(self, opened: Sending[Checkpoint], part: GroupsTask, found: Found, advance: Advance) -> GroupsSent:
        batches: list[tuple[int, int, bytes]] = []
        data, balance = [memoryview(part.head)], Balance()
        for span in part.spans:
            weight = weight_of(self.tables.forms[span.table].name, span.first)
            for each in encoded_span(opened.source, self.tables, self.encoder, span, found, weight):
                batches.append((each.rows, len(each.data), each.note))
                data.append(each.data)
            balance.weigh(weight, sent=True)
            advance((span.last - span.first) * (8 + self.tables.forms[span.table].width))
        data.append(memoryview(part.tail))
        size, at = sum(map(len, data)), 0
        if size < self.uploads.part_bytes and not part.tail:
            return GroupsSent(tuple(batches), [], balance)
        with self.uploads.opened([Extent(part.file, (0, size), part.number)], opened.memory) as files:
            for some in data:
                files[part.file].write(at, some)
                at += len(some)
        return GroupsSent(tuple(batches), files.sent, balance)


class SentGroups:
    """The files of tables that are encoded by others, in the process that completes them."""

    def __init__(
        self,
        work: SendGroupsWork,
        executor: Executor,
        checkpoint: Checkpoint,
        files: Sequence[SentFile],
        reporter: Reporter,
    ) -> None:
        self._work, self._executor, self._checkpoint = work, executor, checkpoint
        self._files, self._reporter = files, reporter
        self._parts: list[list[SentPart]] = [[] for _ in files]
        self._counts = [0 for _ in files]
        self._head = b""
        self._rest: dict[int, _Group] = {}
        """What is too small for a part at the end of a file."""

    def send(
        self, spans: Iterable[tuple[int, list[Span]]], head: bytes, task_bytes: int, found: Found
    ) -> list[list[EncodedPart]]:
        """Send all spans, by the number of their file, behind a head; return what they became, in order."""
        self._head = head
        tasks: list[list[GroupsTask]] = [[] for _ in self._files]
        for file, own in spans:
            tasks[file] = [GroupsTask(file, k, (span,), b"" if k else head) for k, span in enumerate(own)]
            self._counts[file] = len(own)
        every = [task for own in tasks for task in own]
        first = self._run(every, task_bytes, found, advances=True)
        groups = list(_joined(zip(every, first, strict=True), self._work.uploads.part_bytes))
        again = [group.task for group in groups if group.is_joined and group.is_part]
        sent = iter(self._run(again, task_bytes, Found(), advances=False))
        for group in groups:
            if not group.is_part:
                self._rest[group.task.file] = group
            elif group.is_joined:
                self._parts[group.task.file].append(self._same(next(sent), group))
            elif group.part is not None:
                self._parts[group.task.file].append(group.part)
        made: list[list[EncodedPart]] = [[] for _ in self._files]
        for task, done in zip(every, first, strict=True):
            made[task.file].append(EncodedPart("", done.batches, ""))
        return made

    def end(self) -> None:
        """Send the ends of all files, which are known now, and what is left before them."""
        tails = [b"".join(data for _, data in sorted(file.heads.items())) for file in self._files]
        rest = [group.task._replace(tail=tails[file]) for file, group in self._rest.items()]
        for task, sent in zip(rest, self._run(rest, 0, Found(), advances=False), strict=True):
            self._parts[task.file].append(self._same(sent, self._rest[task.file]))
        for number, (file, tail) in enumerate(zip(self._files, tails, strict=True)):
            if number not in self._rest:
                head = b"" if self._counts[number] else self._head
                self._parts[number].append(self._send_end(number, head + tail))
            file.item.join(self._parts[number])

    def _same(self, sent: GroupsSent, group: _Group) -> SentPart:
        """Return the part of what was read and encoded again; EdlCkptError unless it is what it was before."""
        if (sent.batches, sent.balance) != (group.batches, group.balance):
            raise EdlCkptError(
                "rows were read or encoded differently the second time; nothing was published",
                hint="check the memory of the workers, and that the version did not change",
            )
        return sent.parts[0].part

    def _send_end(self, number: int, data: bytes) -> SentPart:
        memory = PartMemory()
        try:
            extent = Extent(number, (0, len(data)), self._counts[number])
            with self._work.uploads.opened([extent], memory) as files:
                files[number].write(0, data)
            return files.sent[0].part
        finally:
            memory.close()

    def _run(self, parts: Sequence[GroupsTask], task_bytes: int, found: Found, *, advances: bool) -> list[GroupsSent]:
        forms = self._work.tables.forms

        def measured(part: GroupsTask) -> tuple[GroupsTask, int, str, int]:
            form = forms[part.spans[0].table]
            rows = sum(span.last - span.first for span in part.spans)
            return part, rows * (8 + form.width), form.name, form.sums_bytes

        tasks = packed(map(measured, parts), task_bytes)
        advance = self._reporter.advance if advances else _nothing
        done: list[GroupsSent] = []
        with closing(self._executor.run(self._work, Sending(self._checkpoint, 0), tasks, advance)) as results:
            for some, sent in results:
                found.add(some)
                done += sent
        return done


def _nothing(size_bytes: int) -> None:
    """Pass over bytes that were counted before."""


class _Group(NamedTuple):
    """Spans that become one part, or none if `is_part` is False."""

    task: GroupsTask
    batches: Batches
    balance: Balance
    part: SentPart | None
    is_joined: bool
    is_part: bool


def _joined(done: Iterable[tuple[GroupsTask, GroupsSent]], least: int) -> Iterator[_Group]:
    """Yield what becomes parts: what was sent alone, or what is too small together with what follows in its file."""
    small: list[tuple[GroupsTask, GroupsSent]] = []

    def group() -> _Group:
        first = small[0][0]
        task = first._replace(spans=tuple(span for each, _ in small for span in each.spans))
        batches, balance = tuple(batch for _, sent in small for batch in sent.batches), Balance()
        for _, sent in small:
            balance.add(sent.balance)
        size = len(first.head) + sum(sent.size_bytes for _, sent in small)
        return _Group(task, batches, balance, None, is_joined=True, is_part=size >= least)

    for task, sent in done:
        if small and small[0][0].file != task.file:
            yield group()
            small = []
        if not small and sent.parts:
            yield _Group(task, sent.batches, sent.balance, sent.parts[0].part, is_joined=False, is_part=True)
            continue
        small.append((task, sent))
        if group().is_part:
            yield group()
            small = []
    if small:
        yield group()
