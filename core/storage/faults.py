"""Errors of the operating system and of storage clients, translated into our own error tree."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from edl_ckpt.core.errors import AuthError, EdlCkptError, LockedError, NoSpaceError, NotFoundError, UnavailableError


@contextmanager
def storage_errors(path: str) -> Iterator[None]:  # noqa: C901 - one branch for each kind of failure
    """Translate errors of the block into ours; each names the path."""
    try:
        yield
    except EdlCkptError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError("no such file or directory", path=path) from error
    except NotADirectoryError as error:
        raise NotFoundError("not a directory", path=path) from error
    except IsADirectoryError as error:
        raise NotFoundError("expected a file, but this is a directory", path=path) from error
    except PermissionError as error:
        raise AuthError("permission denied", path=path) from error
    except (ConnectionError, TimeoutError) as error:
        raise UnavailableError(f"storage does not answer: {error}", path=path) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise NoSpaceError(os.strerror(error.errno), path=path) from error
        if error.errno == errno.ELOOP:
            raise NotFoundError("the symbolic links form a circle", path=path) from error
        if error.errno == errno.ESTALE:
            raise LockedError("the file was replaced on the file server while it was being read", path=path) from error
        raise EdlCkptError(f"input/output error: {error.strerror or error}", path=path) from error
