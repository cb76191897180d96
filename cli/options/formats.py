"""Formats of the output that clash, and lines of the user's own."""

from __future__ import annotations

from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.template import REFERENCES, Template
from edl_ckpt.core.base.errors import UsageError


def check_prometheus(out: Output, *, prometheus: bool) -> None:
    """Raise UsageError when two formats are asked for at once."""
    if prometheus and (out.json or out.csv or out.jsonl):
        raise UsageError("--prometheus cannot be used with --json, --jsonl or --csv")


def template_of(out: Output, template: str | None, *, null: bool) -> Template | None:
    """Return what `--format`, `-q` and `-0` ask for; None for a table.

    Quiet in the environment or in a file is about warnings only: it must not change what a command prints.
    """
    if template is None and not null and (not out.quiet or "quiet" in out.defaulted):
        return None
    if out.is_for_programs:
        if template is not None or null:
            raise UsageError("--format and -0 cannot be used with --json, --jsonl or --csv")
        return None
    return Template(REFERENCES if template is None else template, end="\0" if null else "\n")
