"""The files of docs/ci and docs/kubernetes: valid by the published schemas, and run by a shell in a runner's place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.request import urlopen

import jsonschema
import kubernetes_validate
import pytest
import yaml

from checkpoints import save_small
from edl_ckpt.core import list_versions, verify_version
from places import TOP
from program import edl
from waiting import wait_until

CI = TOP / "docs/ci"
MANIFESTS = sorted((TOP / "docs/kubernetes").glob("*.yaml"))


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("github-actions", "action.yml"),
        ("github-workflows", "promote.yml"),
        ("github-workflows", "../../.github/workflows/ci.yml"),
        ("github-workflows", "../../.github/workflows/nightly.yml"),
        ("gitlab-ci", "gitlab-ci.yml"),
    ],
)
def test_schemas(schema: str, name: str) -> None:
    """The files for GitHub and GitLab fit the schemas that are published for them."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(CI / name)]
    transform = ["--data-transform", "gitlab-ci"] if schema == "gitlab-ci" else []
    done = subprocess.run([*command, *transform], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def resources(path: Path) -> list[dict[str, Any]]:
    """Return the resources of a manifest."""
    return [*yaml.safe_load_all(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests(path: Path) -> None:
    """Every manifest fits Kubernetes's own schemas, strictly, of the oldest and the newest release that is known."""
    for resource in resources(path):
        for built_in in operated(resource) if resource["kind"] == "DaskCluster" else [resource]:
            for release in ("1.27", kubernetes_validate.latest_version()):
                kubernetes_validate.validate(built_in, release, strict=True)


def operated(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the deployments and the service that Dask's operator makes of a cluster, with its names and labels."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    made: list[dict[str, Any]] = []
    for part in ("scheduler", "worker"):
        labels = {"dask.org/cluster-name": name, "dask.org/component": part}
        metadata = {"name": f"{name}-{part}", "labels": labels}
        template = {"metadata": metadata, "spec": spec[part]["spec"]}
        deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        made.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment})
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{name}-scheduler"}}
    return [*made, service | {"spec": spec["scheduler"]["service"]}]


def test_dask_cluster() -> None:
    """The pods of the Job reach the scheduler by its service, and may; all pods see the same volume where it says."""
    found = {resource["kind"]: resource for resource in resources(TOP / "docs/kubernetes/dask-cluster.yaml")}
    cluster, job = found["DaskCluster"], found["Job"]["spec"]["template"]
    scheduler, worker, service = operated(cluster)
    labels = scheduler["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    ports = {
        port["name"]: port["containerPort"] for port in scheduler["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    assert {port["port"]: ports[port["targetPort"]] for port in service["spec"]["ports"]} == {8786: 8786, 8787: 8787}
    (runs,) = job["spec"]["containers"]
    assert runs["args"][-1] == f"tcp://{service['metadata']['name']}:8786"
    (rule,) = found["NetworkPolicy"]["spec"]["ingress"]
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    allowed = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    for pod in (job["metadata"]["labels"], worker["spec"]["template"]["metadata"]["labels"]):
        assert any(each.items() <= pod.items() for each in allowed)
    claim = found["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    seen = {
        (volume["persistentVolumeClaim"]["claimName"], mount["mountPath"])
        for pod in (job["spec"], worker["spec"]["template"]["spec"])
        for volume in pod["volumes"]
        for mount in pod["containers"][0]["volumeMounts"]
        if volume["name"] == mount["name"] == "checkpoints"
    }
    assert seen == {(claim["metadata"]["name"], "/checkpoints")}
    accounts = {
        pod["spec"]["serviceAccountName"] for pod in (job, *(d["spec"]["template"] for d in (scheduler, worker)))
    }
    assert accounts == {found["ServiceAccount"]["metadata"]["name"]}


def test_dask_cluster_by_the_operator() -> None:
    """The cluster fits the definition that Dask's operator installs, without a key that this does not know."""
    package = pytest.importorskip("dask_kubernetes", reason="dask-kubernetes is not installed")
    place = Path(package.__path__[0], "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml")
    definition = yaml.safe_load(place.read_text(encoding="utf-8"))
    (version,) = definition["spec"]["versions"]
    (cluster,) = (r for r in resources(TOP / "docs/kubernetes/dask-cluster.yaml") if r["kind"] == "DaskCluster")
    assert cluster["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
    assert cluster["kind"] == definition["spec"]["names"]["kind"]
    check = jsonschema.Draft202012Validator(strictly(version["schema"]["openAPIV3Schema"]))
    own = {key: cluster[key] for key in ("spec",)}
    assert [error.message for error in check.iter_errors(own)] == []


def strictly(schema: Any) -> Any:
    """Return a schema that allows no key that it does not name."""
    if isinstance(schema, list):
        return [strictly(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {key: strictly(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        copied["additionalProperties"] = False
    return copied


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
        f'#!/bin/sh\nexec {quote(sys.executable)} -c "from edl_ckpt.cli.app import main; main()" "$@"\n',
        encoding="utf-8",
    )
    noted = quote(f"{tmp_path}/installed")
    note = f"printf '%s\\n' \"$@\" >> {noted}\n"
    (programs / "pip").write_text(f"#!/bin/sh\n{note}", encoding="utf-8")
    makes = f'if [ "$2" = venv ]; then mkdir -p "$3" && ln -sfn {quote(str(programs))} "$3/bin"; exit; fi\n'
    (programs / "python3").write_text(f"#!/bin/sh\n{makes}{note}", encoding="utf-8")
    (programs / "python").write_text(f'#!/bin/sh\nexec {quote(sys.executable)} "$@"\n', encoding="utf-8")
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
    runner |= {"RUNNER_TEMP": str(work / "temp"), "GITHUB_OUTPUT": str(work / "outputs")}
    (work / "outputs").unlink(missing_ok=True)
    known = {f"inputs.{name}": text for name, text in values.items()} | {"steps.python.outputs.python-path": "python3"}
    steps = [step for step in action["runs"]["steps"] if "uses" not in step]
    assert len(steps) == 2
    for step in steps:
        assert "${{" not in step["run"]  # an input in a script could contain commands
        given = {
            key: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda m: known[m[1]], text)
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
    what = (tmp_path / "installed").read_text().splitlines()[-1]
    assert Path(what).resolve() == TOP
    outputs = outputs_of(tmp_path)
    assert outputs["ref"] == f"{tmp_path}/run@10"
    assert (outputs["ok"], outputs["errors"], outputs["exit-code"]) == ("true", "0", "0")
    assert outputs["fingerprint"] == json.loads(Path(outputs["json"]).read_text())["fingerprint"]
    (tmp_path / "run/version-10/variables-1-of-2.ckpt").unlink()
    assert run_action(shell, tmp_path, {"ref": f"{tmp_path}/run@10", "level": "quick"}) == 3
    assert (tmp_path / "installed").read_text().splitlines()[-1].endswith("/../..[s3]")
    assert "::error title=missing-shard::" in (tmp_path / "log").read_text()
    outputs = outputs_of(tmp_path)
    assert (outputs["ok"], outputs["errors"], outputs["exit-code"], outputs["fingerprint"]) == ("false", "2", "3", "")
    assert (tmp_path / "summary.md").read_text().count("edl-ckpt verify") == 2
    assert "missing-shard" in (tmp_path / "edl-ckpt-junit.xml").read_text()
    assert run_action(shell, tmp_path, {"ref": "run", "level": "$(touch hacked)"}) == 2
    assert not (tmp_path / "hacked").exists()
    assert run_action(shell, tmp_path, {"ref": "nowhere"}) == 10
    assert (outputs_of(tmp_path)["exit-code"], outputs_of(tmp_path)["ok"]) == ("10", "")


def outputs_of(work: Path) -> dict[str, str]:
    """Return what the action hands to the steps behind it: its declared outputs, and no others."""
    lines = (work / "outputs").read_text(encoding="utf-8").splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    declared = yaml.safe_load((CI / "action.yml").read_text(encoding="utf-8"))["outputs"]
    assert {f"${{{{ steps.verify.outputs.{name} }}}}" for name in outputs} == {o["value"] for o in declared.values()}
    return outputs


def test_the_dockerfile() -> None:
    """Hadolint has nothing to say of the Dockerfile."""
    if not (hadolint := shutil.which("hadolint", path=os.path.dirname(sys.executable)) or shutil.which("hadolint")):
        pytest.skip("hadolint is not installed")
    words = [hadolint, "--no-color", str(TOP / "docs/kubernetes/Dockerfile")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def pods(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the specs of pods in a resource, wherever they are."""
    for value in resource.values():
        if isinstance(value, dict):
            yield from ([value] if "containers" in value else pods(value))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_get_no_token_and_no_long_chown(path: Path) -> None:
    """No pod of ours gets the token of a service account, and a volume whose owner fits is not walked at each start."""
    specs = [spec for resource in resources(path) for spec in pods(resource)]
    assert specs
    for spec in specs:
        assert spec["automountServiceAccountToken"] is (path.stem == "reshard-init")  # that pod is ElasticDL's master
        assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def run_shell(words: list[str], work: Path, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script with an environment."""
    return subprocess.run(["sh", *words], cwd=work, env=given, capture_output=True, text=True, timeout=120, check=False)


def test_gitlab(shell: dict[str, str], tmp_path: Path) -> None:
    """Both jobs of the template run: one verifies, the other promotes, and each leaves the report that it names."""
    save_small(tmp_path / "run", 10, 20)
    edl("metrics", "set", f"{tmp_path}/run@10", "auc=0.8")
    template = yaml.safe_load((CI / "gitlab-ci.yml").read_text(encoding="utf-8"))
    own = {"EDLCKPT_SOURCE": str(TOP), "CHECKPOINT": "run@20", "CI_COMMIT_BRANCH": "main"}
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


@pytest.mark.slow
def test_dask_cluster_runs(tmp_path: Path) -> None:
    """The containers run Dask's commands: the Job does its work with them, and the probes are answered.

    `pytest -n 0 -m slow tests/docs/test_ci.py`. Ports are free ones, and the volume is a directory.
    """
    save_small(tmp_path / "run", 10)
    found = {resource["kind"]: resource for resource in resources(TOP / "docs/kubernetes/dask-cluster.yaml")}
    (scheduler,), (worker,) = (containers(found["DaskCluster"]["spec"][part]) for part in ("scheduler", "worker"))
    (job,) = containers(found["Job"])
    file, outer = (
        tmp_path / "scheduler.json",
        os.environ | {"DASK_WORKER_NAME": "w0", "DASK_LOGGING__DISTRIBUTED": "critical"},
    )
    free = ["--port", "0", "--dashboard-address", "127.0.0.1:0", "--host", "127.0.0.1", "--scheduler-file", str(file)]
    dask = [sys.executable, "-m", "dask"]
    assert scheduler["command"] == worker["command"] == ["dask"]
    with ExitStack() as stack:

        def start(words: list[str], env: dict[str, str]) -> None:
            stack.callback(lambda process: process.wait(30), process := subprocess.Popen(words, env=env))
            stack.callback(process.kill)

        start([*dask, *scheduler["args"], *free], dict(outer))
        wait_until(lambda: file.exists() and file.read_text().endswith("}"), seconds=60)
        known = json.loads(file.read_text())
        for probe in (scheduler["readinessProbe"], scheduler["livenessProbe"]):
            url = f"http://127.0.0.1:{known['services']['dashboard']}{probe['httpGet']['path']}"
            assert urlopen(url, timeout=30).status == 200
        words = [word.replace("$(DASK_WORKER_NAME)", "w0").replace("=/tmp", f"={tmp_path}") for word in worker["args"]]
        start([*dask, *words], outer | {"DASK_SCHEDULER_ADDRESS": known["address"]})
        here = {"/checkpoints/run": f"{tmp_path}/run", "400": "4", "tcp://checkpoints-scheduler:8786": known["address"]}
        done = edl(*[here.get(word, word) for word in job["args"]])
        assert done.returncode == 0, done.stderr
    (version,) = list_versions(str(tmp_path / "run")).versions
    assert (version.ps_num, verify_version(version, level="deep").ok) == (4, True)


ALONE = [path for path in MANIFESTS if path.stem != "dask-cluster"]


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_containers(path: Path, tmp_path: Path) -> None:
    """What each container of ours runs succeeds on a root file system that is read-only, except for its volumes."""
    save_small(tmp_path / "run", 10, 20, 30)
    edl("policy", "set", tmp_path / "run", "--keep", "2")
    (resource,) = resources(path)
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
