"""Hands that slip: each refusal names the line that would work, and no guess names a command that deletes."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from checkpoints import save_small
from edl_ckpt.cli.catalogue import COMMANDS, GROUPS
from edl_ckpt.cli.options.slips import DELETING, without_deletions
from program import edl

LINES = [
    ("head run@10 t", "head run@10 --table t"),
    ("head run t", "head run --table t"),
    ("head run 10 t", "head run@10 --table t"),
    ("sample run@10 t", "sample run@10 --table t"),
    ("ids run@10 t", "ids run@10 --table t"),
    ("inspect run@10 t", "inspect run@10 --table t"),
    ("get run@10 t 1 2", "get run@10 --table t --id 1 --id 2"),
    ("inspect run 10", "inspect run@10"),
    ("verify run @10", "verify run@10"),
    ("du run 10", "du run@10"),
    ("reshard run@10 3", "reshard run@10 --ranks 3"),
    ("reshard run 3", "reshard run --ranks 3"),
    ("reshard run 10 3", "reshard run@10 --ranks 3"),
    ("diff run 10 20", "diff run@10 @20"),
    ("diff run@10 20", "diff run@10 @20"),
    ("wait run 20", "wait run --version-ge 20"),
    ("export out.npz run@10", "export run@10 out.npz"),
    ("export out.npz run", "export run out.npz"),
    ("copy other run@10", "copy run@10 other"),
    ("tag add good run@10", "tag add run@10 good"),
    ("tag good run@10", "tag add run@10 good"),
    ("tag run@10 good", "tag add run@10 good"),
    ("note hello run@10", "note run@10 hello"),
    ("metrics set run@10 auc 0.5", "metrics set run@10 auc=0.5"),
    ("metrics set auc=0.5 run@10", "metrics set run@10 auc=0.5"),
    ("metrics run@10 auc=0.5", "metrics set run@10 auc=0.5"),
    ("metadata set run@10 owner ads", "metadata set run@10 owner=ads"),
    ("run", "list run"),
    ("run list", "list run"),
    ("run@10", "inspect run@10"),
    ("./run verify", "verify ./run"),
    ("prune run --keep-checkpoint-max 3", "prune run --keep 3 --dry-run"),
    ("prune run --keep_checkpoint_max=3", "prune run --keep 3 --dry-run"),
    ("prune run --max-to-keep 3 --dry-run", "prune run --keep 3 --dry-run"),
    ("prune run --save-total-limit 3", "prune run --keep 3 --dry-run"),
    ("prune run --keep-last 3", "prune run --keep 3 --dry-run"),
    ("policy set run --keep-latest 3", "policy set run --keep 3"),
    ("reshard run@10 --num_ps_pods 3", "reshard run@10 --ranks 3"),
    ("reshard run@10 --ps-num 3", "reshard run@10 --ranks 3"),
    ("reshard run@10 --world-size 3", "reshard run@10 --ranks 3"),
    ("list --checkpoint_dir run", "list run"),
    ("inspect --checkpoint-dir run", "inspect run"),
    ("inspect run --step 10", "inspect run@10"),
    ("export run@10 --output out.npz", "export run@10 out.npz"),
    ("export run@10 -o out.npz", "export run@10 out.npz"),
    ("verify run@10 --lock_wait 5s", None),
    ("repartition run@10", "reshard run@10 --ranks 4 --dry-run"),
    ("reshard run@10 -n 3", "reshard run@10 --ranks 3"),
    ("reshard run@10 --to 3", "reshard run@10 --ranks 3"),
    ("diff run 10 10", "diff run@10 @10"),
    ("diff run@10..run@20", "diff run@10 run@20"),
    ("note run@10 hello world", "note run@10 'hello world'"),
    ("tag add run@10 good serving", "tag add run@10 good"),
    ("export run@10 out.npz t", "export run@10 out.npz --table t"),
    ("export run@10 t out.npz", "export run@10 --table t out.npz"),
    ("cp run@10 other -r", "copy run@10 other"),
    ("ls -lh run", "list run"),
    ("ls run --recursive --human-readable", "list run --recursive"),
    ("list run --all", "list run"),
    ("list run 10", "inspect run@10"),
    ("status run", "list run"),
    ("latest run", "inspect run"),
    ("print_tensors_in_checkpoint_file run@10", "inspect run@10"),
    ("convert run@10 out.npz", "export run@10 out.npz"),
    ("dcp_to_torch_save run@10 out.npz", "export run@10 out.npz"),
    ("check run@10 --read-data", "verify run@10 --deep"),
    ("check --read-data-subset=50% run@10", "verify run@10 --sample 50%"),
    ("verify run@10 --level deep", "verify run@10 --deep"),
    ("verify run@10 --fast", "verify run@10 --quick"),
    ("verify run all", "verify run --all"),
    ("forget run --keep-last 1 --dry-run", "prune run --keep 1 --dry-run"),
    ("prune run --keep-daily 7", "prune run --keep-within 7d --dry-run"),
    ("prune run -k 1", "prune run --keep 1 --dry-run"),
    ("head run@10 -5", "head run@10 -n 5"),
    ("get run@10 --table t 1 2", "get run@10 --table t --id 1 --id 2"),
    ("get run@10 --table t --id 1,2", "get run@10 --table t --id 1 --id 2"),
    ("get run@10 --table t --ids 1", "get run@10 --table t --id 1"),
    ("find run@10 t 1", "get run@10 --table t --id 1"),
    ("resume run", "verify run --newest"),
    ("wait run --step 20", "wait run --version-ge 20"),
]
"""A line that is refused, and the one that would work; None where no line is plain."""

NPY = "--npy FILE writes the values with their dtype and shape, and - is stdout"
WORDS = [
    ("download run@10 other", "try: edl-ckpt copy run@10 other"),
    ("gc run", "try: edl-ckpt prune run --keep 4 --dry-run"),
    ("clean run", "try: edl-ckpt prune run --keep 4 --dry-run"),
    ("validate run@10", "try: edl-ckpt verify run@10"),
    ("repartition run@10 3", "try: edl-ckpt reshard run@10 --ranks 3"),
    ("snapshots run", "try: edl-ckpt list run"),
    ("tag add 10 x", "try: edl-ckpt tag add @10 x"),
    ("inspect run@newest", "did you mean latest?"),
    ("inspect run@good", "did you mean verified?"),
    ("get run@10 --tensor v", "try: edl-ckpt get run@10 --variable v"),
    ("runs list", "there is no runs here; a location: edl-ckpt list LOCATION"),
    ("note hello", "expected: edl-ckpt note LOCATION@VERSION hello"),
    ("snapshots run --latest 1", "did you mean `edl-ckpt list LOCATION`?"),
    (
        "prune run --keep 1 --force",
        "each guard has an option of its own, and a script is not asked: edl-ckpt prune --help",
    ),
    ("get run@10 --table t --id 1 --raw -", f"it is gone; {NPY}"),
    ("export run@10 out.npz --seed 7", "it is a part of --fill now: --fill initializer:SEED"),
    ("prun", "edl-ckpt --help lists the commands"),
    ("tag remov run@10 x", "edl-ckpt tag --help lists the commands"),
    ("policy cler run", "edl-ckpt policy --help lists the commands"),
    ("prune run --purg", "edl-ckpt prune --help lists the options"),
    ("prune run --delet 10", "edl-ckpt prune --help lists the options"),
]
"""A line that is refused, and its hint."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the location `run`, whose versions are 10 and 20."""
    place = tmp_path_factory.mktemp("slips")
    save_small(place / "run", 10, 20)
    return place


