"""A digest of a move: of its plan, of what it reads, and of how it cuts that into pieces.

Two moves with one digest write the same bytes to the same offsets of the same files, piece by piece. So one of them
can go on where the other was killed. Another release of edl-ckpt has other digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from edl_ckpt.core.base.parallel import Executor
from edl_ckpt.core.base.version import VERSION
from edl_ckpt.core.commit.interface import NewVersion
from edl_ckpt.core.moving.goal import FileGoal
from edl_ckpt.core.moving.input import Input
from edl_ckpt.core.moving.plan import MovePlan
from edl_ckpt.core.moving.settings import ReshardSettings

_FORM: Final = "edl-ckpt move 1"


def digest_of_move(
    plan: MovePlan, new: NewVersion, settings: ReshardSettings, source: Input, executor: Executor
) -> str:
    """Return the digest of a move; '' where the source cannot be told from another one.

    On a cluster its size decides which tasks there are, so one of another size has other digests.
    """
    identity = source.identity
    if not identity:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for fact in _facts(plan, new, settings):
        _feed(digest, fact)
    _feed(digest, (identity, executor.task_bytes(plan.value_bytes + plan.survey.id_bytes)))
    return digest.hexdigest()


def _facts(plan: MovePlan, new: NewVersion, settings: ReshardSettings) -> Iterator[object]:
    """Yield all that decides which bytes go where, and in which pieces they move.

    Arrays are facts of their own: a text of one would be cut.
    """
    survey, goal, sizes = plan.survey, plan.goal, plan.sizes
    yield _FORM, VERSION, new.layout.system, new.layout.name, new.number, new.name, new.purpose
    yield settings.piece_bytes, settings.batch_bytes, settings.gather_bytes
    yield new.names(len(sizes)), sizes, survey.number, survey.to_ps, plan.to_ps, goal.rules.buckets, plan.groups
    for variable in survey.variables:
        yield variable.name, variable.dtype.name, variable.shape, variable.size_bytes, goal.cuts(variable.name)
    for table in survey.tables:
        yield table.info.name, table.info.dim, table.info.initializer, table.dtype.name if table.dtype else ""
    for number, ids in enumerate(survey.stretches):
        stretch = plan.stretch(number)
        yield stretch.table, ids
        yield from (*stretch.counts, *stretch.route)
    for small in survey.small:
        yield small.table
        yield from (small.rows, small.id_bytes)
    if isinstance(goal, FileGoal):
        yield goal.pieces
        for name, places in goal.places.items():
            yield name, places.ids is not None
            yield from (*places.rows, *(places.ids or ()))


def _feed(digest: hashlib.blake2b, fact: object) -> None:
    """Add an array, or a fact that has none in it."""
    if isinstance(fact, np.ndarray):
        data = np.ascontiguousarray(fact).tobytes()
    else:
        data = repr(fact).encode("utf-8", "surrogatepass")
    digest.update(f"{type(fact).__name__} {len(data)} ".encode() + data)
