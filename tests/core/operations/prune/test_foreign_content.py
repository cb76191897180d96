"""What no checkpoint has in its directory is not deleted by a rule, and what a kept version needs stays."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edl_ckpt.core import plan_prune, prune, recover
from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.commit.journal import Journal, deletions_bytes
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.plan import PrunePlan
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.undo import undo
from edl_ckpt.core.sources.side_files import is_of_a_host
from edl_ckpt.core.state.index import content_digest
from edl_ckpt.core.state.paths import (
    INDEX_FILE,
    LOCATION_FILE,
    LOCK_FILE,
    MANAGER_FILE,
    META_DIR,
    notes_dir,
    seal_file,
    verdicts_file,
    version_file,
)
from s3_fixtures import Bucket
from stranger_files import NOW, age, steps_at

ONE = Policy((Latest(1),))


def going(plan: PrunePlan) -> list[int]:
    """Return the numbers of the versions that a plan deletes."""
    return [entry.version for entry in plan.deletions]


def reasons(plan: PrunePlan, number: int) -> tuple[str, ...]:
    """Return the reasons of a version in a plan."""
    return next(entry.reasons for entry in plan.entries if entry.version == number)


def plan_of(run: Path, policy: Policy = ONE, guards: Guards | None = None) -> PrunePlan:
    """Return the plan for a location, long after all in it was written."""
    return plan_prune([run], policy, guards=guards or Guards(), now=NOW)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with three steps of torch."""
    return steps_at(tmp_path / "run", (10, 20, 30))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("notes.txt", "notes.txt"),
        (".git/HEAD", ".git"),
        (".hydra/config.yaml", ".hydra"),
        ("a/b/c/d/e/f/g/h/deep.bin", "a"),
        ("wandb/run-1/events", "wandb"),
        ("thesis.tex", "thesis.tex"),
        ("model/notes.txt", "model"),
        ("checkpoints/step_5/__0_0.distcp", "checkpoints"),
        ("saved_model.pb", "saved_model.pb"),
        (".edl-ckpt/notes.txt", ".edl-ckpt"),
        (".edl-ckpt.toml", ".edl-ckpt.toml"),
        (".thesis.edl-ckpt-draft", ".thesis.edl-ckpt-draft"),
        (".edl-ckpt-0/thesis.tex", ".edl-ckpt-0"),
        (".edl-ckpt-0/meta-0/photo.jpg", ".edl-ckpt-0"),
        (".edl-ckpt-0/trash-0/20260101T000000-host-7-0a1b2c3d/step_5/.metadata", ".edl-ckpt-0"),
        (".edl-ckpt-0/stage-0/mine/notes.txt", ".edl-ckpt-0"),
        ("model/.edl-ckpt-17/x", "model"),
    ],
)
def test_no_rule_deletes_foreign_files(run: Path, path: str, shown: str) -> None:
    """A step with anything that is not known to belong to a checkpoint stays, and the reason names it."""
    place = run / "step_10" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"mine")
    age(run)
    plan = plan_of(run)
    assert going(plan) == [20]
    assert reasons(plan, 10) == (f"foreign content: {shown} (--delete 10 --with-foreign)",)
    prune([run], ONE, now=NOW)
    assert place.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "path",
    [
        *("config.json", "tokenizer.json", "optimizer.pt", "rng_state_3.pth", "trainer_state.json", "common.pt"),
        *(
            ".DS_Store",
            "._x",
            "model/.DS_Store",
            ".nfs00000001",
            ".edl-ckpt-0/lock-0",
            ".edl-ckpt-0/meta-0/10.seal.json",
            ".edl-ckpt-0/meta-0/named-final%20one.json",
            ".edl-ckpt-0/shards-0/10/0-of-2.0123456789abcdef.m-1.json",
            ".m.npz.20260101T000000-host_0a1b2c3d-7-0a1b2c3d.edl-ckpt",
            ".m.20260101T000000-host_0a1b2c3d-7-0a1b2c3d.edl-ckpt.work/token",
            "global_step10/a_model_states.pt",
        ),
    ],
)
def test_companions_and_files_of_hosts_go_along(run: Path, path: str) -> None:
    """Files that jobs are known to save next to a checkpoint, and those of hosts, do not keep a step."""
    place = run / "step_10" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"x")
    age(run)
    assert going(plan_of(run)) == [10, 20]
    assert prune([run], ONE, now=NOW).failed == ()
    assert not (run / "step_10").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_links_and_pipes_are_foreign(run: Path, kind: str) -> None:
    """A link that no format reads, and a pipe, belong to no checkpoint."""
    place = run / "step_10" / "strange"
    if kind == "link":
        place.symlink_to("/etc/hostname")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(place.parent)
            server.bind("strange")
    age(run)
    assert going(plan_of(run)) == [20]


