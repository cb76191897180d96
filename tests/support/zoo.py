"""Steps with what people keep in them: each system's files, and guests that no command may lose, follow or disclose."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from bundle_files import write_bundle
from system_runs import SYSTEMS

BASES: Final[Mapping[str, str]] = {
    "dcp": "dcp/torchrec/step_2",
    "tensorflow": "bundle/deeprec",
    "safetensors": "safetensors/checkpoint-200",
    "tfra": "tfra/step_3",
    "dynamicemb": "dynamicemb/step_1",
    "torch-checkpointing": "torch/checkpointing2/step_5",
}
"""A fixture of each system that is written."""
OLD: Final = 1_700_000_000
"""The time of everything in a step, in seconds since the epoch: no job seems to be writing it."""
OTHER: Final = 1234
"""The number of another user and group, where the tests run as root."""


def step_of(system: str, place: Path, number: int) -> Path:
    """Make a step of a system in a location."""
    step = place / f"step_{number}"
    shutil.copytree(SYSTEMS / BASES[system], step)
    return step


def _file(path: Path, text: str = "kept", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _hydra(step: Path) -> None:
    _file(step / ".hydra/config.yaml", "lr: 1")


def _clone(step: Path) -> None:
    _file(step / ".git/HEAD", "ref: refs/heads/main")
    _file(step / ".git/objects/0a/1b2c3d", "blob", 0o444)
    (step / ".git/refs/tags").mkdir(parents=True)


def _cache(step: Path) -> None:
    _file(step / "sub/.cache/huggingface/download/x.lock", "")


def _deep(step: Path) -> None:
    _file(step / "a/b/c/d/e/f/g/h/i/j/deep.txt")


def _empty(step: Path) -> None:
    (step / "plots/old").mkdir(parents=True)
    (step / ".empty").mkdir(mode=0o700)


def _private(step: Path) -> None:
    _file(step / "notes.txt", "mine", 0o640)
    _file(step / "private/key", "secret", 0o600)
    (step / "private").chmod(0o700)
    if os.geteuid() == 0:
        for path in (step / "notes.txt", step / "private", step / "private/key"):
            os.chown(path, OTHER, OTHER)


def _read_only(step: Path) -> None:
    _file(step / "frozen/weights.txt", "1", 0o444)
    (step / "frozen").chmod(0o555)


def _secret_link(step: Path) -> None:
    secret = step.parent.parent / "secret"
    _file(secret, "root's", 0o600)
    (step / "aa").symlink_to(secret)


def _dangling(step: Path) -> None:
    (step / "wandb").mkdir()
    (step / "wandb/latest-run").symlink_to("run-20260101_000000")
    (step / "gone").symlink_to("/no/such/place")


def _linked_directory(step: Path) -> None:
    outside = step.parent.parent / "datasets"
    _file(outside / "big.bin")
    (step / "data").symlink_to(outside)


def _loop(step: Path) -> None:
    (step / "up").symlink_to("..")
    (step / "self").symlink_to(".")


def _link_of_a_rank(step: Path) -> None:
    """A link with the name of a rank's file; where it leads depends on the directory in which it is."""
    _file(step.parent.parent / "outside.distcp")
    (step / "__9_0.distcp").symlink_to("../../outside.distcp")


def _ranks(step: Path) -> None:
    _file(step / "rng_state.rank_0.world_size_2")
    _file(step / "optim.rank_1.world_size_2")
    _file(step / "lost_opt_args.json", "{}")


def _second_bundle(step: Path) -> None:
    newest = next((path.stem for path in sorted(step.glob("*.index"))), "")
    if newest:  # in a step of another system it would be a second system, and nothing is rewritten then
        write_bundle(step / "model", {"w": np.arange(4, dtype=np.float32)})
        _file(step / "checkpoint", f'model_checkpoint_path: "{newest}"\nall_model_checkpoint_paths: "{newest}"\n')


def _unlisted(step: Path) -> None:
    _file(step / ".__7_0.distcp")
    if (step / ".metadata").exists():
        _file(step / "__7_0.distcp", "an earlier save")
        _file(step / "__8_0.distcp", "")


