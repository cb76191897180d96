"""`edl-ckpt repair`: replaces damaged files of a version by those of another copy."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import references
from edl_ckpt.cli.options.named_versions import is_named
from edl_ckpt.cli.options.resuming import resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError


@declared("repair run@100 --from backup --dry-run", "repair run@100 --from s3://backup/run@100", exits=WRITES)
def repair_command(
    out: Output,
    ref: o.Ref = None,
    source: Annotated[
        str | None, o.option("REF", "The other copy; without a version, the one of the same number.", "--from")
    ] = None,
    mix: Annotated[bool, o.flag("Use the files even if nothing shows they belong together.", "--mix")] = False,
    dry_run: o.DryRun = False,
    workers: o.Workers = None,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Replace missing and damaged shards from a copy.

    Both copies are read first. A file is taken if the version's seal names its bytes or, without a seal, if all other
    files of the two are equal. Damaged files go to the trash, and what was written is read back.
    """
    import_numpy()
    from edl_ckpt.cli.render import repairs
    from edl_ckpt.core.operations.repair import repair_version

    if not source:
        raise UsageError("--from is missing, the copy to take files from", hint="expected [REF] --from REF")
    version = references.resolve_ref(ref, out, to_change=True, aloud=True)
    named = is_named(source, references.parsed_ref(source, out))
    other = references.resolve_ref(source if named or version.number is None else f"{source}@{version.number}", out)
    with resumable(out, "run the same repair again: it continues with the remaining damage"):
        result = repair_version(version, other, mix=mix, dry_run=dry_run, workers=workers, **o.locking(out, lock_wait))
    out.show(lambda: repairs.document(result), repairs.human(result))
