"""Processes that save, prune and read one directory at the same time, until the savers have saved so many versions."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.synchronize import Event
from typing import Any

from edl_ckpt.core import list_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, LockedError, NotFoundError
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import EverySteps, Latest, Policy
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.proto import model_v4_pb2

PS_NUM = 8
EVERY = 10
KEEP = 3


def save_shards(location: str, ps_id: int, versions: int) -> None:
    """Save version after version as one server does: its own shard, in place, in two writes, without a flush."""
    chance = random.Random(ps_id)
    for version in range(1, versions + 1):
        model = model_v4_pb2.Model(version=version)
        model.embedding_table_infos.add(name="t", dim=1, initializer="uniform", dtype=1)
        data = model.SerializeToString()
        directory = os.path.join(location, ELASTICDL.version_dir(version))
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, ELASTICDL.shard_file(ps_id, PS_NUM)), "wb", buffering=0) as file:
            file.write(data[:3])
            time.sleep(chance.random() * 0.01)
            file.write(data[3:])
        time.sleep(chance.random() * 0.03)


def prune_often(location: str, saved: Event) -> None:
    """Prune again and again, as a job of cron does, into the trash at times, deleting orphans too."""
    chance = random.Random(os.getpid())
    policy = Policy((Latest(KEEP), EverySteps(EVERY)))
    guards = Guards(incomplete=True, grace_seconds=2.0)
    while not saved.is_set():
        prune([location], policy, guards=guards, trash=chance.random() < 0.2, wait_seconds=300)
        time.sleep(chance.random() * 0.02)


def read_often(location: str, saved: Event) -> None:
    """List and open the newest version, which may be gone or half written, but never anything else.

    A verification never fails: versions that are gone or half written have findings.
    """
    while not saved.is_set():
        for version in list_versions(location).versions[-2:]:
            verify_version(version, level="deep", workers=1)
        try:
            with open_checkpoint(f"{location}@latest") as checkpoint:
                assert checkpoint.infos["t"].dim == 1
        except (NotFoundError, IncompleteError, LockedError):
            continue
        except CorruptError:  # all files are there, and the last one is still being written
            continue


def work(function: Any, arguments: tuple[Any, ...], barrier: Any, queue: Any) -> None:
    """Begin when all are ready, and report any exception."""
    try:
        barrier.wait(300)
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to show it
        queue.put(f"{function.__name__}: {type(error).__name__}: {error}")
