"""Tables in files without headers: whatever their sizes are, a table is whole and readable, or the fault is named."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.sources.dynamicemb.format import file_named
from edl_ckpt.core.sources.steps.raw_tables import VALUES, claim_tables, survey


class Sized(NamedTuple):
    """A file of a listing."""

    size_bytes: int
    modified: float = 0.0


KINDS = ("emb_keys", "emb_values", "emb_scores")


def name(kind: str, rank: int, ranks: int = 2) -> str:
    return f"t_{kind}.rank_{rank}.world_size_{ranks}"


sizes = st.one_of(st.none(), st.sampled_from([0, 1, 8, 12, 16, 24, 48, 2**40]), st.integers(0, 100))
listings = st.fixed_dictionaries({name(*one): sizes for one in itertools.product(KINDS, (0, 1))})


@given(listings)
def test_any_sizes(files: Mapping[str, int | None]) -> None:
    """Without a fault, each rank has all files, and each file has the rows of its ids; with one, a file is named."""
    present = {path: Sized(size) for path, size in files.items() if size is not None}
    claim = claim_tables(present, file_named)
    assert (claim is None) == (not present)
    if claim is None:
        return
    (table,), stale = survey(present, file_named)
    assert not stale
    assert all("t_emb_" in words or words.startswith("t: ") for words in claim.lacks)
    if not claim.lacks:
        dims = table.dims
        assert VALUES in dims
        for rank, column in itertools.product((0, 1), dims):
            width = 8 if column.slot else 4
            assert table.parts[rank][column].size_bytes == table.rows(rank) * dims[column] * width
    claimed = {path for paths in claim.shards.values() for path in paths}
    assert (
        {path for path, file in present.items() if file.size_bytes or "scores" not in path} <= claimed <= set(present)
    )


def test_the_size_that_most_ranks_have_is_right() -> None:
    """One rank whose values were cut off between two rows is named, not the ranks that are whole."""
    files = {name("emb_keys", rank, 3): Sized(32) for rank in range(3)}
    files |= {name("emb_values", rank, 3): Sized(32 if rank == 1 else 64) for rank in range(3)}
    claim = claim_tables(files, file_named)
    assert claim is not None
    assert list(claim.lacks) == [f"{name('emb_values', 1, 3)} ends at byte 32 of 64"]


def test_a_number_in_a_name_is_no_size() -> None:
    """A world size of a thousand million costs neither time nor memory."""
    claim = claim_tables({name("emb_keys", 7, 999_999_999): Sized(0)}, file_named)
    assert claim is not None
    assert "shards 0, 1, 2, 3, 4, 5, 6, 8 to 999999998 of" in claim.lacks[0]
