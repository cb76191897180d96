"""What a system or a format lacks: tensors of dtypes that it cannot hold are refused by name, with the way on.

Values that are no tensors are not refused: texts, values of Python and handles have meaning for one system only, and
are left out by name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import abridged
from edl_ckpt.core.model.dtypes import DType

_LISTED: Final = 8
"""So many names are in a message."""


def check_held(
    what: str,
    named: Iterable[tuple[str, DType]],
    known: Container[str],
    *,
    path: str | None = None,
    keeps_items: bool = False,
    other_way: str = "choose --variable",
) -> None:
    """Raise UnsupportedError for tensors, each a name with its dtype, that are neither ours nor of a known dtype.

    `keeps_items` says that items go along as they are. `what` is a system or a format, `path` is that of the version,
    and `other_way` is what leads on besides leaving them out.
    """
    wrong = {name: dtype.name for name, dtype in named if not _is_held(dtype, known, keeps_items=keeps_items)}
    if wrong:
        names = abridged((f"{name!r} ({dtype})" for name, dtype in wrong.items()), _LISTED)
        drops = " ".join(f"--drop {name!r}" for name in [*wrong][:_LISTED])
        more = " and so on" if len(wrong) > _LISTED else ""
        hint = f"nothing was written; leave out what it lacks: edit {drops}{more}"
        hint += f", or {other_way}" if other_way else ""
        raise UnsupportedError(f"{what} cannot hold {names}", path=path, hint=hint)


def _is_held(dtype: DType, known: Container[str], *, keeps_items: bool) -> bool:
    if dtype.is_item:
        return keeps_items or dtype.is_value
    return dtype.is_ours or dtype.name in known
