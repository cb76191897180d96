"""What loaders of whole files do: loads.py OUT. OUT/KIND/NAME are checkpoints, OUT/loads.json says which ones load.

`torch/NAME.pt` is tried with torch.load(weights_only=True), `transformers/NAME` with from_pretrained, where that is
installed.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import enum
import json
import os
import pathlib
import shutil
import sys
import uuid
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

warnings.simplefilter("ignore")
OUT = pathlib.Path(sys.argv[1])
LOADS: dict[str, bool] = {}


class Color(enum.Enum):
    """A class of a user."""

    RED = 1


def loads(load: Callable[[], Any]) -> bool:
    """Say whether a call raises nothing."""
    try:
        load()
    except Exception:  # noqa: BLE001 - whatever it is, it does not load
        return False
    return True


def try_torch() -> None:
    """Save objects of many classes, and load them."""
    ones = torch.ones(3)
    objects = {
        "tensor": ones, "dict": {"a": ones, 1: 2}, "ordered": collections.OrderedDict(a=1), "none": None,
        "counter": collections.Counter("aab"), "default": collections.defaultdict(list, a=[1]), "enum": Color.RED,
        "set": {1, 2}, "frozen": frozenset({1}), "complex": 1j, "bytes": b"abc", "bytearray": bytearray(b"x"),
        "big": 2**70, "huge": 2**3000, "negative": -5, "float": 1.5, "tuple": (1, 2, 3, 4), "text": "x" * 300,
        "array": np.ones(3), "scalar": np.float64(1.0), "path": pathlib.Path("/a"), "day": dt.date(2020, 1, 1),
        "namespace": argparse.Namespace(a=1), "decimal": decimal.Decimal("1.5"), "uuid": uuid.UUID(int=1),
        "parameter": torch.nn.Parameter(ones), "module": torch.nn.Linear(2, 2),
        "norm": torch.nn.BatchNorm1d(3).state_dict(),
        "optimizer": torch.optim.Adam([torch.nn.Parameter(ones)]).state_dict(), "size": torch.Size([1, 2]),
        "device": torch.device("cpu"), "dtype": torch.bfloat16, "sparse": ones.to_sparse(), "meta": ones.to("meta"),
        "f8": ones.to(torch.float8_e4m3fn), "uint16": ones.to(torch.uint16), "c64": ones.to(torch.complex64),
        "slice": slice(1, 2), "range": range(3), "type": int, "function": len, "storage": ones.untyped_storage(),
        "deque": collections.deque([1]), "list": list(range(300)),
        "quantized": torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8), "view": torch.arange(9.0).reshape(3, 3).t(),
    }  # fmt: skip
    for name, value in objects.items():
        for protocol in (2, 4):
            path = OUT / "torch" / f"{name}{protocol}.pt"
            torch.save(value, path, pickle_protocol=protocol)
            LOADS[f"torch/{path.name}"] = loads(partial(torch.load, path, weights_only=True))
    old = OUT / "torch" / "old.pt"
    torch.save({"a": ones, "b": pathlib.Path("/a")}, old, _use_new_zipfile_serialization=False)
    LOADS["torch/old.pt"] = loads(partial(torch.load, old, weights_only=True))


def try_transformers() -> None:
    """Save a small model in several ways, break some, and load them."""
    from safetensors.torch import save_file
    from transformers import AutoModel, BertConfig, BertModel

    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    model = BertModel(BertConfig(**sizes))
    folder = OUT / "transformers"
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "set", max_shard_size="4KB")

    def broken(name: str, of: str, change: Callable[[pathlib.Path], Any]) -> None:
        shutil.copytree(folder / of, folder / name)
        change(folder / name)

    def edit_index(path: pathlib.Path, change: Callable[[Any], Any]) -> None:
        index = path / "model.safetensors.index.json"
        document = json.loads(index.read_text())
        change(document)
        index.write_text(json.dumps(document))

    def as_bin(path: pathlib.Path, extra: dict[str, Any]) -> None:
        (path / "model.safetensors").unlink()
        torch.save(model.state_dict() | extra, path / "pytorch_model.bin")

    broken("no-config", "one", lambda path: (path / "config.json").unlink())
    broken("no-weights", "one", lambda path: (path / "model.safetensors").rename(path / "other.safetensors"))
    broken("no-metadata", "set", lambda path: edit_index(path, lambda document: document.pop("metadata")))
    broken("missing-file", "set", lambda path: next(path.glob("model-00002*")).unlink())
    broken("cut", "one", lambda path: os.truncate(path / "model.safetensors", 5000))
    broken("bin", "one", lambda path: as_bin(path, {}))
    broken("bin-path", "one", lambda path: as_bin(path, {"x": pathlib.Path("/a")}))
    broken("plain", "one", lambda path: save_file(model.state_dict(), path / "model.safetensors"))
    for path in sorted(folder.iterdir()):
        LOADS[f"transformers/{path.name}"] = loads(partial(AutoModel.from_pretrained, path))


for kind in ("torch", "transformers"):
    (OUT / kind).mkdir()
try_torch()
try:
    import transformers  # noqa: F401
except ImportError:
    pass
else:
    try_transformers()
(OUT / "loads.json").write_text(json.dumps(LOADS))
