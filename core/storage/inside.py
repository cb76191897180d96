"""Names that become paths: a key, or a name in a file, says where something is; it never leads out of a directory.

A listing of object storage may have any keys: each writer chooses its own. So each name that came from another place
is joined to a directory here alone.
"""

from __future__ import annotations

import os

from edl_ckpt.core.base.errors import RefusedError


def is_inside(name: str) -> bool:
    """Say whether the name of a file, which may be in a sub-directory, stays in the directory that it is joined to.

    >>> is_inside("model/.metadata"), is_inside("../x"), is_inside("/x"), is_inside("")
    (True, False, False, False)
    """
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def path_inside(directory: str, name: str, *, whole: str = "") -> str:
    """Return the path of a name in a directory of this machine; `whole` is the name in messages.

    Raises RefusedError for a name that leads out of the directory.

    >>> path_inside("/tmp/a", "model/.metadata")
    '/tmp/a/model/.metadata'
    """
    if not is_inside(name):
        raise RefusedError(
            "this name leads out of its directory, so no local file gets it",
            path=whole or name,
            hint="rename or remove it where it is; nothing was written",
        )
    return os.path.join(directory, *name.split("/"))
