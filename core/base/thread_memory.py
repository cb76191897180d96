"""Memory that a thread uses again for one batch after the other."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt


class ThreadMemory(threading.local):
    """Memory that each thread uses again: the kernel clears fresh memory, which costs as much as a read into it."""

    def __init__(self) -> None:
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, size: int, name: str = "") -> npt.NDArray[np.uint8]:
        """Return uint8 [size] with any content; the next call of this thread with the name returns the same bytes."""
        memory = self._memory.get(name)
        if memory is None or len(memory) < size:
            memory = self._memory[name] = np.empty(size, np.uint8)
        return memory[:size]
