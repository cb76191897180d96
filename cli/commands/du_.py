"""`edl-ckpt du`: what takes the space."""

from __future__ import annotations

from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options.common import Ref
from edl_ckpt.cli.options.no_versions import parent_error
from edl_ckpt.cli.options.references import parsed_ref, resolve_ref
from edl_ckpt.cli.terminal.output import Output


@declared("du run", "du run@100 --csv", exits=READS, c3="a part of the location cannot be read now", rows=True)
def du_command(
    out: Output,
    ref: Ref = None,
) -> None:
    """Show disk usage of a location or a version.

    For a location: versions, deleted ones in the trash, leftovers of commands, and other files. For a version, such as
    run@100: tables and variables, from headers.
    """
    from edl_ckpt.cli.render import du as render
    from edl_ckpt.core.catalog.files import directory_alone, named_step
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.summary import summarize
    from edl_ckpt.core.operations.usage import measure_usage
    from edl_ckpt.core.reading.reader import open_checkpoint

    parsed = parsed_ref(ref, out)
    is_version = "@" in (ref or "").rpartition("/")[2] or named_step(parsed) is not None
    usage = None if is_version else measure_usage(parsed.location)
    if usage is None or (not usage.versions and directory_alone(parsed.location)):
        with open_checkpoint(resolve_ref(ref, out)) as checkpoint:
            summary = summarize(checkpoint.version, checkpoint.shards)
        out.show(lambda: render.document(summary), render.human(summary), lambda: render.rows(summary))
        return
    if not usage.versions and (parent := parent_error(list_versions(parsed.location))):
        raise parent
    out.show(lambda: render.document(usage), render.human(usage), lambda: render.rows(usage))
    out.warn(*usage.problems)
    out.conclude(ok=not usage.problems)
