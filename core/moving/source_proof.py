"""The values that a move has read, compared with what their source says of them: checksums in its files, and its seal.

What goes out as it was has the fingerprint of its source, and is compared with the seal while it moves. What goes out
changed has another one: then the whole source is compared with its seal before anything moves, or damage would get a
new seal.
"""

from __future__ import annotations

from functools import cached_property

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.converting.changes import Changes, Outgoing, OutTable, OutVariable
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, Forms, fingerprint_of
from edl_ckpt.core.proof.items import confirm_items, confirm_zip
from edl_ckpt.core.proof.stored_sums import confirm_sums
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.proof.values import add_entries, fingerprint
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import NO_SUMS, StoredSums, SumsCompared
from edl_ckpt.core.storage.interface import RangeReader


class SourceProof:
    """What arrays say of themselves: checksums in their files, or nothing."""

    def __init__(
        self, trust: Trust | None = None, sums: StoredSums | None = None, compared: SumsCompared = NO_SUMS
    ) -> None:
        """Take what is known of a seal, what is summed of values with checksums, and how many were compared before."""
        self.trust, self.sums, self.compared = trust, sums, compared

    @property
    def forced(self) -> str | None:
        """Return why the source did not match its seal or its checksums, where `force` went on."""
        return None if self.trust is None else self.trust.forced

    def sign(self, seal: Seal, command: str) -> Seal:
        """Return the seal of what was written, with the decisions that led to it."""
        return seal if self.trust is None else self.trust.sign(seal, command)

    def unchanged(self) -> set[str]:
        """Return the names of tables and variables of a version that go out as they were."""
        return set()

    def restart(self) -> None:
        """Sum the values with checksums anew: what was read before was read for a plan."""
        if self.sums is not None:
            self.sums.restart()

    def compare_sums(self, job: Job) -> None:
        """Compare what was read with the checksums in the files; CorruptError for a difference."""
        if self.sums is not None and self.trust is not None:
            self.compared += confirm_sums(self.sums, self.trust, job)

    def content(self, sketch: ContentSketch, job: Job) -> Fingerprint | ContentSketch:
        """Return what values with this sketch must be proved to be, once all checksums were compared."""
        self.compare_sums(job)
        return sketch


class VersionProof(SourceProof):
    """What a version says of itself, when a part of it, or all, goes out."""

    def __init__(
        self,
        source: Checkpoint,
        out: Outgoing,
        trust: Trust | None = None,
        sums: StoredSums | None = None,
        *,
        whole: Checkpoint | None = None,
        changes: Changes | None = None,
    ) -> None:
        """Take an opened version and what goes out of it; `whole` are its tensors, where these go out, changed so."""
        super().__init__(trust, sums)
        self._source, self._out = source, out
        self._whole, self._changes = whole, changes or Changes()

    @property
    def _going(self) -> list[OutTable | OutVariable]:
        return [*self._out.tables, *self._out.variables]

    def _is_same(self, one: OutTable | OutVariable) -> bool:
        """Return True if a table or a variable goes out as it was."""
        if isinstance(one, OutTable):
            return one.is_as(self._source.written_dtype(one.source))
        opened = self._whole or self._source
        return one.name == one.source and one.is_as(opened.find_variable(one.source)[1])

    def unchanged(self) -> set[str]:
        """Return the names of the tables and variables, or tensors, that go out as they were."""
        return {one.name for one in self._going if self._is_same(one)}

    @cached_property
    def is_changed(self) -> bool:
        """Whether the sums of what goes out differ from those of the source: only items may stay behind."""
        if self._whole is not None:  # matrices are summed by their rows, tables with ids as plain tensors
            entries = [entry for shard in self._source.shards for entry in shard.tables]
            return self._changes != Changes() or any(run.is_stored for entry in entries for run in entry.ids)
        going = {one.source for one in self._going}
        behind = {one.name for one in self._out.left_out if one.kind}
        expected = set(self._source.variable_names) - behind | set(self._source.table_names)
        return not (expected <= going and all(map(self._is_same, self._going)))

    @property
    def is_other_content(self) -> bool:
        """Whether the fingerprint of what goes out is not that of the files: values change, or a map makes tables."""
        is_mapped = self.sums is not None and self.sums.checkpoint is not self._source
        return self.is_changed or is_mapped

    def confirm_first(self, job: Job, *, is_wanted: bool = False) -> Fingerprint | None:
        """Compare the whole source with its seal before it moves, if what goes out has another fingerprint.

        Returns the source's fingerprint where it was read: for a seal, or where it `is_wanted`; then the checksums in
        the files are compared too. Raises CorruptError for a difference, unless `force` goes on.
        """
        if self.trust is None or self.sums is None or not self.is_other_content:
            return None
        if self.trust.seal is None and not is_wanted:
            return None
        found = fingerprint(self.sums.checkpoint, job.silent())
        if is_wanted:
            confirm_sums(self.sums, self.trust, job)
        self.trust.confirm(found.text)
        self.trust.seal = None
        self.sums.restart()
        return found

    def compare_items(self) -> None:
        """Compare the items that go out with the checksums in them; CorruptError for a difference."""
        if self.trust is not None:
            names = {variable.source for variable in self._out.variables if variable.is_item}
            self.compared += confirm_items(self._whole or self._source, names, self.trust)

    def compare_zip(self, reader: RangeReader, name: str) -> None:
        """Compare the members of a file that goes along, if it is a zip, with their checksums."""
        if self.trust is not None:
            self.compared += confirm_zip(reader, name, self.trust)

    def confirm_seal(self, sketch: ContentSketch) -> Fingerprint | None:
        """Return the fingerprint of the source from what moved, once compared with its seal; None if that is changed.

        Raises CorruptError for a difference, unless `force` goes on.
        """
        if self.is_changed:
            return None
        found = self._source_fingerprint(sketch)
        if self.trust is not None:
            self.trust.confirm(found.text)
        return found

    def _source_fingerprint(self, sketch: ContentSketch) -> Fingerprint:
        """Return the fingerprint of the source from what moved; what stayed behind is read, and that is little."""
        whole = ContentSketch()
        whole.add(sketch)
        add_entries(whole, self._source, self._behind(sketch))
        return fingerprint_of(self._source, whole)

    def _behind(self, sketch: ContentSketch) -> set[str]:
        """Return the items, and what is like them, that did not move."""
        left_out = {one.name for one in self._out.left_out if one.kind}
        return {*self._source.item_names, *left_out} - sketch.variable_names()

    def content(self, sketch: ContentSketch, job: Job) -> Fingerprint | ContentSketch:
        """Return what was read, as a fingerprint where all of it goes out as it was; CorruptError for a difference."""
        self.compare_sums(job)
        if self.is_changed:
            return sketch
        behind = self._behind(sketch)
        found = Forms(self._source.shards, without=behind).fingerprint(sketch)
        if self.trust is not None and self.trust.seal is not None:
            whole = self._source_fingerprint(sketch) if behind else found
            self.trust.confirm(whole.text)
        return found


def untouched(source: SourceProof, proved: Fingerprint) -> dict[str, str]:
    """Return the fingerprints of the tables and variables that went out as they were, by name, in order."""
    parts = proved.variables | proved.tables
    return {name: parts[name].hex() for name in sorted(source.unchanged()) if name in parts}
