"""`edl-ckpt tag`: names for versions; a tagged version is not pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edl_ckpt.cli import options as o
from edl_ckpt.cli.help import examples
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import escaped
from edl_ckpt.core.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.storage.location import Location

_Words = Annotated[list[str], typer.Argument(metavar="[REF] TAG", help="The version, and the tag.")]


@examples(
    "tag add run@100 serving",
    "tag add run@best:auc serving --move",
)
def tag_add_command(
    out: Output,
    words: _Words,
    move: Annotated[bool, typer.Option("--move", help="Remove the tag from other versions.")] = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Give a version a tag.

    `@TAG` then refers to the version, and `prune` keeps it.
    """
    from edl_ckpt.core.operations.annotate import add_tag

    ref, tag = _split(words)
    version = o.resolve_ref(ref, out, to_change=True)
    add_tag(version, tag, move=move, **o.locking(out, lock_wait))
    _show(out, version.location)


@examples(
    "tag remove run@100 serving",
    "tag remove run@serving serving",
)
def tag_remove_command(out: Output, words: _Words, lock_wait: o.LockWait = "10s") -> None:
    """Remove a tag from a version."""
    from edl_ckpt.core.operations.annotate import remove_tag

    ref, tag = _split(words)
    version = o.resolve_ref(ref, out, to_change=True)
    remove_tag(version, tag, **o.locking(out, lock_wait))
    _show(out, version.location)


@examples(
    "tag list run",
    "tag list run --csv",
)
def tag_list_command(out: Output, location: o.Place = None, csv: o.Csv = False) -> None:  # noqa: ARG001
    """List the tags of a location, and their versions."""
    _show(out, out.location(location))


def _split(words: list[str]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise UsageError("expected [REF] TAG")
    return (words[0], words[1]) if len(words) == 2 else (None, words[0])


def _show(out: Output, location: Location) -> None:
    from edl_ckpt.core.checkpoint.catalog import list_versions

    versions = list_versions(location).versions
    tags = {
        tag: [v.version for v in versions if tag in v.tags] for tag in sorted({t for v in versions for t in v.tags})
    }
    document = {"schema": "edl-ckpt/tags/1", "location": location.url}
    listed = [{"tag": tag, "versions": numbers} for tag, numbers in tags.items()]
    out.show(
        lambda: document | {"tags": listed},
        lambda: [f"{escaped(tag)}  {', '.join(map(str, numbers))}" for tag, numbers in tags.items()] or ["no tags"],
        lambda: [["tag", "version"], *([tag, number] for tag, numbers in tags.items() for number in numbers)],
    )
