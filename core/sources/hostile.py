"""Damaged and hostile files: whatever their bytes make a reader of a format raise becomes a CorruptError.

A damaged file must end nothing but its own line in a list, whatever its reader has overlooked. So one place, around the
reading of one version, turns the errors that bytes can cause into a CorruptError of that version. Errors that only code
can cause, such as a wrong name or a failed assertion, are left alone, and so is everything of the system.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError


@functools.cache
def caused_by_bytes() -> tuple[type[Exception], ...]:
    """Return what bytes can raise that are not as their reader expects. UnicodeError is a ValueError.

    Python calls it only for an error: an `except` clause is evaluated then.
    """
    import pickle
    import struct
    import zlib

    of_values = (ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError, ValueError)
    return (*of_values, pickle.UnpicklingError, struct.error, zlib.error)


@contextmanager
def hostile_bytes(path: str) -> Iterator[None]:
    """Raise CorruptError, with the path, for an error of the block that only the bytes of a file can have caused.

    The error that was raised is its cause, and its kind is in the message, so that people can report it.
    """
    try:
        yield
    except EdlCkptError:
        raise
    except caused_by_bytes() as error:
        raise damage(error, path) from error


def damage(error: Exception, path: str) -> CorruptError:
    """Return what such an error says of the file of a path; an error of ours as it is."""
    if isinstance(error, CorruptError):
        return error
    return CorruptError(f"damaged in a way that its reader does not know ({type(error).__name__})", path=path)
