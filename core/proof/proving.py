"""The proof of a written version: every byte of it is read back, and must be what was meant.

Any system's files are proved so. They are opened by their own format, or by the layout by which they were written; what
they contain must be the content of the source, as it went out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.model.seals import Seal, SealedShard, now_text
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms
from edl_ckpt.core.proof.sealing import cut
from edl_ckpt.core.proof.values import Marks, ValueOptions, read_back
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl.target import Literals

_NAMED: Final = 5


class OpenedPart(NamedTuple):
    """Some shards of a written version, opened; `literals` are what their files must have besides values and ids."""

    checkpoint: Checkpoint
    literals: Mapping[str, Literals] | None = None


class Staged(ExitStack):
    """A written version, and what it must contain; a context manager, in which it is open."""

    version: Version
    options: ValueOptions
    """What the pass over the values looks at, and how much it has in memory."""
    marks: Marks | None = None
    """Rows whose places are planned: other processes look for them there, and count none first."""

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        raise NotImplementedError

    def parts(self, job: Job) -> Iterator[OpenedPart]:
        """Open all shards, some at a time, so that memory does not depend on how many there are.

        Raises CorruptError for a file that is not what was meant.
        """
        raise NotImplementedError

    def differing(self, found: Fingerprint, forms: Forms, sketch: ContentSketch) -> Sequence[str]:
        """Return the names of what is not as it was meant, in what was found of all parts."""
        raise NotImplementedError


class Proved(NamedTuple):
    """A version that was read back."""

    seal: Seal
    fingerprint: Fingerprint
    """That of the seal, with those of its parts."""
    shards: tuple[ShardSummary, ...]
    """At the paths where they were read."""
    version: Version
    """As it was read."""

    def shards_at(self, path: str) -> tuple[ShardSummary, ...]:
        """Return the shards where they are once the version is at a path: it was read in the staging directory."""
        inside = ((shard, shard.path.removeprefix(self.version.path)) for shard in self.shards)
        return tuple(replace(shard, path=path + rest) for shard, rest in inside)


def prove(staged: Staged, job: Job, key: int | str) -> Proved:
    """Read back a written version and return its seal under a key; EdlCkptError when it is not what was meant."""
    sketch, forms = ContentSketch(), Forms()
    sealed: list[SealedShard] = []
    shards: list[ShardSummary] = []
    version = staged.version
    try:
        with staged:
            job.reporter.start("proving", staged.value_bytes)
            for part in staged.parts(job):
                own_sketch, own_sealed = _read_part(staged, part, job)
                sketch.add(own_sketch)
                sealed += own_sealed
                for shard in part.checkpoint.shards:
                    forms.add(shard)
                    shards.append(shard.summary)
            found = forms.fingerprint(sketch)
            different = staged.differing(found, forms, sketch)
    except CorruptError as error:
        raise _differs(error.message, error.path or version.path, error.offset) from error
    if different:
        raise _differs(", ".join(map(repr, different[:_NAMED])), version.path)
    return Proved(Seal(key, found.text, tuple(sealed), now_text()), found, tuple(shards), version)


def _read_part(staged: Staged, part: OpenedPart, job: Job) -> tuple[ContentSketch, list[SealedShard]]:
    """Read every byte of some shards; return the sketch of their values, and the checksums of their files."""
    checkpoint = part.checkpoint
    files = [(shard, number) for shard in checkpoint.shards for number in range(len(shard.file.files))]
    chunks = [cut(shard, checkpoint.files[shard.file.files[number].path], number) for shard, number in files]
    sketch, sums = read_back(
        checkpoint,
        chunks,
        job,
        options=staged.options,
        literals=part.literals,
        total_bytes=staged.value_bytes,
        marks=staged.marks,
    )
    sealed = []
    for (shard, number), own_sums in zip(files, sums, strict=True):
        file = shard.file.files[number]
        sealed.append(SealedShard(staged.version.name_of(file.path), file.size_bytes, own_sums))
    return sketch, sealed


def _differs(what: str, path: str, offset: int | None = None) -> EdlCkptError:
    return EdlCkptError(
        f"the written version differs from its source ({what}); nothing was published",
        path=path,
        offset=offset,
        hint="check the memory and the disk of this machine",
    )