def _earlier(step: Path) -> None:
    for path in list(step.rglob("*-keys")):
        later = path.parent / f"{path.name}.bak"
        shutil.copy(path, later)
    _file(step / "model-00009-of-00009.safetensors.tmp")


def _hosts(step: Path) -> None:
    _file(step / ".nfs000012")
    _file(step / "._model.safetensors")
    _file(step / ".DS_Store")
    _file(step / "lost+found/x")


def _odd_names(step: Path) -> None:
    _file(step / "with\nnewline and % and 'quotes'")
    _file(Path(os.fsdecode(os.fsencode(step) + b"/\xff\xfe.bin")))


def _hard_links(step: Path) -> None:
    _file(step / "one.txt", "both")
    os.link(step / "one.txt", step / "two.txt")


def _config_map(step: Path) -> None:
    """What Kubernetes mounts: files are links through a link to a hidden directory."""
    _file(step / "..2026_01_01/conf", "a: 1")
    (step / "..data").symlink_to("..2026_01_01")
    (step / "conf").symlink_to("..data/conf")


def _twins(step: Path) -> None:
    """Names that some file systems take for one."""
    for name in ("Notes.TXT", "notes.txt.", "NOTES.txt", "e\u0301", "\u00e9"):
        _file(step / name, name)


def _texts(step: Path) -> None:
    """Names that a terminal, a shell or a pattern may take for something else."""
    for name in ("a\r\x1b[31m.txt", "\u202egpj.exe", "-rf", "--delete", "*", " ", "...", "a\\b", "%2e%2e%2fx"):
        _file(step / name)


def _long_names(step: Path) -> None:
    _file(step / ("d" * 255) / ("n" * 255))


def _circle(step: Path) -> None:
    (step / "left").symlink_to("right")
    (step / "right").symlink_to("left")


def _pointers(step: Path) -> None:
    """Large files of Git LFS, DVC and git-annex by name only."""
    _file(step / "big.bin", f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n")
    _file(step / "data.dvc", "outs:\n- md5: a\n")
    (step / "annexed").symlink_to(".git/annex/objects/aa/bb/SHA256E-s1--x")


def _state_of_others(step: Path) -> None:
    _file(step / "sub/.edl-ckpt-0/thesis.tex")
    _file(step / "sub/.edl-ckpt-0/trash-0/mine/step_1/x")
    _file(step / ".snapshot/daily/step_5/x")


def _trainer(step: Path) -> None:
    _file(step / "trainer_state.json", "{}")
    _file(step / "optimizer.pt", "pickle")
    _file(step / "scheduler/state", "s")


def _pipe(step: Path) -> None:
    os.mkfifo(step / "events.fifo")


def _socket(step: Path) -> None:
    (step / "run").mkdir()
    here = os.getcwd()
    os.chdir(step / "run")  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("s")
    finally:
        os.chdir(here)


GUESTS: Final[Mapping[str, Callable[[Path], None]]] = {
    "hydra": _hydra,
    "clone": _clone,
    "cache": _cache,
    "deep": _deep,
    "empty": _empty,
    "private": _private,
    "read-only": _read_only,
    "secret-link": _secret_link,
    "dangling": _dangling,
    "linked-directory": _linked_directory,
    "loop": _loop,
    "link-of-a-rank": _link_of_a_rank,
    "ranks": _ranks,
    "second-bundle": _second_bundle,
    "unlisted": _unlisted,
    "earlier": _earlier,
    "hosts": _hosts,
    "odd-names": _odd_names,
    "hard-links": _hard_links,
    "config-map": _config_map,
    "twins": _twins,
    "texts": _texts,
    "long-names": _long_names,
    "circle": _circle,
    "pointers": _pointers,
    "state-of-others": _state_of_others,
    "trainer": _trainer,
}
"""What goes along, whatever the command is."""
REFUSED: Final[Mapping[str, Callable[[Path], None]]] = {"pipe": _pipe, "socket": _socket}
"""What no command copies."""


def settle(place: Path) -> None:
    """Let everything be old, links too."""
    for top, folders, files in os.walk(place, topdown=False):
        for name in (*folders, *files):
            os.utime(os.path.join(top, name), (OLD, OLD), follow_symlinks=False)
    os.utime(place, (OLD, OLD))