@pytest.mark.parametrize("path", ["plots", "plots/old", ".empty", "model/sub", ".edl-ckpt-0/mine", "step_3"])
def test_a_directory_that_somebody_made_is_content(run: Path, path: str) -> None:
    """An empty directory keeps a step, by rules and by its name, unless the caller asks for what is foreign."""
    (run / "step_10" / path).mkdir(parents=True)
    age(run)
    assert going(plan_of(run)) == [20]
    with pytest.raises(RefusedError, match="foreign content"):
        plan_of(run, Policy(), Guards(delete=(10,)))
    assert going(plan_of(run, Policy(), Guards(delete=(10,), with_foreign=True))) == [10]


@pytest.mark.parametrize("path", ["huggingface", "global_step7", ".edl-ckpt-0/meta-0", ".edl-ckpt-0/stage-0"])
def test_directories_that_writers_make_first_go_along(run: Path, path: str) -> None:
    """The empty directory of a save that died keeps no step, and neither does ours."""
    (run / "step_10" / path).mkdir(parents=True)
    age(run)
    assert going(plan_of(run)) == [10, 20]


def test_an_empty_directory_that_comes_meanwhile_stays(run: Path) -> None:
    """A directory that somebody makes between the plan and the deletion makes the plan stale."""

    def write(plan: PrunePlan) -> bool:
        (run / "step_10/plots").mkdir()
        return bool(plan.deletions)

    with pytest.raises(RefusedError, match="stale"):
        prune([run], ONE, now=NOW, confirm=write)
    assert (run / "step_10/plots").exists()


def test_all_names_of_our_state_are_known() -> None:
    """What `state/paths.py` names is known to be ours in the directory of a version, too."""
    names = [
        LOCK_FILE,
        version_file(100),
        version_file("weights.10-0.32"),
        version_file("x" * 255),
        version_file("0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"),
        seal_file(100),
        f"{notes_dir(100)}/earlier.json",
        *(f"{META_DIR}/{name}" for name in (LOCATION_FILE, INDEX_FILE, MANAGER_FILE, verdicts_file(new_id()))),
    ]
    assert [name for name in names if not is_of_a_host(name)] == []


def test_a_named_version_needs_one_more_word(run: Path) -> None:
    """`--delete` refuses a version with foreign content; with `--with-foreign` all of it goes, and comes back."""
    (run / "step_10/.git").mkdir()
    (run / "step_10/.git/HEAD").write_bytes(b"x" * 1000)
    (run / "step_10/notes.txt").write_bytes(b"mine")
    age(run)
    named = Guards(delete=(10,))
    with pytest.raises(RefusedError, match=r"foreign content: \.git, notes\.txt") as refused:
        plan_of(run, Policy(), named)
    assert refused.value.hint == "it was not deleted; to delete it all the same, add: --with-foreign"
    both = Guards(delete=(10,), with_foreign=True)
    plan = plan_of(run, Policy(), both)
    total = sum(path.stat().st_size for path in (run / "step_10").rglob("*") if path.is_file())
    assert plan.deleted_bytes == total
    assert reasons(plan, 10) == ("named for deletion, with foreign content: 2 files, 1004 B (.git, notes.txt)",)
    done = prune([run], Policy(), guards=both, now=NOW, trash=True)
    assert len(done.deleted) == 1
    assert not (run / "step_10").exists()
    undo(run)
    assert (run / "step_10/.git/HEAD").read_bytes() == b"x" * 1000


def test_freed_bytes_count_all_that_goes(run: Path) -> None:
    """Hidden files and what is left out of a listing count: `freed_bytes` is what the disk gets back."""
    (run / "step_10/.DS_Store").write_bytes(b"x" * 4096)
    age(run)
    total = sum(
        path.stat().st_size for number in (10, 20) for path in (run / f"step_{number}").rglob("*") if path.is_file()
    )
    assert plan_of(run).deleted_bytes == total
    assert prune([run], ONE, now=NOW).freed_bytes == total


