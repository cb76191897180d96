"""Work of a move as tasks: pieces of variables with the size of their sums, and tasks handed to other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.commit.sent_parts import Sending
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.moving.input import Input, Stretch
from edl_ckpt.core.moving.parts import DenseBytes, MoveTask
from edl_ckpt.core.reading.picklable import HeldValue

Done = TypeVar("Done")


def with_sum_bytes(
    pieces: Iterable[tuple[DenseBytes, int]], summed_bytes: Callable[[str], int]
) -> Iterator[tuple[DenseBytes, int, str, int]]:
    """Yield pieces of variables with their sizes, as `packed` takes them, and the bytes of their sums in a result.

    `summed_bytes` returns of a variable the bytes that one sketch is of: all of its bytes, or those of a row.
    """
    for dense, size_bytes in pieces:
        total = summed_bytes(dense.name)
        yield dense, size_bytes, "", total if total <= bulk.CHUNK_BYTES else 4 * sketch_size(total)


def handed_out(
    job: Job,
    source: Input,
    do: Callable[[Sending[Input], MoveTask[Stretch], Advance], Done],
    tasks: Iterable[MoveTask[Stretch]],
    *,
    memory_bytes: int = 0,
) -> AbstractContextManager[Iterator[Done]]:
    """Let other processes do tasks, each with its own opening of the source; what they answer comes as it is done.

    `memory_bytes` is what each of them has for parts of uploads.
    """
    opens = HeldValue(source.value(), partial(Sending[Input], memory_bytes=memory_bytes))
    return job.run(FunctionWork(opens, do), Sending[Input](source, 0), tasks)
