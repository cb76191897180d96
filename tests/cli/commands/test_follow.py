"""wait and watch as scripts and people meet them: processes, signals, commands for events, a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import termios
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edl_ckpt.cli.commands.watch_ import variables
from edl_ckpt.cli.options.program import build
from edl_ckpt.core import EventKind, WatchEvent, list_versions
from following import Job, saving, shard_data
from program import PROGRAM, document, edl
from waiting import wait_until

SECONDS = 300.0


@contextmanager
def running(*arguments: str | Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the program beside the test; it is killed at the end if it still runs."""
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that has saved a version, and another one in part."""
    job = Job(tmp_path / "run")
    job.save(10)
    job.shard(20, 0)
    return job


def test_beside_a_job(tmp_path: Path) -> None:
    """While a process saves in place, each version is complete once, and the one that is waited for ends the wait.

    A version that is being written when the process is killed never counts.
    """
    run = tmp_path / "run"
    with running("watch", run, "--interval", "0.02s") as watch, running("wait", run, "--version-ge", "3") as wait:
        assert watch.stdout is not None
        assert watch.stderr is not None
        watch.stderr.readline()  # the location does not exist: it looks
        with saving(run, 1, 2, 3) as saver:
            assert saver.wait(SECONDS) == 0
        assert (wait.communicate(timeout=SECONDS)[0], wait.returncode) == (f"{run}@3\n", 0)
        with saving(run, *range(4, 1000)) as saver:
            wait_until((run / "version-4").exists)
            saver.kill()
        Job(run).save(2000)
        events = []
        for line in watch.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "complete" and events[-1]["version"] == 2000:
                break
        watch.send_signal(signal.SIGINT)
        assert watch.wait(SECONDS) == 130
    counts = Counter(event["version"] for event in events if event["event"] == "complete")
    assert set(counts.values()) == {1}
    assert {1, 2, 3, 2000} <= set(counts)
    sizes = {v.version: [shard.size_bytes for shard in v.shards] for v in list_versions(run).versions}
    assert all(sizes[number] == [len(shard_data(number, i, 2)) for i in range(2)] for number in counts)
    assert {event["schema"] for event in events} == {"edl-ckpt/watch/1"}


def test_a_wait_in_a_script(job: Job) -> None:
    """The reference alone is on stdout; a wait without a version ends with 3 and says on stderr how and why."""
    done = edl("wait", job.run)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{job.run}@10\n", "")
    done = edl("wait", job.run, "--version-ge", "20", "--timeout", "0")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{job.run}: timed out: version 20: it has 1 of 2 shards\n"
    result = document("wait", job.run, "--version-ge", "20", "--stall-after", "0.1s", "--interval", "0.05s", code=3)
    assert (result["state"], result["ref"], result["version"]) == ("stalled", None, None)
    assert result["unfinished"] == [{"ref": f"{job.run}@20", "version": 20, "why": "it has 1 of 2 shards"}]
    result = document("wait", job.run, "--timeout", "none", "--stall-after", "0")
    assert (result["schema"], result["ref"], result["version"]) == ("edl-ckpt/wait/1", f"{job.run}@10", 10)
    assert (result["state"], result["waited_seconds"] >= 0) == ("complete", True)


def test_a_long_reference_is_one_line(tmp_path: Path) -> None:
    """A script gets a reference as it is, however long it is and whatever is in its name."""
    job = Job(tmp_path / ("a" * 200) / "b\x1b[31m c")
    job.save(10)
    assert edl("wait", job.run).stdout == f"{job.run}@10\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wait", "run@10"), "expected a location, not a version of it"),
        (("watch", "run/version-10"), "expected a location, not a version of it"),
        (("wait", "run", "--complete", "--best", "auc"), "--complete cannot be used with --best"),
        (("wait", "run", "--timeout", "soon"), "not a duration"),
        (("wait", "run", "--interval", "0"), "more than 0 seconds"),
        (("watch", "run", "--on", "complete,nothing"), "no event 'nothing'"),
        (("watch", "run", "--shell"), "--shell can only be used with --exec"),
        (("watch", "run", "--exec", "no-such-program x"), "no program 'no-such-program'"),
        (("watch", "run", "--exec", "'"), "No closing quotation"),
        (("watch", "run", "--exec", " "), "no command"),
    ],
)
def test_usage(job: Job, arguments: tuple[str, ...], message: str) -> None:
    """What would wait for ever, or fail at the first event, is refused at once."""
    done = edl(*arguments, cwd=job.run.parent)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_events_of_a_pipe(job: Job) -> None:
    """Each event is one line of JSON; --on chooses, --after begins with what is there."""
    done = edl("watch", job.run, "--after", "-1", "--timeout", "0", "--on", "complete", "--on", "shard-arrived")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(e["event"], e["version"], (e["shard"] or {}).get("ps_id")) for e in found] == [
        *(("shard-arrived", 10, 0), ("shard-arrived", 10, 1), ("complete", 10, None), ("shard-arrived", 20, 0)),
    ]
    assert found[2]["ref"] == f"{job.run}@10"
    assert found[2]["path"] == str(job.run / "version-10")
    assert edl("watch", job.run, "--timeout", "0").stdout == ""


def test_a_command_for_each_event(job: Job, tmp_path: Path) -> None:
    """The command is run without a shell, with the event in its environment and its output on stderr."""
    common = ("watch", job.run, "--after", "-1", "--timeout", "0", "--on", "complete")
    done = edl(*common, "--exec", f"echo $EDL_CKPT_REF ; touch {tmp_path}/x")
    assert done.stderr == f"$EDL_CKPT_REF ; touch {tmp_path}/x\n"
    assert len(done.stdout.splitlines()) == 1
    done = edl(*common, "--exec", 'echo "$EDL_CKPT_EVENT $EDL_CKPT_REF $EDL_CKPT_NUMBER"', "--shell")
    assert done.stderr == f"complete {job.run}@10 10\n"
    assert edl(*common, EDL_CKPT_EXEC="false", EDL_CKPT_SHELL="1").returncode == 0  # only the command line may


def test_a_command_that_fails(job: Job) -> None:
    """A failure is a warning, the watch goes on, and says so in the end."""
    done = edl("watch", job.run, "--after", "-1", "--timeout", "0", "--exec", "false")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 6
    assert f"warning: complete {job.run}@10: false ended with exit code 1" in done.stderr
    assert "error: 6 of 6 commands failed" in done.stderr


def test_no_option_has_the_name_of_a_variable(job: Job) -> None:
    """A command of ours that runs for an event takes no option from the variables of the event."""
    (version, _) = list_versions(job.run).versions
    ours = set(variables(WatchEvent(EventKind.COMPLETE, version, 0.0)))
    assert len(ours) == 5
    pending: list[Any] = [build_commands()]
    found: set[str] = set()
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        for parameter in command.params:
            names = parameter.envvar or ()
            found |= {names} if isinstance(names, str) else set(names)
    assert "EDL_CKPT_TIMEOUT" in found
    assert not ours & found


def build_commands() -> Any:
    """Return the commands of the program with their options."""
    import typer

    return typer.main.get_command(build())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_too(job: Job, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """When the watch is ended, the command that is running is, with all that it has started."""
    note = tmp_path / "pid"
    there = shlex.quote(str(note))
    command = f"(trap '' TERM; exec sleep 600) & echo $$ > {there}.new; mv {there}.new {there}; wait"
    with running("watch", job.run, "--after", "-1", "--exec", command, "--shell") as watch:
        wait_until(note.exists, seconds=SECONDS)
        group = int(note.read_text())
        assert os.getpgid(group) == group
        watch.send_signal(number)
        assert watch.wait(SECONDS) == code
    wait_until(lambda: not alive(group), seconds=SECONDS)


def alive(group: int) -> bool:
    """Say whether a process of a group still runs; one that has ended and waits for its parent does not."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


