"""`edl-ckpt copy`: copies versions to another location, byte for byte, and proves the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import references
from edl_ckpt.cli.options.cluster import Cluster, working
from edl_ckpt.cli.options.named_versions import is_named
from edl_ckpt.cli.options.no_versions import check_no_parent
from edl_ckpt.cli.options.resuming import resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.words import counted

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version

_AGAIN = "run the same copy again to resume"


@declared("copy run@100 s3://models/run", "copy run backup --all", exits=WRITES, rows=True)
def copy_command(
    out: Output,
    words: Annotated[
        list[str], o.argument("[REF] LOCATION", "The version to copy, and the checkpoint_dir to copy it to.")
    ],
    every: Annotated[
        bool, o.flag("Copy every complete version that is not there yet.", "--all"), o.CommandLineOnly()
    ] = False,
    since: Annotated[
        int | None, o.option("VERSION", "Copy every complete version from this number on.", least=0)
    ] = None,
    dry_run: o.DryRun = False,
    workers: o.Workers = None,
    cluster: Cluster = None,
    force: o.ForceSeal = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Copy versions to another location, with proof.

    Checksums and the fingerprint prove each copy. Metrics and tags are copied too. An interrupted copy resumes where it
    stopped. Versions already there with identical content are skipped; a different version under the same number is
    refused.
    """
    import_numpy()
    from edl_ckpt.cli.render import copies
    from edl_ckpt.core.operations.copy.execute import execute_copy
    from edl_ckpt.core.operations.copy.plan import plan_copy

    if len(words) == 1 and "@" in words[0].rpartition("/")[2]:
        raise UsageError("LOCATION is missing, the place to copy to", hint="expected [REF] LOCATION")
    if len(words) > 2 or "@" in words[-1].rpartition("/")[2]:
        raise UsageError("expected [REF] LOCATION; the copy has the same version number")
    versions = _versions(words[0] if len(words) == 2 else None, out, since=since, every=every)
    plan = plan_copy(versions, out.location(words[-1]), force=force)
    out.warn(*plan.warnings)
    with working(out, cluster, workers, target=plan.target) as work, resumable(out, _AGAIN):
        if dry_run:
            planned = copies.planned_document(plan, work)
            out.show(lambda: planned, copies.planned_human(plan, work), lambda: copies.rows(planned["copied"]))
            return
        result = execute_copy(plan, **work, **o.locking(out, lock_wait))
        done = copies.document(result)
        out.show(lambda: done, copies.human(result), lambda: copies.rows(done["copied"]))
        for ref, error in result.failed:
            out.warn(f"{ref}: not copied completely: {error}{f'; {error.hint}' if error.hint else ''}")
        if result.failed:
            raise max((error for _, error in result.failed), key=lambda error: error.exit_code)


def _versions(source: str | None, out: Output, *, every: bool, since: int | None) -> Sequence[Version]:
    """Return the versions to copy: one, all of a location, or those from a number on."""
    from edl_ckpt.core.catalog.listing import list_versions

    ref = references.parsed_ref(source, out)
    if not every and since is None:
        version = references.resolve_ref(source, out, aloud=True)
        listed = () if is_named(source, ref, version) or version.is_alone else list_versions(ref.location).versions
        if others := sum(v.state == "complete" and v.path != version.path for v in listed):
            out.say(f"{counted(others, 'other complete version')} not copied; --all copies every one")
        return (version,)
    if ref.version != "latest":
        raise UsageError("--all and --since need a location without a version", path=source)
    listing = list_versions(ref.location)
    check_no_parent(listing)
    if not listing.versions:
        raise NotFoundError("no checkpoint here, so nothing was copied", path=ref.location.url)
    return [v for v in listing.versions if since is None or v.version >= since]
