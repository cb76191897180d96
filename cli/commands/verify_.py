"""`edl-ckpt verify`: whether a version is whole and right."""

from __future__ import annotations

from typing import Annotated

import typer

from edl_ckpt.cli.options import Ref, Workers, default_location
from edl_ckpt.cli.output import Output


def verify_command(
    out: Output,
    ref: Ref = None,
    every: Annotated[bool, typer.Option("--all", help="Every version of the location.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Names and headers only.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Every value too, and the fingerprint.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A warning is as bad as an error.")] = False,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write a JUnit report for CI.")] = None,
    workers: Workers = None,
) -> None:
    """Check that a version is complete and correct: names, headers and ids; with --deep every value."""
    from edl_ckpt.cli import render_verify
    from edl_ckpt.core.catalog import list_versions, parse_ref, resolve
    from edl_ckpt.core.errors import UsageError
    from edl_ckpt.core.verify import verify_version

    if quick and deep:
        raise UsageError("--quick and --deep exclude each other")
    parsed = parse_ref(ref or "", default_location=default_location())
    storage = out.storage_options
    versions = (
        list_versions(parsed.location, storage_options=storage).versions
        if every
        else [resolve(parsed, storage_options=storage)]
    )
    level = "quick" if quick else "deep" if deep else "default"
    results = [
        verify_version(v, level=level, workers=workers, storage_options=storage, progress=out.progress())
        for v in versions
    ]
    if junit:
        render_verify.write_junit(junit, results)
    out.show(
        lambda: render_verify.document_all(parsed.location, results) if every else render_verify.document(results[0]),
        lambda: render_verify.human(results),
    )
    if any(not r.ok or (strict and r.findings) for r in results):
        raise SystemExit(3)
