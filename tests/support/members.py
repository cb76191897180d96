"""Members of an elastic job as real processes, and the small deterministic model that they train.

Each member is forked from the test's process, which has imported everything. A member writes a line to its own file for
each thing that a test waits for, and its last state at the end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.training.elastic import LocalCoordinator, State, sync_from_rank_0
from forked import fork
from waiting import wait_until

SECONDS = 300.0
"""How long a test waits for what must come: the machine may be busy."""


class Model(State):
    """Weights, float64 [8], and the number of steps made; all members have the same after each step."""

    def __init__(self, coordinator: LocalCoordinator, *, steps: int, save_every: int = 0) -> None:
        self.coordinator = coordinator
        self.weights = np.zeros(8)
        self.step = 0
        self.steps = steps
        self.save_every = save_every

    def snapshot(self) -> Any:
        """Return what changes."""
        return {"weights": self.weights.copy(), "step": self.step}

    def apply(self, snapshot: Any) -> None:
        """Bring it back."""
        self.weights, self.step = snapshot["weights"], snapshot["step"]

    def sync(self) -> None:
        """Agree with the others."""
        sync_from_rank_0(self, self.coordinator)

    def should_save_checkpoint(self) -> bool:
        """Say whether a checkpoint is due."""
        return self.save_every > 0 and self.step % self.save_every == 0


def gradient_of(weights: npt.NDArray[Any], step: int) -> npt.NDArray[Any]:
    """Return whole numbers, float64 [8], so that no order of additions and no number of members changes the result."""
    gradient: npt.NDArray[Any] = (np.arange(8) * 7 + step * 3 - weights) % 11
    return gradient


def make_step(model: Model) -> None:
    """Make a step whose gradient is the mean over the members, so that their number does not change the result."""
    if model.step == model.steps:
        raise StopIteration
    model.weights[0] += 1.0  # a step that fails later leaves a state that is half changed
    gradient = gradient_of(model.weights, model.step)
    model.weights += model.coordinator.all_reduce(gradient) / model.coordinator.world_size
    model.step += 1


def trained(steps: int) -> npt.NDArray[Any]:
    """Return the weights after so many steps of one member that nothing disturbs."""
    weights = np.zeros(8)
    for step in range(steps):
        weights[0] += 1.0
        weights += gradient_of(weights, step)
    return weights


class Members:
    """Starts members, kills them, and waits for them; a context manager, which leaves none behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._running):
            self.kill(pid)

    def start(self, name: str, action: Callable[[Callable[[str], None]], None]) -> int:
        """Fork a member that runs an action, and return its process id; the action gets a function to note a line."""

        def act() -> None:
            with open(self.directory / f"{name}.log", "a", encoding="utf-8", buffering=1) as log:
                action(lambda line: print(line, file=log))

        pid = fork(act)
        self._running.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End a member as `kill -9` does."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._running.discard(pid)

    def wait(self, *pids: int, seconds: float = SECONDS) -> list[int]:
        """Wait until these members have ended by themselves, and return their exit codes."""
        codes: dict[int, int] = {}

        def ended() -> bool:
            for pid in set(pids) - set(codes):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                    self._running.discard(pid)
            return len(codes) == len(pids)

        wait_until(ended, seconds=seconds)
        return [codes[pid] for pid in pids]

    def lines(self, name: str) -> list[str]:
        """Return what a member has noted so far."""
        path = self.directory / f"{name}.log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def wait_for_line(self, name: str, line: str) -> None:
        """Wait until a member has noted a line."""
        wait_until(lambda: line in self.lines(name), seconds=SECONDS)
