"""The files of docs/ci and docs/kubernetes: valid by the published schemas, and run by a shell in a runner's place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from checkpoints import save_small
from edl_ckpt.core import list_versions, verify_version
from places import TOP
from program import edl

CI = TOP / "docs/ci"
MANIFESTS = sorted((TOP / "docs/kubernetes").glob("*.yaml"))


@pytest.mark.parametrize(
    ("schema", "name"),
    [("github-actions", "action.yml"), ("github-workflows", "promote.yml"), ("gitlab-ci", "gitlab-ci.yml")],
)
def test_schemas(schema: str, name: str) -> None:
    """The files for GitHub and GitLab fit the schemas that are published for them."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(CI / name)]
    transform = ["--data-transform", "gitlab-ci"] if schema == "gitlab-ci" else []
    done = subprocess.run([*command, *transform], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests(path: Path) -> None:
    """Every manifest fits Kubernetes's own schemas, strictly, of the oldest and the newest release that is known."""
    resource = yaml.safe_load(path.read_text(encoding="utf-8"))
    for release in ("1.27", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(resource, release, strict=True)


def containers(resource: Any) -> list[dict[str, Any]]:
    """Return the containers of a resource in the order in which they run."""
    if isinstance(resource, dict):
        found = [*resource.get("initContainers", []), *resource.get("containers", [])]
        return found or [c for value in resource.values() for c in containers(value)]
    return []


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `edl-ckpt` is this program, and `pip` notes what it was to install."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "edl-ckpt").write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from edl_ckpt.cli.app import main; main()" "$@"\n', encoding="utf-8"
    )
    (programs / "python3").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/installed\n', encoding="utf-8")
    for program in programs.iterdir():
        program.chmod(0o755)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EDL_CKPT_")}
    return outer | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "XDG_CONFIG_HOME": "/nowhere"}


def run_action(shell: dict[str, str], work: Path, inputs: dict[str, str]) -> int:
    """Run the steps of action.yml as a runner does: bash with -e and pipefail, a file for the summary."""
    action = yaml.safe_load((CI / "action.yml").read_text(encoding="utf-8"))
    assert set(inputs) <= set(action["inputs"])
    values = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | inputs
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_ACTION_PATH": str(CI), "GITHUB_STEP_SUMMARY": str(work / "summary.md")}
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]  # an input in a script could contain commands
        given = {
            key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: values[m[1]], text)
            for key, text in step.get("env", {}).items()
        }
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        with open(work / "log", "a", encoding="utf-8") as log:
            code = subprocess.run(
                bash, cwd=work, env=shell | runner | given, stdout=log, stderr=log, timeout=120, check=False
            ).returncode
        if code:
            return code
    return 0


def test_action(shell: dict[str, str], tmp_path: Path) -> None:
    """The action installs the checkout that it is in; it verifies, and fails with findings, annotations and summary."""
    save_small(tmp_path / "run", 10)
    assert run_action(shell, tmp_path, {"ref": f"{tmp_path}/run@10", "extras": ""}) == 0
    what = (tmp_path / "installed").read_text().split()[-1]
    assert Path(what).resolve() == TOP
    (tmp_path / "run/version-10/variables-1-of-2.ckpt").unlink()
    assert run_action(shell, tmp_path, {"ref": f"{tmp_path}/run@10", "level": "quick"}) == 3
    assert (tmp_path / "installed").read_text().split()[-1].endswith("/../..[s3]")
    assert "::error title=missing-shard::" in (tmp_path / "log").read_text()
    assert (tmp_path / "summary.md").read_text().count("edl-ckpt verify") == 2
    assert "missing-shard" in (tmp_path / "edl-ckpt-junit.xml").read_text()
    assert run_action(shell, tmp_path, {"ref": "run", "level": "$(touch hacked)"}) == 2
    assert not (tmp_path / "hacked").exists()


