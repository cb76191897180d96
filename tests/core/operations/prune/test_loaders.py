"""Random directories of jobs: what each system's own loader would take, `prune` leaves, and `@latest` is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from edl_ckpt.core import list_versions, plan_prune, resolve, verify_version
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import EverySteps, Latest, Policy, Within
from loader_places import SPELLINGS, Made, Template, make, templates
from loader_rules import RULES, best_model, is_whole
from reporters import Recorder
from stranger_files import NOW

POLICIES = (
    Policy((Latest(1),)),
    Policy((Latest(2),)),
    Policy((EverySteps(20),)),
    Policy((Within(7200.0),)),
    Policy((), max_size_bytes=0),
    Policy((), max_size_bytes=9000),
)
TORN = {"incomplete", "writing", "mixed", "invalid"}


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Template]:
    """Return a sound step of each format."""
    return templates(tmp_path_factory.mktemp("formats"))


def whole(made: Made, path: Path | str) -> bool:
    """Say whether a load of a path of a directory would end well."""
    name = Path(path).name
    return is_whole(Path(path), made.sizes.get(Path(os.path.realpath(path)).name) or made.sizes.get(name, {}))


def named_by_files(made: Made, taken: Path | None) -> list[Path]:
    """Return what the job's own files name: what its loader takes, and the best model of a Trainer that resumes."""
    named = [taken] if made.loader in {"tensorflow", "deepspeed", "megatron", "lightning"} else []
    if made.loader == "transformers" and taken is not None and whole(made, taken):
        named.append(best_model(made.root))
    return [path for path in named if path is not None]


def wrong_deletions(made: Made, taken: Path | None, versions: Mapping[str, Version]) -> Iterator[str]:
    """Yield each version that a plan deletes although a loader would load it: called torn, or named by a file."""
    named = {os.path.realpath(path): path.name for path in named_by_files(made, taken)}
    for policy in POLICIES:
        for guards in (Guards(), Guards(incomplete=True)):
            for entry in plan_prune([made.root], policy, guards=guards, now=NOW).deletions:
                if os.path.islink(entry.path):
                    continue
                if entry.state in TORN and whole(made, entry.path):
                    yield f"{entry.path} is {entry.state}, and can be loaded: {versions[entry.path].absent}"
                if os.path.realpath(entry.path) in named:
                    yield f"{entry.path} goes, and {named[os.path.realpath(entry.path)]} is named"


def wrong_latest(made: Made, taken: Path | None, versions: Mapping[str, Version]) -> str:
    """Return why `@latest` is not what a loader takes, where no reason was given; '' where all is right."""
    reporter = Recorder()
    try:
        found = resolve(str(made.root), reporter=reporter)
    except EdlCkptError as error:
        return "" if error.message and error.hint else f"refused without a reason: {error}"
    if taken is None or os.path.realpath(found.path) == os.path.realpath(taken):
        return ""
    if not whole(made, taken):  # what is taken instead can be loaded, or verify knows that it cannot
        is_set = len(list(Path(found.path).glob("model-0000?-of-00003.safetensors"))) == 3
        is_set = is_set and not list(Path(found.path).glob("*.index.json"))  # the values are all there, as vLLM reads
        is_known = is_set or whole(made, found.path) or not verify_version(found, level="quick", remember=False).ok
        return "" if is_known else f"{taken} cannot be loaded, nor can {found.path}"
    key = str(versions[str(taken)].key) if str(taken) in versions else taken.name
    said = any(key in warning.replace(str(made.root), "") for warning in reporter.warnings)
    return "" if said else f"it is {found.path}, the job takes {taken}: {reporter.warnings}"


