"""`edl-ckpt report`: a page about a location, to look at and to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options.common import Place, flag, option
from edl_ckpt.cli.options.no_versions import parent_error
from edl_ckpt.cli.options.rules import RuleOptions
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.core import LocationReport


@declared(
    "report run -o report.html",
    "report run --keep 5 --json",
    exits=WRITES,
    c3="something is there, and could not be read; the page says what",
)
def report_command(
    out: Output,
    rules: RuleOptions,
    location: Place = None,
    output: Annotated[str | None, option("FILE", "Write the page to FILE; - is stdout.", "-o")] = None,
    last: Annotated[int, option("N", "Show the newest N versions.", least=1)] = 200,
    headers: Annotated[int, option("N", "Read the headers of at most N versions.", least=1)] = 24,
    no_values: Annotated[bool, flag("Read names and headers only: no histograms and no drift.")] = False,
    seed: Annotated[int, option("N", "The seed of the sample.", least=0)] = 0,
    force: Annotated[bool, flag("Replace an existing FILE.")] = False,
) -> None:
    """Write a page about a location and its versions.

    The page is one HTML file without scripts that needs no network: versions with their metrics, and which of them
    prune would keep by the stored policy or by these rules; findings in names and headers; shards, tables, histograms,
    and how much values moved between versions. It reads little, and lists its limits. It needs the extra `report`,
    unless --json prints the data alone.
    """
    from edl_ckpt.cli.render import report as render
    from edl_ckpt.core import ReportLimits, list_versions, report_location, split_version_dir

    if not output and not out.json:
        raise UsageError("where should the page go?", hint="try: -o report.html, or --json for the data alone")
    if output == "-" and out.json:
        raise UsageError("--json and the page cannot both go to stdout", hint="try: -o report.html --json")
    where = out.location(location)
    if split := split_version_dir(where):
        hint = f"try: {command('report', split[0].url)}"
        raise UsageError("expected a location, not a version of it", path=where.url, hint=hint)
    policy = rules.policy(out, [where])
    with _page_file(out, output, force=force) as write:
        report = report_location(
            where,
            policy,
            limits=ReportLimits(versions=last, opened=headers),
            seed=seed,
            values=not no_values,
            reporter=out,
        )
        if not report.total_versions and (parent := parent_error(list_versions(where))):
            raise parent
        write(report)
    if output != "-":
        out.show(lambda: render.document(report), render.human(report, output or ""))
    out.conclude(ok=not report.unread)


@contextmanager
def _page_file(out: Output, name: str | None, *, force: bool) -> Iterator[Callable[[LocationReport], None]]:
    """Yield what writes the page of a report, whole or not at all.

    Where it may not stand, or cannot be drawn, is known before anything is read.
    """
    if not name:
        yield lambda _: None
        return
    from edl_ckpt.cli.page.render import check_libraries, page_of
    from edl_ckpt.core import report_file

    check_libraries()
    if name == "-":
        yield lambda report: out.write(page_of(report))
        return
    with report_file(out.location(name), force=force) as write:
        yield lambda report: write(page_of(report))
