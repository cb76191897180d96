"""Each recipe of docs/moving-off-elasticdl.md runs as it stands there, and loads the rows that the checkpoint has.

A library that is not in this Python is taken from the one that a variable of the environment names.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import console
from edl_ckpt.core import open_checkpoint
from frameworks import need
from places import TOP

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]  # theirs are not ours to mend
PAGE = (TOP / "docs" / "moving-off-elasticdl.md").read_text(encoding="utf-8")
SERVED = """
import tensorflow as tf
again, served = keras.models.load_model("model.keras"), tf.saved_model.load("serving/1")
for some in np.split(expected["user.ids"], 4):
    asked = tf.constant(some[:, None])
    for answer in (model(asked), again(asked), served.serve(asked)):
        assert np.array_equal(answer[:, 0], expected["user.vectors"][np.searchsorted(expected["user.ids"], some)])
assert not np.any(served.serve(tf.constant([[12345]], tf.int64)))
assert np.array_equal(dense.get_weights()[0], expected["kernel"])
"""
POOLED = """
for name in names:
    ids, vectors = (torch.from_numpy(expected[f"{name[:4]}.{kind}"]) for kind in ("ids", "vectors"))
    assert torch.equal(model[name](ids[:, None]), vectors)
    assert torch.allclose(model[name](ids.reshape(-1, 4)), vectors.reshape(len(ids) // 4, 4, -1).sum(1), atol=1e-6)
    assert torch.equal(model[name](torch.cat([ids[3:5], -1 - ids[:1]]), torch.tensor([0, 2])),
                       torch.stack([vectors[3] + vectors[4], 0 * vectors[0]]))
"""
SHARDED = """
for name in ("item_embedding", "user_embedding"):
    loaded = bags.state_dict()[f"embedding_bags.{name}.weight"]
    assert torch.equal(loaded, torch.from_numpy(expected[f"{name[:4]}.vectors"]))
assert torch.equal(state["user_embedding.ids"], torch.from_numpy(expected["user.ids"]))
"""
NEAREST = """
import numpy as np
import pyarrow.feather
ids, vectors = expected["item.ids"], expected["item.vectors"]
for table in (pl.read_ipc("items.arrow"), pyarrow.feather.read_table("items.arrow")):
    assert np.array_equal(table["id"].to_numpy(), ids)
assert np.array_equal(pl.read_ipc("items.arrow")["vector"].to_numpy(), vectors)
assert np.array_equal(np.array(database.sql("SELECT vector FROM items ORDER BY id").fetchall())[:, 0], vectors)
norms = np.linalg.norm(vectors, axis=1)
scores = vectors @ vectors[7] / (norms * norms[7])
assert [id_ for id_, _ in nearest] == ids[np.argsort(-scores)[:3]].tolist()
"""
RECIPES = {
    "PyTorch": (POOLED, "torch", ""),
    "TorchRec": (SHARDED, "torchrec", "EDL_CKPT_TEST_TORCHREC_PYTHON"),
    "Keras": (SERVED, "tensorflow", "EDL_CKPT_TEST_TENSORFLOW_PYTHON"),
    "A lake or a vector database": (NEAREST, "duckdb", ""),
}


def recipe(heading: str) -> tuple[list[str], dict[str, str]]:
    """Return the commands of a section, and its files by their names."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = section.split("\n")
    files = [example.source.partition("\n") for example in console.examples(lines) if example.kind == "file"]
    commands = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).splitlines()
    assert commands
    return commands, {name: text for name, _, text in files}


def cook(heading: str, folder: Path, **variables: str) -> str:
    """Run the commands of a section where `edl-ckpt demo` has run; return the program of that section."""
    console.fresh_demo(folder)
    commands, files = recipe(heading)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    session = console.Session(folder, variables=variables)
    for command in commands:
        printed = session.run(console.Example("command", command, 0, 0))
        assert session.exit_code == 0, printed
    return next(text for name, text in files.items() if name.endswith(".py"))


def keep_truth(folder: Path) -> None:
    """Write the rows of the checkpoint to a file, for the checks."""
    with open_checkpoint(f"{folder}/edl-ckpt-demo@200") as checkpoint:
        arrays: dict[str, Any] = {"kernel": checkpoint.variable("dense/kernel:0")}
        for table in ("item", "user"):
            rows = checkpoint.table(f"{table}_embedding").to_numpy()
            arrays |= {f"{table}.ids": rows.ids, f"{table}.vectors": rows.vectors}
    np.savez(folder / "expected.npz", **arrays)


@pytest.mark.parametrize("heading", RECIPES, ids=lambda heading: RECIPES[heading][1])
def test_recipe(heading: str, tmp_path: Path) -> None:
    """The program of a section runs on the output of its commands, and has every row of the checkpoint."""
    check, library, variable = RECIPES[heading]
    python = sys.executable if importlib.util.find_spec(library) else os.environ.get(variable, "")
    if not python:
        pytest.skip(f"{library} is not installed: pip install {library}" + (f", or set {variable}" if variable else ""))
    if library == "duckdb":
        need("polars")
        need("pyarrow")
    program = cook(heading, tmp_path / "page")
    keep_truth(tmp_path / "page")
    (tmp_path / "page" / "whole.py").write_text(
        f'{program}\nimport numpy\nexpected = numpy.load("expected.npz")\n{check}', encoding="utf-8"
    )
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [python, "whole.py"], cwd=tmp_path / "page", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_key_value_store_redis(tmp_path: Path) -> None:
    """Every row is in the store, under its id."""
    redis, fakeredis = need("redis"), need("fakeredis")
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    server.daemon_threads = True  # connections would keep this process alive
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"redis://127.0.0.1:{server.server_address[1]}"
    try:
        cook("Serving", tmp_path / "page", REDIS_URL=url)
        with open_checkpoint(f"{tmp_path}/page/edl-ckpt-demo@200") as checkpoint:
            rows = checkpoint.table("item_embedding").to_numpy()
        with redis.from_url(url) as store:
            assert store.dbsize() == len(rows.ids)
            stored = store.mget([f"item:{id_}" for id_ in rows.ids.tolist()])
        assert np.array_equal(np.frombuffer(b"".join(stored), "<f4").reshape(rows.vectors.shape), rows.vectors)
    finally:
        server.shutdown()
        server.server_close()


def test_every_recipe_is_run() -> None:
    """Each section with a program has a test here; the page is short."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    with_programs = {text.partition("\n")[0] for text in sections if "```py" in text}
    assert with_programs == {*RECIPES, "Serving"}
    assert len(PAGE.split()) <= 900
