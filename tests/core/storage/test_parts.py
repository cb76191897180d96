"""The memory of parts has one exact bound, and no order of writes stops the work."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from edl_ckpt.core.base.parallel import run_parallel, stop_requested
from edl_ckpt.core.storage.parts import Part, PartMemory
from waiting import wait_until

SIZE = 1000


def send(memory: PartMemory, part: Part) -> bytes:
    """Send a part, and return what was sent."""
    data = bytes(memory.lift(part))
    memory.drop(part)
    return data


@pytest.mark.parametrize("limit", [0, SIZE, 5 * SIZE, 100 * SIZE])
def test_any_order_within_the_bound(limit: int) -> None:
    """Forty parts that are filled in turn, of two sizes, are all sent, within the limit or in one part's memory."""
    memory = PartMemory(limit)
    wanted = np.arange(40 * SIZE).astype(np.uint8).reshape(40, SIZE)
    memory.expect(SIZE)
    sizes = [SIZE if number % 3 else 500 for number in range(40)]
    parts = [memory.open(size) for size in sizes]
    for start in range(0, SIZE, 250):
        for part, data in zip(parts, wanted, strict=True):
            part.write(min(start, part.size_bytes), data[start : min(start + 250, part.size_bytes)].data)
    sent = list(run_parallel(lambda part: send(memory, part), parts, 8))
    assert sent == [bytes(data[:size]) for data, size in zip(wanted, sizes, strict=True)]
    assert memory.peak_bytes <= max(limit, SIZE)
    assert memory.used_bytes == 0
    assert (memory.spooled_bytes == 0) == (limit == 100 * SIZE)
    memory.close()


def test_parts_on_their_way_are_waited_for() -> None:
    """Where the memory is taken by parts that are being sent, a new part waits for one of them, and needs no disk."""
    memory = PartMemory(4 * SIZE)
    sending = [memory.open(SIZE) for _ in range(3)]
    for part in sending:
        memory.lift(part)
    assert memory.used_bytes == 3 * SIZE
    opened: list[Part] = []
    waiting = threading.Thread(target=lambda: opened.append(memory.open(SIZE)))
    waiting.start()
    waiting.join(0.05)
    assert opened == []
    memory.drop(sending[0])
    waiting.join(300)
    assert len(opened) == 1
    assert memory.spooled_bytes == 0
    assert memory.peak_bytes == 3 * SIZE
    memory.close()


def test_buffers_are_used_again() -> None:
    """A thousand parts, one after the other, take one buffer; parts of many sizes keep the bound, too."""
    memory = PartMemory(8 * SIZE)
    seen = set()
    for _ in range(1000):
        part = memory.open(SIZE)
        seen.add(id(part.data))
        send(memory, part)
    assert len(seen) == 1
    for size in range(1, SIZE):
        send(memory, memory.open(size))
        assert sum(map(len, memory._free)) == memory._free_bytes <= memory.limit_bytes
    memory.close()


def test_a_signal_ends_the_waiting_for_memory() -> None:
    """Whoever waits for memory is stopped with its command, although no part comes back; so are those that send."""
    memory = PartMemory(2 * SIZE)
    memory.lift(memory.open(SIZE))
    sending = memory.senders.begin(lambda: wait_until(stop_requested))
    main = threading.main_thread().ident
    assert main is not None
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(main, signal.SIGINT)

    def wait_for_memory(_: int) -> None:
        begun.set()
        memory.open(SIZE)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        list(run_parallel(wait_for_memory, range(4), 2))
    interrupter.join()
    memory.close()
    assert sending.done()
