"""The section `checkpoint_storage` of a configuration file, as commands follow it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import set_metrics
from program import edl, inside
from s3_fixtures import UNWANTED, Bucket
from s3_proxy import Call, Fault, Forward, Reply

SECRET = "hush-hush-hush"


@pytest.fixture
def nas(tmp_path: Path) -> Path:
    """Return a directory with the storage `ctr`, of the versions 10, 20 and 30, and a file that describes it."""
    save_small(tmp_path / "nas/ctr", 10, 20, 30)
    for version in (10, 20, 30):
        set_metrics(at(tmp_path / "nas/ctr", version), {"auc": version / 100})
    write(tmp_path, f'type = "shared_fs"\nhost_path = "{tmp_path / "nas"}"\nstorage_path = "ctr"')
    return tmp_path / "nas"


def write(folder: Path, text: str, *, own: bool = True) -> None:
    """Write a section into the user's file, or into one in the current directory."""
    place = folder / "config/edl-ckpt" if own else folder / "here"
    place.mkdir(parents=True, exist_ok=True)
    (folder / "here").mkdir(exist_ok=True)
    (place / "edl-ckpt.toml").write_text(f"[checkpoint_storage]\n{text}\n", encoding="utf-8")


def run(folder: Path, *words: str, code: int = 0, **env: str) -> tuple[str, str]:
    """Run a command with the user's file, in an empty directory, and return what it printed."""
    done = edl(*words, cwd=folder / "here", XDG_CONFIG_HOME=str(folder / "config"), **env)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_default(nas: Path, tmp_path: Path) -> None:
    """Without LOCATION, commands work on the storage; the environment and the command line come before it."""
    (listed,) = json.loads(run(tmp_path, "list", "--json")[0])["locations"]
    assert (listed["location"], [v["version"] for v in listed["versions"]]) == (str(nas / "ctr"), [10, 20, 30])
    for words in (["inspect", "@20"], ["verify"], ["metrics", "set", "@20", "auc=1"], ["tag", "add", "@20", "t"]):
        run(tmp_path, *words)
    assert json.loads(run(tmp_path, "inspect", "@best:auc", "--json")[0])["version"] == 20
    save_small(tmp_path / "other", 7)
    assert "@7" in run(tmp_path, "inspect", EDL_CKPT_DIR=str(tmp_path / "other"))[0]
    assert "@7" in run(tmp_path, "inspect", "../other")[0]


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ('checkpoint_path = "ctr"', "ctr"),
        ('tensorboard_path = "ctr"\ncheckpoint_path = "x"', "ctr"),
        ('storage_path = "ctr"\ntensorboard_path = "x"\ncheckpoint_path = "y"', "ctr"),
    ],
)
def test_older_keys(nas: Path, tmp_path: Path, keys: str, place: str) -> None:
    """Without storage_path, the keys that were before it name the storage, in the order in which Determined looks."""
    write(tmp_path, f'type = "shared_fs"\nhost_path = "{nas}"\n{keys}')
    (listed,) = json.loads(run(tmp_path, "list", "--json")[0])["locations"]
    assert listed["location"] == str(nas / place)


def test_names(nas: Path, tmp_path: Path) -> None:
    """An override has a name for the command line; what is here under that name makes it ambiguous."""
    save_small(tmp_path / "cold/a", 7)
    write(tmp_path, f'[checkpoint_storage.cold]\ntype = "shared_fs"\nhost_path = "{tmp_path / "cold"}"')
    assert f"{tmp_path}/cold/a@7" in run(tmp_path, "inspect", "cold/a@7")[0]
    run(tmp_path, "metrics", "set", "cold/a@7", "auc=0.5")
    run(tmp_path, "metrics", "remove", "cold/a@latest", "auc")
    run(tmp_path, "copy", f"{nas}/ctr@10", "cold/b")
    assert numbers(tmp_path / "cold/b") == [10]
    assert run(tmp_path, "list")[0] == ".  no checkpoint; it is empty\n"  # a name is no default
    (tmp_path / "here/cold").mkdir()
    assert "write ./cold for what is here" in run(tmp_path, "list", "cold/a", code=2)[1]
    run(tmp_path, "list", "./cold")


