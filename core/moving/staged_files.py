"""New files of any system as the proof opens them: by their own format; they must have the sums of what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.tensors import as_tensors
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms, value_bytes
from edl_ckpt.core.proof.proving import OpenedPart, Staged
from edl_ckpt.core.proof.values import ValueOptions
from edl_ckpt.core.reading.pieces import dense_at, read_dense
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.systems import title_of

if TYPE_CHECKING:
    from edl_ckpt.core.moving.conversion import Conversion
    from edl_ckpt.core.moving.run import Moved

_STEP_BYTES: Final = 4 << 20


class StagedFiles(Staged):
    """The files of a conversion."""

    def __init__(self, plan: Conversion, moved: Moved, version: Version) -> None:
        """Take a plan, what has moved by it, and the version that it has become."""
        super().__init__()
        self.version, self.options = version, ValueOptions()
        self._plan, self._moved = plan, moved
        self._target: Checkpoint

    def __enter__(self) -> Self:
        """Open the version; UnsupportedError for a variable whose name says another thing in these files."""
        super().__enter__()
        self._target = self.enter_context(open_checkpoint(self.version, staged=True))
        self._check_names()
        return self

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values that the files have."""
        return value_bytes(self._target)

    def parts(self, job: Job) -> Iterator[OpenedPart]:
        """Yield the whole version."""
        del job
        yield OpenedPart(self._target)

    def _check_names(self) -> None:
        """Raise UnsupportedError for a variable that the files have, and that is none there."""
        names = [name for name in sorted(self._moved.sketch.variable_names()) if not self._target.has_entry(name)]
        if names:
            system = title_of(self._target.version.layout.system)
            message = f"{names[0]!r} is no name of a variable in files of {system}: it would be read as part of a table"
            hint = f"nothing was written; give it another name: --rename '{names[0]}=NEW'"
            raise UnsupportedError(message, path=self._plan.source.version.ref, hint=hint)

    def differing(self, found: Fingerprint, forms: Forms, sketch: ContentSketch) -> Sequence[str]:
        """Return tables and variables, tensors that are neither, and files that went along, if they are not as meant.

        Only what was meant is looked for: a format may show more.
        """
        del found, forms
        meant = self._moved.sketch
        variables = differing_variables(meant, sketch, self._target)
        return [*self._tables(meant, sketch), *variables, *self._tensors(), *self._carried()]

    def _tables(self, meant: ContentSketch, sketch: ContentSketch) -> Iterator[str]:
        for name in [table.name for table in self._plan.out.tables] or sorted(meant.tables):
            one, other = meant.tables.get(name), sketch.tables.get(name)
            if one is not other and (one is None or other is None or not np.array_equal(one, other)):
                yield name

    def _tensors(self) -> Iterator[str]:
        names, sums = set(self._moved.tensors.variable_names()), ContentSketch()
        if not names:
            return
        whole = as_tensors(self._target)
        for place in dense_at(whole, 0):
            entry = place.entry(whole)
            if entry.name in names:
                sums.add_dense(entry.name, entry.size_bytes, place.start, read_dense(whole, place))
        yield from differing_variables(self._moved.tensors, sums, whole)

    def _carried(self) -> Iterator[str]:
        target = self._target
        for name, size in self._plan.destination.carried.items():
            pairs = ((start, min(_STEP_BYTES, size - start)) for start in range(0, size, _STEP_BYTES))
            with self._plan.opened(name) as read, target.store.open(target.version.path_of(name)) as written:
                if written.size_bytes != size or any(read.read(*pair) != written.read(*pair) for pair in pairs):
                    yield name


def differing_variables(meant: ContentSketch, found: ContentSketch, opened: Checkpoint) -> Iterator[str]:
    """Yield the names of what a version lacks, or else of what has other sums than were meant."""
    names = sorted(meant.variable_names())
    missing = [name for name in names if not opened.has_entry(name)]
    if missing:
        yield from missing
        return
    for (name, one), (_, other) in zip(meant.variable_sums(names), found.variable_sums(names), strict=True):
        if not np.array_equal(one, other):
            yield name