def run_shell(words: list[str], work: Path, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script with an environment."""
    return subprocess.run(["sh", *words], cwd=work, env=given, capture_output=True, text=True, timeout=120, check=False)


def test_gitlab(shell: dict[str, str], tmp_path: Path) -> None:
    """Both jobs of the template run: one verifies, the other promotes, and each leaves the report that it names."""
    save_small(tmp_path / "run", 10, 20)
    edl("metrics", "set", f"{tmp_path}/run@10", "auc=0.8")
    template = yaml.safe_load((CI / "gitlab-ci.yml").read_text(encoding="utf-8"))
    own = {"EDL_CKPT_SOURCE": str(TOP), "CHECKPOINT": "run@20", "CI_COMMIT_BRANCH": "main"}
    own |= {"RUN": "run", "METRIC": "auc", "SERVING": "models", "BACKUP": str(tmp_path / "backup")}
    for name in ("verify-checkpoint", "promote-checkpoint"):
        job = template[template[name]["extends"]] | template[name]
        script = "\n".join([*job["before_script"], *job["script"]])
        given = shell | template["variables"] | own
        done = run_shell(["-ec", script], tmp_path, given)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / job["artifacts"]["reports"]["junit"]).stat().st_size
    assert f"{TOP}[s3]" in (tmp_path / "installed").read_text()
    assert (tmp_path / "models/model-10.safetensors").exists()
    copied = list_versions(str(tmp_path / "backup")).versions
    assert [version.version for version in copied] == [10]
    assert verify_version(copied[0], level="deep").ok
    assert list_versions(str(tmp_path / "run")).versions[0].tags == ("promoted",)


def test_a_promotion_stops(shell: dict[str, str], tmp_path: Path) -> None:
    """A version that verify does not pass is neither exported nor copied nor tagged, and the exit code is verify's."""
    save_small(tmp_path / "run", 10)
    edl("verify", f"{tmp_path}/run@10", "--seal")
    edl("metrics", "set", f"{tmp_path}/run@10", "auc=0.8")
    shard = tmp_path / "run/version-10/variables-0-of-2.ckpt"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    own = {"RUN": "run", "METRIC": "auc", "SERVING": "models", "BACKUP": "backup"}
    done = run_shell([str(CI / "promote.sh")], tmp_path, shell | own)
    assert done.returncode == 3
    assert not (tmp_path / "models").exists()
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_containers(path: Path, tmp_path: Path) -> None:
    """What each container of ours runs succeeds on a root file system that is read-only, except for its volumes."""
    save_small(tmp_path / "run", 10, 20, 30)
    edl("policy", "set", tmp_path / "run", "--keep", "2")
    resource = yaml.safe_load(path.read_text(encoding="utf-8"))
    ours = [c for c in containers(resource) if "edl-ckpt" in c["image"]]
    assert ours
    for container in ours:
        words = [word.replace("/checkpoints", str(tmp_path)).replace("s3://bucket", str(tmp_path / "s3"))
                 for word in container["args"]]  # fmt: skip
        assert container["securityContext"]["readOnlyRootFilesystem"]
        done = read_only([sys.executable, "-c", "from edl_ckpt.cli.app import main; main()", *words], tmp_path)
        assert done.returncode == 0, done.stderr
    for version in list_versions(str(tmp_path / "run")).versions:
        assert verify_version(version, level="deep").ok


def read_only(command: list[str], volume: Path) -> subprocess.CompletedProcess[str]:
    """Run a command where nothing can be written but a volume and a /tmp of its own; skip where that cannot be made."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("only root makes file systems read-only, with unshare")
    script = (
        'mount --bind "$0" "$0" && mkdir -p "$0/.tmp" && mount -o remount,bind,ro / && export TMPDIR="$0/.tmp"'
        ' && ! touch /read-only 2> /dev/null && exec "$@"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(volume), *command],
        capture_output=True, text=True, timeout=120, check=False, env={"PATH": os.environ["PATH"], "HOME": "/nowhere"},
    )  # fmt: skip
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"file systems cannot be made read-only here: {done.stderr.strip()}")
    return done
