"""What a job's own files say of the newest version: Megatron-LM's, DeepSpeed's and Lightning's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions, resolve
from reporters import Recorder
from system_runs import SYSTEMS, settled, step_run


def latest(run: Path) -> tuple[str, list[str]]:
    """Return the name of `@latest`, and what was said of it, without the path of the location."""
    reporter = Recorder()
    version = resolve(str(run), reporter=reporter)
    return version.name, [text.replace(f"{run}", "run") for text in reporter.warnings]


@pytest.mark.parametrize(
    ("spelling", "name", "text", "found"),
    [
        ("iter_00000", "latest_checkpointed_iteration.txt", "20\n", "iter_0000020"),
        ("global_step_", "latest_checkpointed_iteration.txt", "20", "global_step_20"),
        ("global_step", "latest", "global_step20", "global_step20"),
    ],
)
def test_the_file_of_a_job_names_the_newest(tmp_path: Path, spelling: str, name: str, text: str, found: str) -> None:
    """After a return to an older version the job starts from it, and so `@latest` is that one, with a warning."""
    run = step_run(tmp_path / "run", spelling=spelling)
    (run / name).write_text(text)
    assert latest(run) == (found, [f"run: {name} names 20: 30 is passed over"])
    (run / name).write_text(text.replace("20", "30"))
    assert latest(run) == (found.replace("20", "30"), [])


def test_a_file_of_a_job_that_names_no_good_version(tmp_path: Path) -> None:
    """The number decides where the named version is torn or absent, and the reason is said."""
    run = step_run(tmp_path / "run", spelling="global_step")
    (run / "latest").write_text("global_step40")
    assert latest(run) == ("global_step30", ["run/latest: it names global_step40, and no version here is that one"])
    (run / "latest").write_text("global_step20")
    (run / "global_step20/.metadata").write_bytes(b"no index")
    settled(run)
    name, (words,) = latest(run)
    assert name == "global_step30"
    assert words.startswith("run: latest names 20, which is passed over: it is incomplete: ")
    for text in ("", "a text\nof two lines", "\0", "../other/global_step20", "9" * 5000):
        (run / "latest").write_text(text)
        assert latest(run)[0] == "global_step30"
    (run / "latest").write_bytes(b"\xff\xfe")
    assert latest(run) == ("global_step30", ["run/latest: cannot be read: it is no text"])


def test_what_lightning_saved_last(tmp_path: Path) -> None:
    """`last.ckpt`, a directory or a link, is what a job resumes from; one that a scheduler ended comes first."""
    run = step_run(tmp_path / "run", spelling="epoch=0-step=")
    (run / "last.ckpt").symlink_to("epoch=0-step=20")
    assert latest(run) == ("epoch=0-step=20", ["run: last.ckpt names 20: 30 is passed over"])
    (run / "last.ckpt").unlink()
    for name in ("last.ckpt", "last-v1.ckpt", "hpc_ckpt_9.ckpt", "hpc_ckpt_10.ckpt"):
        shutil.copytree(SYSTEMS / "dcp/torchrec/step_2", run / name)
    settled(run)
    os.utime(run / "last-v1.ckpt")
    assert latest(run)[0] == "hpc_ckpt_10.ckpt"
    for name in ("hpc_ckpt_9.ckpt", "hpc_ckpt_10.ckpt"):
        shutil.rmtree(run / name)
    assert latest(run)[0] == "last-v1.ckpt"


def test_the_same_files_say_nothing_of_other_systems(tmp_path: Path) -> None:
    """They are read only next to versions of torch and safetensors."""
    run = step_run(tmp_path / "run")
    shutil.rmtree(run / "step_30")
    shutil.copytree(SYSTEMS / "tfra/step_3", run / "step_30")
    (run / "latest").write_text("step_30")
    settled(run)
    assert list_versions(run).problems == (f"{run}/latest: it names step_30, and no version here is that one",)