@pytest.mark.parametrize(
    "seeds",
    [
        range(24),
        pytest.param(range(24, 84), marks=pytest.mark.slow),
        pytest.param(range(1000, 2500), marks=pytest.mark.hours),
    ],
    ids=["few", "some", "many"],
)
def test_loaders_and_the_product_agree(seeds: range, tmp_path: Path, formats: Mapping[str, Template]) -> None:
    """No plan holds what its loader loads, and `@latest` is what the loader takes, or a message says why not."""
    taken_by: set[str] = set()
    for seed in seeds:
        made = make(Random(seed), tmp_path / f"run{seed}x", formats)
        taken = RULES[made.loader](made.root)
        versions = {version.path: version for version in list_versions(made.root, now=NOW).versions}
        wrong = [*wrong_deletions(made, taken, versions), wrong_latest(made, taken, versions)]
        if seed % 2:  # what verify knows of them deletes no more
            for version in versions.values():
                verify_version(version, level="quick")
            wrong += wrong_deletions(made, taken, versions)
        assert not any(wrong), (seed, made.loader, [*filter(None, wrong)])
        taken_by |= {made.loader} if taken is not None else set()
    assert taken_by == set(SPELLINGS)


def test_a_link_that_stays_keeps_what_it_leads_to(tmp_path: Path, formats: Mapping[str, Template]) -> None:
    """An incomplete version that is named needs the one that it is a link to, which `--incomplete` would delete."""
    for number in (10, 30):
        (tmp_path / f"run/iter_{number:07d}").mkdir(parents=True)
        for name, data in formats["dcp"].files.items():
            (tmp_path / f"run/iter_{number:07d}/{name}").write_bytes(data)
    run = tmp_path / "run"
    (run / "iter_0000010/__1_0.distcp").unlink()
    (run / "iter_0000020").symlink_to("iter_0000010")
    (run / "latest_checkpointed_iteration.txt").write_text("20")
    plan = plan_prune([run], POLICIES[0], guards=Guards(incomplete=True), now=NOW)
    assert plan.deletions == ()
    reasons = {entry.version: entry.reasons for entry in plan.entries}
    assert f"needed by {run}@20: iter_0000020" in reasons[10]


def step_in(place: Path, template: Template) -> Path:
    """Make a sound step in one format, long ago."""
    place.mkdir(parents=True)
    for name, data in template.files.items():
        (place / name).write_bytes(data)
        os.utime(place / name, (1e9, 1e9))
    os.utime(place, (1e9, 1e9))
    return place


def test_a_set_that_is_torn_next_to_the_file_that_is_loaded(tmp_path: Path, formats: Mapping[str, Template]) -> None:
    """A job loads `model.safetensors`: a set next to it that lacks a file, or has a torn index, tears nothing."""
    for number, name in ((10, "model-00002-of-00003.safetensors"), (20, "model.safetensors.index.json")):
        step = step_in(tmp_path / f"run/checkpoint-{number}", formats["both"])
        if name.endswith(".json"):
            (step / name).write_text('{"weight_map"')
        else:
            (step / name).unlink()
        (version,) = [v for v in list_versions(tmp_path / "run", now=NOW).versions if v.version == number]
        assert (version.state, version.shards[0].path.rpartition("/")[2]) == ("complete", "model.safetensors")
        result = verify_version(version, level="deep")
        assert (result.ok, [finding.code for finding in result.findings]) == (True, ["passed-over"])
    assert not plan_prune([tmp_path / "run"], POLICIES[0], guards=Guards(incomplete=True), now=NOW).deletions


def test_a_set_that_lost_its_index_does_not_count(tmp_path: Path, formats: Mapping[str, Template]) -> None:
    """The index is written last, and nothing is loaded without it, so the version before stays."""
    run = tmp_path / "run"
    for number in (10, 20, 30):
        step_in(run / f"step-{number}", formats["set"])
    (run / "step-30/model.safetensors.index.json").unlink()
    assert list_versions(run, now=NOW).versions[-1].doubts == ("it lacks model.safetensors.index.json of version 20",)
    assert [entry.version for entry in plan_prune([run], POLICIES[0], now=NOW).deletions] == [10]


@pytest.mark.parametrize("guest", ["._model.safetensors", ".nfs0001.distcp", ".model.safetensors"])
def test_a_hidden_file_hides_no_version(tmp_path: Path, formats: Mapping[str, Template], guest: str) -> None:
    """A hidden file of a host in a location does not make the location one checkpoint."""
    step_in(tmp_path / "run/hpc_ckpt_3.ckpt", formats["dcp"])
    (tmp_path / "run" / guest).write_bytes(b"host")
    assert [version.key for version in list_versions(tmp_path / "run", now=NOW).versions] == ["hpc_ckpt_3.ckpt"]