def test_what_comes_meanwhile_stays(run: Path) -> None:
    """A file that comes into a directory between the plan and the deletion makes the plan stale."""

    def write(plan: PrunePlan) -> bool:
        (run / "step_10/thesis.tex").write_text("mine")
        return bool(plan.deletions)

    with pytest.raises(RefusedError, match="stale"):
        prune([run], ONE, now=NOW, confirm=write)
    assert (run / "step_10/thesis.tex").exists()


def test_a_link_keeps_what_it_leads_to(run: Path) -> None:
    """A kept version that is a link keeps the directory that it leads to."""
    (run / "step_40").symlink_to("step_20")
    age(run)
    plan = plan_of(run)
    assert going(plan) == [10]  # 30 was written after what 40 leads to
    assert reasons(plan, 20) == (f"needed by {run}@40: step_40",)
    prune([run], ONE, now=NOW)
    assert (run / "step_40/.metadata").exists()


def test_a_linked_file_keeps_the_version_that_has_it(run: Path) -> None:
    """A kept version with a file that lies in another one keeps that one, over a chain of links too."""
    (run / "step_30/__1_0.distcp").unlink()
    (run / "step_30/__1_0.distcp").symlink_to("../step_20/__1_0.distcp")
    (run / "step_20/__1_0.distcp").unlink()
    (run / "step_20/__1_0.distcp").symlink_to("../step_10/__1_0.distcp")
    age(run)
    plan = plan_of(run)
    assert going(plan) == []
    assert reasons(plan, 20) == (f"needed by {run}@30: step_30/__1_0.distcp",)
    assert f"needed by {run}@30: step_30/__1_0.distcp" in reasons(plan, 10)


def test_a_linked_directory_in_a_step_keeps_what_it_leads_to(run: Path) -> None:
    """A directory in a kept version that is a link into another version keeps that one."""
    (run / "step_30/optimizer").symlink_to("../step_10")
    age(run)
    assert going(plan_of(run)) == [20]