class Terminal:
    """The program on a pseudo-terminal whose size may change."""

    def __init__(self, *arguments: str | Path, columns: int = 100) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {**os.environ, "TERM": "xterm-256color", "XDG_CONFIG_HOME": "/nowhere"}
            env.pop("COLUMNS", None)
            os.execve(PROGRAM[0], [*PROGRAM, *map(str, arguments)], env)
        self.got = b""
        self.resize(24, columns)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bool:
        """Read what the program has written; False at its end."""
        if select.select([self.fd], [], [], 0.05)[0]:
            try:
                block = os.read(self.fd, 65536)
            except OSError:  # Linux's word for the end
                return False
            self.got += block
            return bool(block)
        return True

    def await_screen(self, *texts: str, without: str = "\0") -> None:
        """Wait until the last drawing of the screen has some texts, and lacks another one."""
        drawn, is_alive, deadline = "", True, time.monotonic() + SECONDS
        while not all(text in drawn for text in texts) or without in drawn:
            assert is_alive, f"it has ended: {drawn}"
            assert time.monotonic() < deadline, f"the screen still is: {drawn}"
            is_alive = self.read()
            drawn = self.got.rpartition(b"\x1b[H")[2].decode("utf-8", "replace")

    def end(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        os.write(self.fd, b"\x03")
        while self.read():
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_live_view(job: Job) -> None:
    """Shards fill in, a narrow window gets fewer columns and no broken line, and Ctrl-C gives the terminal back."""
    terminal = Terminal("watch", job.run, "--interval", "0.1s")
    terminal.await_screen("1/2", "█████ ")
    job.shard(30, 1)
    (job.run / "version-30" / "x\x1b[31m\x07").touch()
    terminal.await_screen("30")
    terminal.resize(16, 40)
    terminal.await_screen(" 10     2/2", "30     1/2", without="█")
    assert terminal.end() == 130
    got = terminal.got
    assert got.count(b"\x1b[?25l") == got.count(b"\x1b[?25h") == 1
    assert got.count(b"\x1b[?1049h") == got.count(b"\x1b[?1049l") == 1
    assert b"\x07" not in got
    assert "30     1/2" in got.rpartition(b"\x1b[?1049l")[2].decode()  # what it was at the end stays on the screen


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_events_on_a_terminal_with_commands(job: Job) -> None:
    """With commands for events, a terminal gets lines: the output of the commands would spoil a view."""
    terminal = Terminal("watch", job.run, "--after", "-1", "--timeout", "0", "--on", "complete", "--exec", "echo hello")
    while terminal.read():
        pass
    os.close(terminal.fd)
    assert os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]) == 0
    assert b"complete" in terminal.got
    assert b"hello" in terminal.got
    assert b"\x1b[?1049h" not in terminal.got
