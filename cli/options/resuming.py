"""How to go on after a failure or a signal: what a command leaves, and the next one that finishes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import AuthError, EdlCkptError, NoSpaceError, NotFoundError, UnavailableError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.cli.terminal.output import Output
    from edl_ckpt.core.storage.location import Location


@contextmanager
def resumable(out: Output, words: str | Callable[[], str]) -> Iterator[None]:
    """Say with a failure, or after a signal, how to go on with what was done before it."""
    with stoppable(out, words):
        try:
            yield
        except (UnavailableError, NoSpaceError, AuthError) as error:
            left = ""
            if not (COMMIT.is_past and (error.hint or isinstance(words, str))):
                left = words if isinstance(words, str) else words()
            error.hint = "; ".join(part for part in dict.fromkeys((error.hint, left)) if part) or None
            raise


@contextmanager
def stoppable(out: Output, words: str | Callable[[], str]) -> Iterator[None]:
    """Say after a signal how to go on with what was done before it."""
    try:
        try:
            yield
        except EdlCkptError as error:
            COMMIT.deliver(error)  # a signal that was kept wins
            raise
    except (KeyboardInterrupt, SystemExit) as end:
        from edl_ckpt.core.base.parallel import impatient

        verb = ""
        if isinstance(end, KeyboardInterrupt):
            verb = "interrupted"
        elif end.code == 143:
            verb = "terminated"
        if verb:
            with impatient(end):
                way_on = words if isinstance(words, str) else words()
            out.say(f"{verb}; {way_on}")
        raise


def half_done(place: Location) -> str:
    """Return how to go on where a command was stopped: in its commit, or before it.

    Before it nothing is left, or else what a large move has written, which resumes. The storage may be what stopped the
    command. Where it gives no answer, the words allow for both.
    """
    from edl_ckpt.core.catalog.entries import has_journal
    from edl_ckpt.core.catalog.interest import is_of_interest
    from edl_ckpt.core.commit.publish.interrupted import interrupted_moves
    from edl_ckpt.core.storage import open_store

    name = escaped(place.url)
    if COMMIT.is_past:
        return f"the new version is complete, its metrics and tags may be missing: `{command('list', name)}` shows them"
    try:
        left = has_journal(open_store(place).entries(is_of_interest))
        waits = place.local_path is not None and any(interrupted_moves(place.local_path))
    except NotFoundError:
        left = waits = False
    except EdlCkptError:
        return f"if its commit had begun, the next command there finishes or undoes it: {command('recover', name)}"
    if left:
        return f"its commit had begun: `{command('recover', name)}` finishes or undoes it"
    if waits:
        drop = command("recover", "--drop-copies", name)
        return f"run the same command again: it resumes; to discard what it has written: {drop}"
    return "nothing was left behind: run the same command again"
