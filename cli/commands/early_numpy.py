"""numpy, imported by a command itself, before what needs it.

CPython keeps the frames of calls in chunks of memory. At the bottom of a chain of imports, the many calls of numpy's
own import may go to and fro over the end of a chunk, and each asks the kernel for the next one: 1,900 times in a
reshard, 20 ms. Few frames are above a command, so its import stays in one chunk.
"""

from __future__ import annotations


def import_numpy() -> None:
    """Import numpy here; call it first, where everything that follows needs it."""
    import numpy  # noqa: F401, ICN001 - only its import matters
