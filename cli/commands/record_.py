"""The commands that record something with versions: metrics, tags, notes, and values by keys of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_ckpt.cli.manual.marks import LISTS, NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.hints import check_no_parent, is_named
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import Mode, meant, plural

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Listing, Version
    from edl_ckpt.core.storage.location import Location


_Format = Annotated[
    str | None, o.option("F", "log, tensorboard, csv or jsonl. Default: recognized by the name of SOURCE.", "--format")
]


@declared("metrics set run@100 auc=0.78", "metrics set run@100 loss=0.21 --mode min", exits=NOTES)
def metrics_set_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF NAME=VALUE...", "The version, and its metrics.")],
    mode: Annotated[
        Mode | None,
        o.option("max|min", "Also declare whether higher (max) or lower (min) is better."),
        o.CommandLineOnly(),
    ] = None,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Record metrics of a version.

    They replace older values of the same names. --mode also declares whether higher or lower values are better.
    """
    from edl_ckpt.core.operations.annotate import set_metrics

    ref, metrics = o.split_pairs(words, "NAME=VALUE", _number, has_ref=o.looks_like_ref(words[0], out))
    version = o.resolve_named(ref, out, "metrics set", *words[ref is not None :])
    set_metrics(version, metrics, mode=mode, **o.locking(out, lock_wait))
    _show_metrics(out, version.location, version.key)


@declared(
    "metrics show run", "metrics show run@best:auc --json", exits=NOTES, c3="some metrics cannot be read now", rows=True
)
def metrics_show_command(out: Output, ref: o.Ref = None) -> None:
    """Show the metrics of one version, or of all."""
    parsed = o.parsed_ref(ref, out)
    if not is_named(ref, parsed):
        _show_metrics(out, parsed.location, None, changed=False)
    else:
        version = o.resolve_ref(ref, out, to_change=True)
        _show_metrics(out, version.location, version.key, changed=False)


