"""dynamicemb: raw files `PATH/T_emb_keys.rank_R.world_size_W`, and such files of values, scores and optimizer state.

Source: `DynamicEmbDump` of NVIDIA/recsys-examples. Keys and scores are int64; values and optimizer state are float32,
whatever dtype the table has in a job. An admission counter has keys of its own, so its keys and frequencies are the
table `T_counter`. `T_opt_args.json` names the rule of the router that chose the rank of a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps import raw_tables
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.sources.steps.raw_tables import IDS, VALUES, RawColumn, RawName, RawTable, add_tables, claim_tables

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

heads, digest = raw_tables.no_heads, raw_tables.no_digest
_NUMBER: Final = raw_tables.NUMBER
_COLUMNS: Final = {
    "emb_keys": IDS,
    "emb_values": VALUES,
    "emb_scores": RawColumn("_emb_scores", "int64", "scores"),
    "emb_opt_values": RawColumn("_emb_opt_values", "float32", "opt_values"),
    "opt_values": RawColumn("_opt_values", "float32", "opt_values"),  # before 2025-10-14
    "counter_keys": IDS,
    "counter_frequencies": RawColumn("", "int64"),
}
_FILE: Final = LatePattern(rf"(.+?)_({'|'.join(_COLUMNS)})\.rank_{_NUMBER}\.world_size_{_NUMBER}", re.DOTALL | re.ASCII)
_ARGS: Final = "_opt_args.json"
_ARGS_BYTES: Final = 1 << 20
_DTYPES: Final = {"float32", "int64", "uint64"}
"""Since 2026-09 (NVIDIA/recsys-examples#482) a table may be saved in another dtype, which its arguments name."""
_RULES: Final = {"roundrobin": Placement.UNSIGNED_MOD, "hash_roundrobin": Placement.FMIX64_MOD}
"""By the router's names; where it has ranges of keys (`continuous`), a key alone does not say its rank."""


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of tables, and the arguments of their optimizers."""
    del digests
    return claim_tables(files, file_named, (path for path in files if path.endswith(_ARGS)))


def file_named(path: str) -> RawName | None:
    """Return what a path says; None for other files.

    >>> file_named("dynamicemb/model.ebc/user_emb_scores.rank_3.world_size_8")[:4]
    ('dynamicemb/model.ebc/user', RawColumn(suffix='_emb_scores', dtype='int64', slot='scores'), 3, 8)
    """
    match = _FILE.fullmatch(path) if ".world_size_" in path else None
    if match is None or int(match[3]) >= int(match[4]):
        return None
    table = f"{match[1]}_counter" if match[2].startswith("counter") else match[1]
    return RawName(table, _COLUMNS[match[2]], int(match[3]), int(match[4]))


def index(content: Content) -> None:
    """Add the tables of all files that are open."""
    add_tables(content, file_named, lambda table: _rule(content, table))


def _rule(content: Content, table: RawTable) -> Placement:
    """Return the rule by which a table's keys belong to ranks, if its arguments are there and name one."""
    from edl_ckpt.core.model.tables import Problem

    file = content.files.get(table.name.removesuffix("_counter") + _ARGS)
    if file is None or file.reader is None:
        return Placement.NONE
    data = file.reader.read(0, min(file.reader.size_bytes, _ARGS_BYTES))
    try:
        arguments = parse_object(data, file.file.path)
    except CorruptError as error:
        message = f"the rule of its router is unknown: {error}"
        file.shard.problems.append(Problem(error.code, table.name, None, message, warning=True))
        return Placement.NONE
    for name, value in arguments.items():
        if "dtype" in name and str(value).removeprefix("torch.") not in _DTYPES:
            message = f"{name} is {value!r:.40}; only values of float32 can be read"
            content.fail(file.shard, UnsupportedError(message, path=file.file.path))
    named = arguments.get("dist_type")
    is_known = isinstance(named, str) and table.ps_num == content.version.ps_num
    return _RULES.get(str(named), Placement.NONE) if is_known else Placement.NONE
