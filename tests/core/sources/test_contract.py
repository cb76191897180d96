"""Each system does what every system must do."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import determined_storage
from checkpoints import save_small
from system_contract import SystemContract
from system_runs import SYSTEMS, step_run

NUMBERS = (10, 20, 30)


class TestElasticDL(SystemContract):
    """ElasticDL's own versions."""

    system = "elasticdl"
    loader = "elasticdl:go"

    def make(self, place: Path) -> None:
        """Save as a parameter server does."""
        save_small(place, *NUMBERS, sealed=False)


class TestDcp(SystemContract):
    """Steps of torch DCP that TorchRec wrote."""

    system = "dcp"
    loader = "torchrec"

    def make(self, place: Path) -> None:
        """Copy a step under other numbers."""
        step_run(place, NUMBERS)


class TestBundle(SystemContract):
    """Bundles that TensorFlow wrote."""

    system = "tensorflow"

    def make(self, place: Path) -> None:
        """Copy the files of a bundle under other numbers."""
        place.mkdir()
        for number in NUMBERS:
            for path in (SYSTEMS / "bundle/partitioned").glob("model.ckpt-30.*"):
                shutil.copy(path, place / path.name.replace("-30", f"-{number}", 1))


class TestSafetensors(SystemContract):
    """Checkpoints that transformers wrote."""

    system = "safetensors"

    def make(self, place: Path) -> None:
        """Copy a set of files under other numbers."""
        for number in NUMBERS:
            shutil.copytree(SYSTEMS / "safetensors/checkpoint-200", place / f"checkpoint-{number}")


class TestTfra(SystemContract):
    """Tables that TFRA wrote."""

    system = "tfra"
    loader = "tfra:cpu"

    def make(self, place: Path) -> None:
        """Copy a step under other numbers."""
        for number in NUMBERS:
            shutil.copytree(SYSTEMS / "tfra/step_3", place / f"step_{number}")


class TestDynamicemb(SystemContract):
    """Tables that dynamicemb wrote."""

    system = "dynamicemb"
    loader = "dynamicemb"

    def make(self, place: Path) -> None:
        """Copy a step under other numbers."""
        for number in NUMBERS:
            shutil.copytree(SYSTEMS / "dynamicemb/step_2", place / f"step_{number}")


class TestDetermined(SystemContract):
    """Checkpoint storage of Determined, with ElasticDL's shards in it: only its master deletes or adds some."""

    system = "elasticdl"
    loader = "elasticdl:go"
    keeps_names = False
    is_ours_to_delete = False

    def make(self, place: Path) -> None:
        """Save as trials do, each into a directory named by a UUID."""
        for number in NUMBERS:
            determined_storage.put(place, str(UUID(int=number)), number)
