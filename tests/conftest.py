"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from checkpoints import save_large
from edl_ckpt.cli.terminal.signals import ENDING
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.state.user_cache import remember_in
from examples import TIMES, UNCHECKED
from places import DATA, GOLDEN
from s3_fixtures import Bucket, Moto, fresh_bucket, make_moto
from samples import mark_slow

# Assertions in these modules are explained like those of tests.
pytest.register_assert_rewrite("elasticdl_rules", "program", "pruning", "scan_guard", "store_contract")

settings.register_profile(
    "suite",
    max_examples=10 * TIMES,
    deadline=None,
    suppress_health_check=UNCHECKED,
)
settings.load_profile("suite")

_FOREIGN = {"COLUMNS", "FORCE_COLOR", "LANGUAGE", "LINES", "NO_COLOR", "PAGER", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}

# Shells let what runs in the background ignore SIGINT, and nohup SIGHUP. What we start would ignore it too, rightly so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What a user or a machine has set is not for the tests: our settings, colours, windows, languages, proxies, accounts.
for _name in list(os.environ):
    is_ours = _name.startswith("EDL_CKPT_") and not _name.startswith(("EDL_CKPT_TEST_", "EDL_CKPT_BENCH_"))
    if is_ours or _name.startswith(("AWS_", "DASK_", "LC_")) or _name.lower().endswith("_proxy") or _name in _FOREIGN:
        del os.environ[_name]
os.environ.update(LANG="C.UTF-8", XDG_CONFIG_HOME=tempfile.mkdtemp(prefix="edl-ckpt-"))
_CACHES = count()
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# A cluster of tests is idle most of the time, and there is one in each test process. Dask's clock for its event loops,
# its profiler and its looks at the system would take a twelfth of a core all that time.
os.environ.update(
    DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL="1 minute",
    DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL="1 hour",
    DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL="500 ms",
    DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED="False",
)


# In a new clone all files are new, and what is new may still be written: versions that lack a file would be `writing`.
_LONG_AGO = 1_700_000_000
for _path in [path for path in DATA.rglob("*") if path.lstat().st_mtime > _LONG_AGO]:
    os.utime(_path, (_LONG_AGO, _LONG_AGO), follow_symlinks=False)

# What is collected stays to the end: until then each look for circles would go through more and more of it, in vain.
gc.disable()

# Hundreds of processes start here, and each would compile the program again: 0.12 s for each of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_xdist_auto_num_workers() -> int:
    """Start a process more than there are cores: many tests wait for a server, or for another process."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a sample of each slow test in the fast suite, before `-m` chooses."""
    mark_slow(items)


def pytest_collection_finish() -> None:
    """Keep the tests themselves out of every later look for circles, and in memory that forked processes share."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give each test, its fixtures and the processes that they start a cache of their own, which is made when used.

    What `verify` found for shared data in one test, the next one must not know: damaged versions are passed over. A
    command that ran in this process has named its directory for all that comes after it.
    """
    os.environ["XDG_CACHE_HOME"] = os.path.join(os.environ["XDG_CONFIG_HOME"], f"cache-{next(_CACHES)}")
    remember_in("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Put back what a command that ran in this process did to signals: a later test's would end the process at once.

    What a fixture has committed lies behind: else a signal in the test would wait for its end.
    """
    COMMIT.forget()
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGUSR1)}
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def expected() -> Any:
    """Return the content of all golden checkpoints."""
    return json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["kernel", "numpy"])
def either_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the compiled kernel, where there is one, and with numpy alone."""
    if request.param == "numpy":
        monkeypatch.setattr(bulk, "kernel", None)
    elif bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    return str(request.param)


@pytest.fixture(scope="session")
def moto() -> Moto:
    """Return one moto for all tests, or skip."""
    for name in ("s3fs", "moto.server"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[test]'")
    return make_moto()


@pytest.fixture
def s3(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Return a fresh bucket behind a fault proxy of its own."""
    with fresh_bucket(moto, monkeypatch) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of two shards, each of several parts of an upload, without a seal."""
    location = tmp_path_factory.mktemp("large") / "run"
    save_large(location)
    return location


@pytest.fixture
def multi(s3: Bucket) -> Bucket:
    """The golden checkpoint with three versions, on S3."""
    s3.upload(GOLDEN / "multi")
    return s3


@pytest.fixture(scope="session")
def processes() -> Iterator[Any]:
    """Return the client of a cluster of two processes on this machine."""
    pytest.importorskip("distributed")
    import dask

    from edl_ckpt.core.base.progress import SILENT
    from edl_ckpt.core.cluster import address
    from edl_ckpt.core.cluster.address import connected

    with ExitStack() as stack:
        # On a busy machine a killed worker may take longer to start again than Dask waits until it gives it up.
        stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}))
        with patient(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(address, "CONNECT_SECONDS", 120)
            patch.setattr(address, "WORKER_SECONDS", 120)
            client = stack.enter_context(connected("local:2", SILENT))
        yield client


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """Return the client of a cluster in this process, which starts in no time; what travels is packed there too."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with ExitStack() as stack:
        with patient():
            cluster = stack.enter_context(distributed.LocalCluster(**options))
        yield stack.enter_context(distributed.Client(cluster, set_as_default=False, name="edl-ckpt"))


@contextmanager
def patient() -> Iterator[None]:
    """Let Dask's workers start on a busy machine, and stay.

    They warn when it takes a second to make their directories, and are given up when nothing is heard of them for five
    minutes.
    """
    import dask

    with warnings.catch_warnings(), dask.config.set({"distributed.scheduler.worker-ttl": None}):
        warnings.filterwarnings("ignore", "Creating scratch directories")
        yield


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts of uploads be small, here and in moto, and tasks have a few of them."""
    from bucket_parts import with_parts

    with_parts(monkeypatch, 64 << 10)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.TASKS_A_THREAD", 1000)


@pytest.fixture
def tiny_stretches(small_parts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table of a few hundred KB have several stretches in each shard, and many parts."""
    from bucket_parts import with_parts

    with_parts(monkeypatch, 8 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.version_input.PIECE_BYTES", 4 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.version_input.SMALL_TABLE_BYTES", 32 << 10)