def _linked_file(run: Path) -> Path:
    """Let a file of the newest step be a link to one of the step before."""
    link = run / "step_30/__1_0.distcp"
    link.unlink()
    link.symlink_to("../step_20/__1_0.distcp")
    age(run)
    return link


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_link_keeps_what_it_leads_to_where_its_version_cannot_be_listed(
    run: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Where a directory in the kept version cannot be listed, its known files keep what they lead to."""
    _linked_file(run)
    (run / "step_30/.hydra").mkdir()
    real = os.listdir

    def failing(path: Any = ".") -> Any:
        if isinstance(path, int) and os.readlink(f"/proc/self/fd/{path}").endswith(".hydra"):
            raise OSError(error, os.strerror(error))
        return real(path)

    monkeypatch.setattr(os, "listdir", failing)
    plan = plan_of(run)
    assert reasons(plan, 20) == (f"needed by {run}@30: step_30/__1_0.distcp",)
    assert going(plan) == [10]


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_nothing_goes_where_a_link_cannot_be_followed_now(
    run: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """While it cannot be said where a link of a kept version leads, no version is deleted that it may lead to."""
    link, real = _linked_file(run), os.readlink

    def failing(path: Any, **more: Any) -> Any:
        if path == str(link):
            raise OSError(error, os.strerror(error))
        return real(path, **more)

    monkeypatch.setattr(os, "readlink", failing)
    plan = plan_of(run)
    assert going(plan) == []
    assert any("may need it" in reason for reason in reasons(plan, 10))


def test_a_pointer_that_cannot_be_followed_now_may_name_any_version(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link `latest` of which the disk says nothing keeps every version."""
    (run / "latest").symlink_to("step_10")
    age(run)
    assert going(plan_of(run)) == [20]
    real = os.readlink

    def failing(path: Any, **more: Any) -> Any:
        if path == str(run / "latest"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, **more)

    monkeypatch.setattr(os, "readlink", failing)
    plan = plan_of(run)
    assert going(plan) == []
    assert any("latest cannot be read now" in reason for reason in reasons(plan, 20))


def test_hard_links_need_nothing(run: Path) -> None:
    """A file that two versions share by hard links stays for the one that is kept."""
    (run / "step_30/__1_0.distcp").unlink()
    os.link(run / "step_20/__1_0.distcp", run / "step_30/__1_0.distcp")
    assert going(plan_of(run)) == [10, 20]


def test_a_version_that_goes_needs_nothing(run: Path) -> None:
    """A link in a version that goes keeps nothing."""
    (run / "step_20/__1_0.distcp").unlink()
    (run / "step_20/__1_0.distcp").symlink_to("../step_10/__1_0.distcp")
    age(run)
    assert going(plan_of(run)) == [10, 20]


def test_links_between_locations_count(run: Path, tmp_path: Path) -> None:
    """A kept version of another location of the same prune keeps what it leads to."""
    other = steps_at(tmp_path / "other", (7,))
    (other / "step_8").symlink_to(run / "step_10")
    age(other)
    plan = plan_prune([run, other], ONE, now=NOW)
    assert [entry.ref for entry in plan.deletions if entry.location.url == str(run)] == [f"{run}@20"]


def test_a_needed_version_is_not_deleted_by_its_name(run: Path) -> None:
    """`--delete` refuses a version whose files a kept version needs; both together go."""
    (run / "step_30/__1_0.distcp").unlink()
    (run / "step_30/__1_0.distcp").symlink_to("../step_20/__1_0.distcp")
    shutil.copytree(run / "step_10", run / "step_40")
    age(run)
    with pytest.raises(RefusedError, match=r"needed by .*@30"):
        plan_of(run, Policy(), Guards(delete=(20,)))
    assert going(plan_of(run, Policy(), Guards(delete=(20, 30)))) == [20, 30]


_MOUNTED = """
mount --bind {outside} {run}/step_10/data
{program} prune {run} --keep 1 --json
{program} prune {run} --delete 10 --with-foreign --json
umount {run}/step_10/data
"""


def test_mounts_are_not_entered(run: Path, tmp_path: Path) -> None:
    """A directory of the same device that is mounted in a version keeps the version, whatever is asked for."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("mine")
    (run / "step_10/data").mkdir()
    age(run)
    program = Path(sys.executable).with_name("edl-ckpt")
    script = _MOUNTED.format(outside=outside, run=run, program=program)
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr[:80]}")
    assert (outside / "thesis.tex").read_text() == "mine"
    assert (run / "step_10/.metadata").exists()
    assert "a file system is mounted in it: data" in done.stdout
    assert '"code": 16' in done.stderr


def test_a_removal_stops_at_a_mount(tmp_path: Path) -> None:
    """What is mounted in a directory that is being removed stays, and is named."""
    script = (
        "import sys; from edl_ckpt.core.storage.beneath import Directory; "
        "notes = []; Directory.open(sys.argv[1]).remove('going', notes.append); print(notes)"
    )
    (tmp_path / "going/data").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/mine").write_text("mine")
    mount = (
        f"mount --bind {tmp_path}/outside {tmp_path}/going/data && {sys.executable} -c {shlex.quote(script)} {tmp_path}"
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr[:80]}")
    assert "a file system is mounted here" in done.stdout
    assert (tmp_path / "outside/mine").read_text() == "mine"


def test_objects_are_accounted_for(run: Path, s3: Bucket) -> None:
    """On object storage hidden keys keep a version, too; with `--with-foreign` none of them is left behind."""
    for path in (".git/HEAD", "a/b/c/d/e/f/g/h"):
        (run / "step_10" / path).parent.mkdir(parents=True)
        (run / "step_10" / path).write_bytes(b"mine")
    (run / "step_20/.DS_Store").write_bytes(b"host")
    s3.upload(run)
    plan = plan_prune([s3.url], ONE, now=NOW)
    assert going(plan) == [20]
    assert reasons(plan, 10) == ("foreign content: .git, a (--delete 10 --with-foreign)",)
    assert prune([s3.url], ONE, now=NOW).failed == ()
    assert not any("step_20" in key for key in s3.objects())
    both = Guards(delete=(10,), with_foreign=True)
    done = prune([s3.url], Policy(), guards=both, now=NOW)
    assert done.freed_bytes == sum(path.stat().st_size for path in (run / "step_10").rglob("*") if path.is_file())
    assert not any("step_10" in key for key in s3.objects())


def test_markers_of_directories_go_with_a_version(run: Path, s3: Bucket) -> None:
    """What consoles of object storage write for a directory is foreign where it is empty, and never stays behind."""
    s3.upload(run)
    for key in ("run/step_10/", "run/step_20/", "run/step_20/plots/", "run/step_20/plots/old/"):
        s3.put(key, b"")
    plan = plan_prune([s3.url], ONE, now=NOW)
    assert going(plan) == [10]
    assert reasons(plan, 20) == ("foreign content: plots (--delete 20 --with-foreign)",)
    assert prune([s3.url], ONE, now=NOW).failed == ()
    assert not any("step_10" in key for key in s3.objects())
    prune([s3.url], Policy(), guards=Guards(delete=(20,), with_foreign=True), now=NOW)
    assert not any("step_20" in key for key in s3.objects())


def test_bytes_in_the_marker_of_a_directory_keep_a_version(run: Path, s3: Bucket) -> None:
    """An object that is named as a directory and has bytes is content of somebody."""
    s3.upload(run)
    s3.put("run/step_10/", b"mine")
    assert going(plan_prune([s3.url], ONE, now=NOW)) == [20]


def test_a_killed_deletion_is_finished_beside_markers(run: Path, s3: Bucket) -> None:
    """The marker of a directory is no file that came meanwhile."""
    s3.upload(run)
    s3.put("run/step_10/", b"")
    names = (".metadata", "__0_0.distcp", "__1_0.distcp")
    begun = Journal(10, "step_10", deletes=names, metadata=content_digest(b""))
    s3.put("run/.edl-ckpt-0/stage-0/a/journal.json", deletions_bytes({}, [begun]))
    s3.delete("run/step_10/.metadata")
    assert recover(s3.url).done == ("finished the deletion of version 10",)
    assert not any("step_10" in key for key in s3.objects())


def test_a_step_of_a_log_is_not_a_version_of_a_job(tmp_path: Path) -> None:
    """Lightning's logs have ElasticDL's names and none of its shards: nothing of them goes, even if it is named."""
    logs = tmp_path / "lightning_logs"
    for number in range(3):
        (logs / f"version_{number}/checkpoints").mkdir(parents=True)
        (logs / f"version_{number}/checkpoints/epoch=1.ckpt").write_bytes(b"mine")
        (logs / f"version_{number}/hparams.yaml").write_text("lr: 1")
    age(logs)
    plan = plan_prune([logs], ONE, guards=Guards(incomplete=True), now=NOW)
    assert going(plan) == []
    if plan.entries:
        with pytest.raises(RefusedError, match=r"foreign content: checkpoints, hparams\.yaml"):
            plan_of(logs, Policy(), Guards(delete=(0,)))


def test_runs_of_a_sweep_stay(tmp_path: Path) -> None:
    """Directories of runs with a number, and steps below them, are no versions to delete."""
    sweep = tmp_path / "sweep"
    for number in range(3):
        steps_at(sweep / str(number) / "checkpoints", (100, 200))
    steps_at(sweep / "step_7/checkpoints", (1, 2))
    age(sweep)
    assert going(plan_prune([sweep], ONE, guards=Guards(incomplete=True), now=NOW)) == []


def test_files_of_others_with_the_ending_of_an_index_stay(run: Path) -> None:
    """`faiss-12.index` is no bundle: it is no version, and nothing deletes it."""
    (run / "faiss-12.index").write_bytes(bytes(range(256)) * 8)
    (run / "corpus-7.index").write_bytes(b"")
    age(run)
    done = prune([run], ONE, guards=Guards(incomplete=True), now=NOW)
    assert sorted(ref.rpartition("@")[2] for ref in done.deleted) == ["10", "20"]
    assert (run / "faiss-12.index").exists()
    assert (run / "corpus-7.index").exists()


def test_a_name_of_another_system_gives_no_whole_step_away(run: Path) -> None:
    """A file that is only named like a table of dynamicemb makes a step of torch incomplete, and never deletes it."""
    (run / "step_10/x_emb_keys.rank_0.world_size_1").write_bytes(b"photos")
    age(run)
    plan = plan_of(run, guards=Guards(incomplete=True))
    assert [entry.state for entry in plan.entries if entry.version == 10] == ["incomplete"]
    assert going(plan) == [20]
    assert reasons(plan, 10)[-1].startswith("its part of dcp is whole")
    assert going(plan_of(run, Policy(), Guards(delete=(10,)))) == [10]