def test_somebody_elses(nas: Path, tmp_path: Path) -> None:
    """A file in the current directory names no storage: its section is ignored with a warning."""
    (tmp_path / "config/edl-ckpt/edl-ckpt.toml").unlink()
    write(tmp_path, f'type = "directory"\ncontainer_path = "{nas}/ctr"', own=False)
    out, err = run(tmp_path, "list")
    assert "no checkpoint" in out
    assert "'checkpoint_storage' ignored: a file in the current directory can only set" in err
    run(tmp_path, "inspect", "@10", "--config", "edl-ckpt.toml")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            'type = "s3"\nbuckt = "b"',
            "edl-ckpt.toml, line 3: checkpoint_storage: no key 'buckt'\n  did you mean bucket?",
        ),
        ('type = "shared_fs"\nhost_path = "/a"\nstorage_path = "../b"', "storage_path must be inside host_path"),
        ('[checkpoint_storage.x]\ntype = "s3"', 'checkpoint_storage."x": bucket is missing'),
        (f'type = "s3"\nbucket = "b"\nsecret_key = ["{SECRET}"]', "secret_key must be a text"),
        (
            f'type = "azure"\ncontainer = "c"\ncredential = "{SECRET}"',
            "checkpoint_storage: type azure is not supported",
        ),
        (f'type = "s3"\nbucket = "b"\ncheckpoint_path = "{SECRET}"', "checkpoint_storage: no key 'checkpoint_path'"),
        ('type = "shared_fs"\nhost_path = "/a"\ncheckpoint_path = "/b"', "storage_path must be inside host_path"),
        (f'type = "s3"\nbucket = 7\nsecret_key = "{SECRET}"', "bucket must be a text, got 7"),
    ],
)
def test_wrong(text: str, fault: str, tmp_path: Path) -> None:
    """A wrong section stops every command, and names the file, the key and the fault, but no secret."""
    write(tmp_path, text)
    out, err = run(tmp_path, "list", str(tmp_path), code=2)
    assert fault in err
    assert SECRET not in out + err


def test_retention(nas: Path, tmp_path: Path) -> None:
    """The numbers of the storage are the defaults of `prune --policy determined`; an option comes before them."""
    prune = ["prune", "--policy", "determined", "--metric", "auc", "--dry-run", "--json"]

    def kept(*words: str) -> list[str]:
        return [rule for rule in json.loads(run(tmp_path, *prune, *words)[0])["policy"] if " 0 " not in rule]

    assert kept() == ["the best 1 by auc (max)", "the latest 1"]
    place = f'type = "shared_fs"\nhost_path = "{nas}"\nstorage_path = "ctr"\n'
    write(tmp_path, f"{place}save_trial_best = 2\nsave_trial_latest = 0")
    assert kept() == kept(str(nas / "ctr")) == ["the best 2 by auc (max)"]
    assert kept("--save-trial-best", "0", "--save-trial-latest", "3") == ["the latest 3"]
    write(tmp_path, f'{place}save_trial_best = 2\n[checkpoint_storage."{nas}/ctr"]\nsave_trial_latest = 5')
    assert kept() == ["the best 2 by auc (max)", "the latest 5"]
    save_small(tmp_path / "other", 7)
    both = [str(nas / "ctr"), str(tmp_path / "other")]
    each = [
        [f"the best 2 by auc (max) at {place}", f"the latest {n} at {place}"]
        for place, n in zip(both, (5, 1), strict=True)
    ]
    assert kept(*both) == [*each[0], *each[1]]
    assert kept(*both, "--save-trial-latest", "3") == ["the best 2 by auc (max)", "the latest 3"]


def test_s3(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A storage of S3 has its endpoint and credentials from the section alone; a plan from a file has them too."""
    save_small(tmp_path / "disk", 10, 20)
    s3.upload(tmp_path / "disk", "pre/fix")
    write(
        tmp_path,
        f'type = "s3"\nbucket = "{s3.name}"\nprefix = "/pre/./fix/"\nendpoint_url = "{s3.proxy.endpoint}"\n'
        f'access_key = "AKIDOFTHESECTION"\nsecret_key = "{SECRET}"',
    )
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", *UNWANTED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    signed: set[str] = set()

    def look(call: Call, forward: Forward) -> Reply | None:
        signed.update(value.split("Credential=")[1].split("/")[0] for n, value in call.headers if n == "Authorization")
        return forward(call)

    s3.proxy.fail(Fault(kind=look, times=None))
    (listed,) = inside(capsys, "list")["locations"]
    assert (listed["location"], len(listed["versions"])) == (f"s3://{s3.name}/pre/fix", 2)
    inside(capsys, "metrics", "set", "@10", "auc=0.5")
    inside(capsys, "inspect", f"s3://{s3.name}/pre/fix@10")
    plan = str(tmp_path / "plan.json")
    inside(capsys, "prune", "--keep", "1", "--plan-out", plan)
    assert SECRET not in Path(plan).read_text()
    assert inside(capsys, "prune", "--apply", plan)["deleted"] == 1
    assert not [key for key in s3.objects() if "/version-10/" in key]
    assert signed == {"AKIDOFTHESECTION"}
    assert not any(SECRET in value for value in os.environ.values())


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[checkpoint-storage]\ntype = 's3'", "did you mean [checkpoint_storage]?"),
        ("[reshard]\nworker = 4", "did you mean workers?"),
    ],
)
def test_slips(text: str, hint: str, tmp_path: Path) -> None:
    """A slip in the name of a table or of an option names the right one."""
    (tmp_path / "night.toml").write_text(text)
    done = edl("list", tmp_path, "--config", tmp_path / "night.toml")
    assert (done.returncode, done.stderr.splitlines()[-1].strip()) == (2, hint)
