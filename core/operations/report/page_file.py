"""The file of a report's page: whole or not at all, and never among checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl_ckpt.core.operations.export.interface import FormatTraits
from edl_ckpt.core.operations.export.output.target import open_target
from edl_ckpt.core.storage.location import Location, LocationLike

_TRAITS = FormatTraits("report", is_text=True)


@contextmanager
def report_file(goal: LocationLike, *, force: bool = False) -> Iterator[Callable[[str], None]]:
    """Open a file for the page of a report, on disk or at a URL, and yield what writes the page.

    Nothing is visible before the whole page is written. Raises RefusedError for a file that is there, without `force`,
    and for one that would lie among checkpoints; both before anything is read.
    """
    with open_target(Location.of(goal), _TRAITS, is_directory=False, force=force) as target:

        def write(page: str) -> None:
            with target.open_text() as file:
                file.write(page)
            target.publish()

        yield write
