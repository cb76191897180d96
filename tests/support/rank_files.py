"""The files of each system read by numpy and nothing of the product: which rank has which rows of which table."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deeprec_restore import tensors_of
from oracle import Model, add_shard

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """What a rank has of a table: int64 [n], and [n, dim]; of a DCP tensor without ids the numbers of its rows."""

    rank: int
    ids: Array
    rows: Array


Tables = dict[str, list[Part]]


def tables_in(directory: Path, system: str) -> Tables:
    """Return the tables of a version, from its directory or the prefix of its bundle, by their names there."""
    readers = {"elasticdl": _elasticdl, "dcp": _dcp, "tfra": _tfra, "dynamicemb": _dynamicemb, "tensorflow": _bundle}
    found: Tables = defaultdict(list)
    for name, part in readers[system](directory if directory.is_dir() else directory.parent):
        found[name].append(part)
    return dict(found)


def joined(parts: list[Part]) -> tuple[Array, Array]:
    """Return the ids of all ranks in order, and their rows; no rank has an id of another one."""
    filled = [part for part in parts if len(part.ids)] or parts[:1]  # no file says the dim of no rows
    ids = np.concatenate([part.ids for part in filled])
    rows = np.concatenate([part.rows for part in filled])
    order = np.argsort(ids, kind="stable")
    assert len(np.unique(ids)) == len(ids)
    return ids[order], rows[order]


def _elasticdl(directory: Path) -> list[tuple[str, Part]]:
    found = []
    for path in sorted(directory.iterdir()):
        rank, model = int(path.name.split("-")[1]), Model()
        add_shard(model, path.read_bytes(), "v4")
        for name, table in model.tables.items():
            dtype, ids = np.dtype(table.dtype or "float32"), np.array(list(table.rows), np.int64)
            rows = np.frombuffer(b"".join(table.rows.values()), dtype).reshape(len(ids), table.dim)
            found.append((name, Part(rank, ids, rows)))
    return found


def _tfra(directory: Path) -> list[tuple[str, Part]]:
    found = []
    for path in sorted(directory.rglob("*-keys")):
        match = re.fullmatch(r"(.*)_mht_(\d+)of(\d+)_rank(\d+)_size(\d+)-keys", path.name, re.DOTALL)
        assert match, path.name
        device, devices, rank, size = map(int, match.groups()[1:])
        assert 1 in {devices, size}
        found.append((match[1], _keyed(rank * devices + device - 1, path, "-keys", "-values")))
    return found


def _dynamicemb(directory: Path) -> list[tuple[str, Part]]:
    found = []
    for path in sorted(directory.rglob("*_emb_keys.rank_*")):
        stem, rank = str(path.relative_to(directory)).split("_emb_keys.rank_")
        number = int(rank.split(".")[0])
        found.append((stem, _keyed(number, path, "_emb_keys", "_emb_values")))
        for end, dtype in (("_emb_scores", np.int64), ("_emb_opt_values", np.float32)):
            if Path(str(path).replace("_emb_keys", end)).exists():
                found.append((stem + end, _keyed(number, path, "_emb_keys", end, dtype)))
    return found


def _keyed(rank: int, path: Path, keys: str, values: str, dtype: type = np.float32) -> Part:
    ids = np.fromfile(path, np.int64)
    rows: Array = np.fromfile(str(path).replace(keys, values), dtype)
    return Part(rank, ids, rows.reshape(len(ids), -1) if len(ids) else rows.reshape(0, 0))


def _bundle(directory: Path) -> list[tuple[str, Part]]:
    (index,) = directory.glob("*.index")
    tensors, found = tensors_of(index.with_suffix("")), []
    for key in sorted(tensors):
        match = re.fullmatch(r"(.*?)(?:/part_(\d+))?(/\w+)?-keys", key, re.DOTALL)
        if match:
            stem, rank = key.removesuffix("-keys"), int(match[2] or 0)
            for end in ("values", "freqs", "versions"):
                rows, ids = tensors.get(f"{stem}-{end}"), tensors[key].astype(np.int64)
                if rows is not None and (rows.size or end == "values"):
                    name = match[1] + (match[3] or "") + ("" if end == "values" else f"-{end}")
                    found.append((name, Part(rank, ids, rows if rows.ndim == 2 else rows[:, None])))
    return found


class _Any:
    """An object of a pickle, whatever its class is: what it was made of."""

    given: Any = ()

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.given = state


class _Names(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Any,), {"__module__": module})


def boxes_of(directory: Path) -> dict[str, list[tuple[int, tuple[int, ...], Array]]]:
    """Return rank, offsets and values of each box of each tensor of torch DCP; a dtype that numpy lacks as uint16."""
    index = _Names(io.BytesIO((directory / ".metadata").read_bytes())).load().given
    found: dict[str, list[tuple[int, tuple[int, ...], Array]]] = defaultdict(list)
    for key, where in index["storage_data"].items():
        about, place = index["state_dict_metadata"][key.given["fqn"]].given, where.given
        if not isinstance(about, dict) or "size" not in about:
            continue
        dtype = about["properties"].given[0]
        offsets = tuple(key.given["offset"].given[0])
        sizes = {tuple(c.given["offsets"].given[0]): tuple(c.given["sizes"].given[0]) for c in about["chunks"]}
        with (directory / place["relative_path"]).open("rb") as file:
            file.seek(place["offset"])
            with zipfile.ZipFile(io.BytesIO(file.read(place["length"]))) as item:
                (name,) = (name for name in item.namelist() if name.endswith("/data/0"))
                kind = {"bfloat16": "uint16"}.get(dtype.__name__, dtype.__name__)
                values = np.frombuffer(item.read(name), np.dtype(kind)).reshape(sizes[offsets])
        found[key.given["fqn"]].append((int(place["relative_path"].split("_")[2]), offsets, values))
    return dict(found)


def _dcp(directory: Path) -> list[tuple[str, Part]]:
    return [
        (name, Part(rank, np.arange(offsets[0], offsets[0] + len(values)), values))
        for name, boxes in boxes_of(directory).items()
        for rank, offsets, values in boxes
        if values.ndim == 2
    ]