@pytest.mark.parametrize(("typed", "right"), LINES, ids=[typed for typed, _ in LINES])
def test_the_line_that_works_is_named(typed: str, right: str | None, saved: Path, tmp_path: Path) -> None:
    """The hint of a refused line is a line that works, and the refused one changes nothing."""
    shutil.copytree(saved, tmp_path / "here")
    refused = edl(*shlex.split(typed), cwd=tmp_path / "here")
    assert refused.returncode in {2, 10}
    if right is None:
        assert "--lock-wait" in refused.stderr
        return
    assert f"  try: edl-ckpt {right}\n" in refused.stderr
    done = edl(*shlex.split(right), cwd=tmp_path / "here")
    assert done.returncode in {0, 3}, done.stderr


@pytest.mark.parametrize(("typed", "hint"), WORDS, ids=[typed for typed, _ in WORDS])
def test_words_of_other_programs(typed: str, hint: str, saved: Path) -> None:
    """A word of another program is answered with ours; what deletes is named only in words that ask for it."""
    refused = edl(*shlex.split(typed), cwd=saved)
    assert refused.returncode in {2, 10}
    assert refused.stderr.endswith(f"  {hint}\n")


def test_no_guess_deletes() -> None:
    """Whatever the hand missed, no guess is a command that deletes: each one that does is among those left out."""
    members = {member for _, names in GROUPS.values() for member in names}
    assert {*DELETING} <= {*COMMANDS, *members}
    assert without_deletions(DELETING) == []
    for word in ("prune", "unlock"):
        for typo in (word[1:], word[:-1], word + "e", re.sub("n", "m", word)):
            assert word not in edl(typo).stderr.split("\n", 1)[1]
