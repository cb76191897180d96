"""Whether a version can be relied on: its seal is absent, or it can be read and matches the files.

Every operation that makes something from a version, or replaces its seal, asks here first. Otherwise damage would get a
new seal, and would look right from then on; so would a mixture of two runs of a job. `force` goes on all the same. The
new seal then records who decided that, when and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnavailableError, UnsupportedError
from edl_ckpt.core.base.ids import user_name
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import command
from edl_ckpt.core.model.seals import Override, Seal, describe_change, now_text
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.proof.fingerprint import agrees
from edl_ckpt.core.reading.reader import (
    check_not_replaced,
)
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.state.shard_note import (
    has_newer_note,
    mixture,
)
from edl_ckpt.core.storage import open_store

_OF_FILES: Final = "take the file from another copy; if you know that its values are right: --force"


@dataclass(slots=True)
class Trust:
    """What is known of a version's seal; `forced` says what `force` had to overrule, None for nothing so far."""

    version: Version | None
    """None for arrays in files, which `source` names."""
    seal: Seal | None
    """The seal that matches the names and sizes of the files; None without one, and when it was overruled."""
    force: bool
    forced: str | None = None
    history: tuple[Override, ...] = ()
    reporter: Reporter = WARNINGS
    source: str = ""

    def overrule(self, error: EdlCkptError) -> None:
        """Note why the version does not match its seal, or raise the error without `force`."""
        if not self.force:
            raise error
        if not self.forced:
            self.forced = error.message
            ref = self.source if self.version is None else self.version.ref
            self.reporter.warn(f"{ref}: going on because of the option: {error.message}")

    def doubt(self, fault: str, code: str, *, path: str = "", offset: int | None = None) -> None:
        """Overrule a fault of the version, or of the file at a path; CorruptError without `force`."""
        whole, advice = (self.source, _OF_FILES) if self.version is None else (self.version.path, hint(self.version))
        self.overrule(CorruptError(fault, code=code, path=path or whole, offset=offset, hint=advice))

    def confirm(self, fingerprint: str) -> None:
        """Compare the fingerprint of the values that were read with the seal; CorruptError when it is another one."""
        if self.seal is not None and not agrees(self.seal.fingerprint, fingerprint):
            self.doubt("the values do not have the fingerprint in the version's seal", "fingerprint-mismatch")

    def sign(self, seal: Seal, command: str) -> Seal:
        """Return a new seal of the version's content, with the decisions that led to it."""
        if not self.forced:
            return replace(seal, history=self.history)
        return replace(seal, history=(*self.history, Override(now_text(), user_name(), command, self.forced)))


def check_trust(version: Version, *, force: bool = False, reporter: Reporter = WARNINGS) -> Trust:
    """Return what is known of a version's seal.

    Raises CorruptError for a seal that is damaged or does not match names and sizes, and for shards of two runs without
    a seal, UnsupportedError for a version whose metadata, seal or notes a newer edl-ckpt wrote, and the error of
    reading the seal. `force` goes on, except when the storage does not answer and where something is newer.
    Raises ReplacedError when another command replaced the version since it was listed.
    """
    if version.fault is not None:  # what is listed of its files says nothing about the seal
        raise version.fault.error()
    if version.unread is not None and version.is_newer:
        raise version.unread.error()
    trust = Trust(version, None, force, reporter=reporter)
    if not version.has_place_for_seal:
        return trust  # the seals next to it are of others
    try:
        store = open_store(version.location)
        seal = read_seal(store, version.key)
    except (UnavailableError, UnsupportedError):
        raise
    except EdlCkptError as error:
        error.hint = error.hint or hint(version)
        trust.overrule(error)
        return trust
    if seal is None:
        if not version.is_named and has_newer_note(store, version.version):
            raise UnsupportedError("a newer edl-ckpt wrote the notes on its shards; upgrade", path=version.path)
        if mixed := mixture(store, version):
            trust.doubt(mixed, "mixed-runs")
        return trust
    trust.history = seal.history
    change = describe_change(seal, version)
    if not change:
        trust.seal = seal
        return trust
    check_not_replaced(version)  # or it is the seal of the next shards
    trust.doubt(f"does not match its seal: {change}", "checksum-mismatch")
    return trust


def hint(version: Version) -> str:
    """Return what a person can do about a version that does not match its seal."""
    return (
        f"see {command('verify', version.ref, '--deep')}; if a job has rewritten the version,"
        " or you know that its files are right: --force (export: --ignore-seal, or --partial for what is left)"
    )
