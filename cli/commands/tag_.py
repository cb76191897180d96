"""`edl-ckpt tag`: names versions, and protects them from pruning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from edl_ckpt.cli.manual.marks import LISTS, NOTES, declared
from edl_ckpt.cli.options import arguments, references
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.no_versions import check_no_parent
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.words import plural

if TYPE_CHECKING:
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.storage.location import Location


_TagWords = Annotated[list[str], o.argument("REF TAG", "The version, and the tag.")]


@declared("tag add run@100 serving", "tag add run@best:auc candidate --also", exits=NOTES)
def tag_add_command(
    out: Output,
    words: _TagWords,
    also: Annotated[bool, o.flag("Keep the tag on other versions too; `@TAG` then names none of them.")] = False,
    move: Annotated[bool, o.flag("Take the tag from other versions.", hidden=True)] = False,  # noqa: ARG001 - the default by now
    force: Annotated[bool, o.flag("Tag a version that is not complete, too.")] = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Give a version a tag, and take it from others.

    `@TAG` then refers to the version, and `prune` keeps it. A version that is not complete needs --force.
    """
    from edl_ckpt.core.operations.annotate import add_tag

    ref, tag = arguments.split_word(words, out, "TAG")
    version = references.resolve_named(ref, out, "tag add", tag)
    moved_from = add_tag(version, tag, also=also, force=force, **o.locking(out, lock_wait))
    if moved_from:
        numbers = f"{plural(len(moved_from), 'version')} {', '.join(map(str, moved_from))}"
        out.say(f"the tag {escaped(tag)} moved from {numbers} to version {version.key}")
    _show_tags(out, version.location, {"moved_from": list(moved_from)})


@declared("tag remove run@100 serving", "tag remove run@serving serving", exits=NOTES)
def tag_remove_command(out: Output, words: _TagWords, lock_wait: o.LockWait = "10s") -> None:
    """Remove a tag from a version."""
    from edl_ckpt.core.operations.annotate import remove_tag

    ref, tag = arguments.split_word(words, out, "TAG")
    version = references.resolve_named(ref, out, "tag remove", tag)
    remove_tag(version, tag, **o.locking(out, lock_wait))
    _show_tags(out, version.location)


@declared("tag list run", "tag list run --csv", exits=LISTS, c3="some tags cannot be read now", rows=True)
def tag_list_command(out: Output, location: o.Place = None) -> None:
    """List the tags of a location, and their versions."""
    listing = _show_tags(out, out.location(location))
    out.warn(*listing.problems)
    out.conclude(ok=not listing.unread)


def _show_tags(out: Output, location: Location, more: Mapping[str, Any] | None = None) -> Listing:
    from edl_ckpt.core.catalog.listing import list_versions

    listing = list_versions(location)
    check_no_parent(listing)
    numbers: dict[str, list[int | str]] = {}
    for version in listing.versions:
        for tag in set(version.tags):
            numbers.setdefault(tag, []).append(version.key)
    tags = dict(sorted(numbers.items()))
    document = {"schema": "edl-ckpt/tags/1", "location": location.url}
    listed = [{"tag": tag, "versions": numbers} for tag, numbers in tags.items()]
    out.show(
        lambda: {**document, "tags": listed, **(more or {})},
        [f"{escaped(tag)}  {', '.join(map(str, numbers))}" for tag, numbers in tags.items()] or ["no tags"],
        lambda: [["tag", "version"], *([tag, number] for tag, numbers in tags.items() for number in numbers)],
    )
    return listing
