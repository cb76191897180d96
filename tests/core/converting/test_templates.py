"""The map that an export writes as a template is one that an import takes, for every system."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from checkpoints import save_small
from edl_ckpt.core import list_versions, open_checkpoint
from foreign import SYSTEMS
from program import edl

SOURCES = {
    "deeprec": "bundle/deeprec/model.ckpt-100",
    "torch": "dcp/torchrec/step_2",
    "a set of safetensors": "safetensors/checkpoint-200",
    "a file of safetensors": "alone.safetensors",
    "tfra": "tfra/step_3",
    "dynamicemb": "dynamicemb/step_3",
    "elasticdl": "run@5",
}


def source(name: str, place: Path) -> str:
    """Return a reference of a checkpoint that has a table at least."""
    if name == "elasticdl":
        save_small(place / "run", 5)
        return f"{place / 'run'}@5"
    if name == "a file of safetensors":
        save_small(place / "run", 5)
        assert edl("export", f"{place / 'run'}@5", place / SOURCES[name]).returncode == 0
        return str(place / SOURCES[name])
    folder = SOURCES[name] if "bundle" not in SOURCES[name] else SOURCES[name].rpartition("/")[0]
    shutil.copytree(SYSTEMS / folder, place / "in")
    return str(place / "in") + SOURCES[name].removeprefix(folder)


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_is_taken(tmp_path: Path, name: str) -> None:
    """The unchanged map changes nothing, and a table that it renames has its rows under the new name."""
    ref, template = source(name, tmp_path), tmp_path / "map.toml"
    assert edl("export", ref, template, "--map-template", "--format", "dcp").returncode == 0
    with open_checkpoint(ref) as checkpoint:
        table = next(t for t in checkpoint.table_names if not checkpoint.infos[t].companion_of)
        rows = checkpoint.table(table).to_numpy()
    text = template.read_text()
    assert f'"{table}" = "{table}"' in text
    template.write_text(text.replace(f'"{table}" = "{table}"', f'"{table}" = "renamed"'))
    done = edl("import", ref, f"{tmp_path / 'out'}@1", "--ps", "2", "--map", template, "--layout", "elasticdl")
    assert done.returncode == 0, done.stderr
    (version,) = list_versions(str(tmp_path / "out")).versions
    with open_checkpoint(version) as checkpoint:
        assert table not in checkpoint.table_names
        renamed = checkpoint.table("renamed").to_numpy()
    order, other = np.argsort(rows.ids), np.argsort(renamed.ids)
    assert np.array_equal(rows.ids[order], renamed.ids[other])
    assert np.array_equal(rows.vectors[order], renamed.vectors[other])


def test_tfra_gets_tables_without_their_companions(tmp_path: Path) -> None:
    """TFRA has no file for counters: they are left out by name, and the tables are written."""
    ref = source("deeprec", tmp_path)
    done = edl("export", ref, tmp_path / "out", "--format", "tfra")
    assert done.returncode == 0, done.stderr
    for companion in ("item_emb-freqs", "item_emb-versions"):
        assert f"{companion} is left out: TFRA has no file for it" in done.stderr
    with open_checkpoint(str(tmp_path / "out")) as checkpoint:
        assert checkpoint.table_names == ["item_emb"]


def test_a_template_lists_items(tmp_path: Path) -> None:
    """Texts, values of Python and tensors of float8 are in the map, which every import of it takes unchanged."""
    shutil.copytree(SYSTEMS / "dcp/everything/step_3", tmp_path / "in/step_3")
    ref, template = str(tmp_path / "in@3"), tmp_path / "map.toml"
    assert edl("export", ref, template, "--map-template", "--format", "dcp").returncode == 0
    with open_checkpoint(ref) as checkpoint:
        names = [*checkpoint.item_names, *checkpoint.variable_names, *checkpoint.table_names]
        assert checkpoint.item_names
    assert all(f'"{name}" = "{name}"' in template.read_text() for name in names)
    done = edl("export", ref, tmp_path / "out", "--format", "dcp", "--map", template)
    assert done.returncode == 0, done.stderr
    with open_checkpoint(str(tmp_path / "out")) as checkpoint:
        assert set(names) == {*checkpoint.item_names, *checkpoint.variable_names, *checkpoint.table_names}
