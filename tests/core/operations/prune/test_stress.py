"""Savers, pruners and readers at work on one directory at the same time, each a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from crowd import EVERY, KEEP, PS_NUM, prune_often, read_often, save_shards, work
from edl_ckpt.core import list_versions, verify_version
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.retention import EverySteps, Latest, Policy
from edl_ckpt.core.state.annotate import write_tag


@pytest.mark.parametrize("many", [pytest.param(35, id="short"), pytest.param(1000, id="long", marks=pytest.mark.hours)])
def test_savers_pruners_readers(tmp_path: Path, many: int) -> None:
    """8 servers save shard by shard, 2 processes prune, 2 read: no version that a rule keeps is lost, and none fails.

    Kept are the latest three, the first of every ten, and a tagged one; all that is older and complete is deleted.
    """
    location = str(tmp_path / "run")
    os.makedirs(location)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crowd"])  # imported once, and not by each of them
    queue, saved = context.Queue(), context.Event()
    jobs: list[tuple[Any, tuple[Any, ...]]] = [(save_shards, (location, i, many)) for i in range(PS_NUM)]
    jobs += [(prune_often, (location, saved))] * 2 + [(read_often, (location, saved))] * 2
    barrier = context.Barrier(len(jobs) + 1)
    children = [context.Process(target=work, args=(function, args, barrier, queue)) for function, args in jobs]
    for child in children:
        child.start()
    barrier.wait(60)
    tagged = 0
    while not tagged and any(child.is_alive() for child in children[:PS_NUM]):
        with location_lock(location, "tag", may_be_empty=True, wait_seconds=30) as locked:
            complete = [v for v in list_versions(location).versions if v.state is State.COMPLETE and v.version % EVERY]
            if complete:
                write_tag(locked.store, complete[-1], "keep")
                tagged = complete[-1].version
    for child in children[:PS_NUM]:
        child.join(300)
    saved.set()
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    errors = [queue.get() for _ in range(queue.qsize())] if not queue.empty() else []
    assert errors == []
    assert tagged
    before = {v.version for v in list_versions(location).versions if v.state is State.COMPLETE}
    newest = max(before)
    assert newest == many
    expected = {1, tagged, *range(EVERY, newest + 1, EVERY), *range(newest - KEEP + 1, newest + 1)}
    assert expected <= before
    prune([location], Policy((Latest(KEEP), EverySteps(EVERY))), now=time.time() + 60)
    versions = list_versions(location).versions
    assert {v.version for v in versions if v.state is State.COMPLETE} == expected
    assert all(v.version > newest for v in versions if v.state is not State.COMPLETE)
    assert all(verify_version(v, level="deep").ok for v in versions if v.state is State.COMPLETE)
    assert elasticdl_rules.latest_valid(tmp_path / "run") == f"version-{newest}"