@declared(
    "metrics import master.log run", "metrics import metrics.csv run --nearest 50 --dry-run", exits=NOTES, rows=True
)
def metrics_import_command(
    out: Output,
    source: Annotated[str, o.argument("SOURCE", "A master's log, TensorBoard directory, CSV or JSON lines.")],
    location: o.Place = None,
    nearest: Annotated[
        int, o.option("STEPS", "Match a version with the nearest step, at most STEPS away.", least=0)
    ] = 0,
    kind: _Format = None,
    dry_run: o.DryRun = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Import the metrics that a job wrote to a log.

    Metrics of a training step belong to the version with the same number. The command reports all that do not match.
    """
    from edl_ckpt.cli.render import recorded as render
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.annotate import import_metrics, match_series, read_series

    where = out.location(location)
    series = read_series(source, kind)
    if dry_run:
        plan = match_series(series, where, list_versions(where).versions, nearest=nearest)
    else:
        plan = import_metrics(series, where, nearest=nearest, **o.locking(out, lock_wait))
    out.warn(*(f"{source}: {problem}" for problem in plan.skipped[:20]))
    out.show(
        lambda: render.import_document(plan, applied=not dry_run),
        render.import_human(plan, applied=not dry_run),
        lambda: render.import_rows(plan),
    )


@declared("metrics remove run@100 auc", "metrics remove run@100 auc loss", exits=NOTES)
def metrics_remove_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF NAME...", "The version, and the names of metrics.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Remove metrics from a version."""
    from edl_ckpt.core.operations.annotate import remove_metrics

    ref, names = o.split_names(words, out, "NAME", "metric")
    version = o.resolve_named(ref, out, "metrics remove", *names)
    remove_metrics(version, names, **o.locking(out, lock_wait))
    _show_metrics(out, version.location, version.key)


@declared("metrics mode run auc max", "metrics mode run loss min", exits=NOTES)
def metrics_mode_command(
    out: Output,
    words: Annotated[list[str], o.argument("[LOCATION] NAME max|min", "The location, the metric, and max or min.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Declare whether max or min of a metric is better.

    `@best:METRIC`, `list --best` and the rules of `prune` use it.
    """
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.annotate import set_modes
    from edl_ckpt.core.state.metadata import MODES, check_mode

    if words[-1] not in MODES and len(words) < 3:
        raise UsageError("max or min is missing", hint="expected [LOCATION] NAME max|min")
    if len(words) not in {2, 3}:
        fault = "too many words" if len(words) > 3 else "NAME is missing, the metric"
        raise UsageError(fault, hint="expected [LOCATION] NAME max|min")
    *place, name, mode = words
    where = out.location(place[0] if place else None)
    set_modes(where, {name: check_mode(mode)}, **o.locking(out, lock_wait))
    known = {metric for version in list_versions(where).versions for metric in version.metrics}
    if name not in known and (close := meant(name, known)):
        out.warn(f"no version has a value of {name!r}; {close}")
    _show_metrics(out, where, None)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{f'{name}={text}'!r}: the value is not a number") from None


def _show_metrics(out: Output, location: Location, version: int | str | None, *, changed: bool = True) -> None:
    """Show metrics; a command that only shows them ends with 3 when some cannot be read."""
    from edl_ckpt.cli.render import recorded as render
    from edl_ckpt.core.catalog.listing import list_versions

    listing = list_versions(location)
    check_no_parent(listing)
    chosen = [v for v in listing.versions if version in {None, v.key}]
    out.show(
        lambda: render.metrics_document(listing, chosen),
        render.metrics_human(listing, chosen) if version is None else (render.metrics_line(listing, v) for v in chosen),
        lambda: render.metrics_rows(chosen),
    )
    out.warn(*listing.problems)
    out.conclude(ok=changed or not (listing.unread if version is None else any(v.unread for v in chosen)))


_TagWords = Annotated[list[str], o.argument("REF TAG", "The version, and the tag.")]


@declared("tag add run@100 serving", "tag add run@best:auc candidate --also", exits=NOTES)
def tag_add_command(
    out: Output,
    words: _TagWords,
    also: Annotated[bool, o.flag("Keep the tag on other versions too; `@TAG` then names none of them.")] = False,
    move: Annotated[bool, typer.Option("--move", hidden=True)] = False,  # noqa: ARG001 - the default by now
    force: Annotated[bool, o.flag("Tag a version that is not complete, too.")] = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Give a version a tag, and take it from others.

    `@TAG` then refers to the version, and `prune` keeps it. A version that is not complete needs --force.
    """
    from edl_ckpt.core.operations.annotate import add_tag

    ref, tag = o.split_word(words, out, "TAG")
    version = o.resolve_named(ref, out, "tag add", tag)
    moved_from = add_tag(version, tag, also=also, force=force, **o.locking(out, lock_wait))
    if moved_from:
        numbers = f"{plural(len(moved_from), 'version')} {', '.join(map(str, moved_from))}"
        out.say(f"the tag {escaped(tag)} moved from {numbers} to version {version.key}")
    _show_tags(out, version.location, {"moved_from": list(moved_from)})


@declared("tag remove run@100 serving", "tag remove run@serving serving", exits=NOTES)
def tag_remove_command(out: Output, words: _TagWords, lock_wait: o.LockWait = "10s") -> None:
    """Remove a tag from a version."""
    from edl_ckpt.core.operations.annotate import remove_tag

    ref, tag = o.split_word(words, out, "TAG")
    version = o.resolve_named(ref, out, "tag remove", tag)
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


_AS_TEXT = ("{", "[", '"')
"""What begins like this is meant to be JSON, so it is not taken for a text when it is none."""


@declared("metadata set run@100 lr=0.05 owner=ads", "metadata set run@100 'beta=[0.9, 0.999]'", exits=NOTES)
def metadata_set_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF KEY=JSON...", "The version, and its keys with their values.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Record values with a version.

    A value is JSON: a number, true, false, null, a list, an object or a text in quotes. Any other word is a text, even
    NaN and Infinity, which JSON lacks. New values replace older ones of the same keys. `inspect` shows them, and `copy`
    copies them.
    """
    from edl_ckpt.core.operations.annotate import set_metadata

    ref, values = o.split_pairs(words, "KEY=JSON", _json_value, has_ref=_is_ref(words[0]))
    version = o.resolve_named(ref, out, "metadata set", *words[ref is not None :])
    set_metadata(version, values, **o.locking(out, lock_wait))
    _show_metadata(out, o.resolve_ref(version.ref, out))


@declared(
    "metadata show run@100",
    "metadata show run@best:auc --json",
    exits=NOTES,
    c3="some of it cannot be read now",
    rows=True,
)
def metadata_show_command(out: Output, ref: o.Ref = None) -> None:
    """Show the values recorded with a version."""
    version = o.resolve_ref(ref, out)
    _show_metadata(out, version)
    if version.metadata_fault:
        out.warn(f"{version.ref}: {version.metadata_fault}")
    out.conclude(ok=not version.unread)


@declared("metadata remove run@100 owner", "metadata remove run@100 owner lr", exits=NOTES)
def metadata_remove_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF KEY...", "The version, and the keys to remove.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Remove values from a version."""
    from edl_ckpt.core.operations.annotate import remove_metadata

    ref, keys = o.split_names(words, out, "KEY", "key")
    version = o.resolve_named(ref, out, "metadata remove", *keys)
    remove_metadata(version, keys, **o.locking(out, lock_wait))
    _show_metadata(out, o.resolve_ref(version.ref, out))


def _show_metadata(out: Output, version: Version) -> None:
    from edl_ckpt.cli.render.recorded import metadata_document, metadata_human, metadata_rows

    out.show(lambda: metadata_document(version), metadata_human(version), lambda: metadata_rows(version))


def _is_ref(word: str) -> bool:
    """Say whether the first word is a reference: the names of locations and the values of keys may have a '='."""
    key, equals, _ = word.partition("=")
    return not equals or "@" in key or "/" in key or os.path.isdir(word.rpartition("@")[0] or word)


def _json_value(key: str, text: str) -> Any:
    from edl_ckpt.core.state.document import parse_value

    try:
        return parse_value(text)
    except ValueError as error:
        if text.startswith(_AS_TEXT):
            raise UsageError(f"{key}: not JSON: {error}", hint="a text that begins so needs quotes of JSON") from None
        return text


@declared('note run@100 "before the new features"', 'note run@100 ""', exits=NOTES)
def note_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF TEXT", "The version, and its note; an empty text removes the note.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Write a note about a version.

    It replaces an older note.
    """
    from edl_ckpt.core.operations.annotate import set_note

    ref, note = o.split_word(words, out, "TEXT", "; put a text of several words in quotes")
    version = o.resolve_named(ref, out, "note", note)
    set_note(version, note, **o.locking(out, lock_wait))
    document = {"schema": "edl-ckpt/note/1", "ref": version.ref, "note": note}
    out.show(lambda: document, [f"{escaped(version.ref)}: {escaped(note) or 'note removed'}"])
