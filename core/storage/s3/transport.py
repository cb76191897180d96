"""Requests by botocore's client, in threads that their callers need not wait for.

botocore signs, resolves endpoints and regions, keeps the connections, refreshes the credentials, and takes proxies and
certificates from the environment. A blocked socket cannot be interrupted by another thread. So threads of this module
wait for the network. A caller that a signal stops leaves its request, and the result is dropped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from queue import Empty, Queue  # SimpleQueue may wait beyond its timeout when another thread was faster
from typing import Any, Final
from weakref import WeakSet

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import answered, awaited
from edl_ckpt.core.storage.s3.session import Clients

IDLE_SECONDS: Final = 10.0
"""A thread that waits longer for the next request ends: a program may open many locations, one after the other."""
_SLICE_BYTES: Final = 1 << 20
"""Bytes that are received at a time."""


_TRANSPORTS: Final[WeakSet[Transport]] = WeakSet()


class DamagedError(Exception):
    """A damaged answer: too short, too long, or with another checksum than the data. A retry may succeed."""


class Errand:
    """A request on its way. `dropped` is set when its caller has left."""

    def __init__(self, function: Callable[[Errand], dict[str, Any]]) -> None:
        self.function = function
        self.dropped = False
        self.future: Future[dict[str, Any]] = Future()

    def run(self) -> None:
        """Make the request, and keep its result or its error for the caller."""
        try:
            self.future.set_result(self.function(self))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self.future.set_exception(error)


class Transport:
    """A client of one process for one set of options. It is safe in several threads, and is made anew after a fork.

    `make` makes the clients of botocore; its errors are those of the first request.
    """

    def __init__(self, make: Callable[[], Clients]) -> None:
        self._make = make
        self.renew()
        _TRANSPORTS.add(self)

    def renew(self) -> None:
        """Begin with neither clients nor threads, as a forked process must: those of its parent are not its own."""
        self._clients: Clients | None = None
        self._making = threading.Lock()
        self._errands: Queue[Errand] = Queue()
        self._lock = threading.Lock()
        self._idle = 0

    @property
    def clients(self) -> Clients:
        """Return the clients of botocore."""
        with self._making:
            if self._clients is None:
                self._clients = self._make()
            return self._clients

    def call(self, method: str, parameters: Mapping[str, Any], body: memoryview | int | None = None) -> dict[str, Any]:
        """Make one request of S3's interface and return its answer, with its body: bytes, or received into a buffer.

        A body that does not fill its buffer, or is not of its size, is a DamagedError. Raises LockedError when a
        signal stops the command meanwhile.
        """

        def make(errand: Errand) -> dict[str, Any]:
            answer: dict[str, Any] = getattr(self.clients.of(method), method)(**parameters)
            return _received(answer, body, errand)

        errand = Errand(make)
        self._hand_over(errand)
        try:
            answer = awaited(errand.future)
        finally:
            errand.dropped = True
        answered()
        return answer

    def _hand_over(self, errand: Errand) -> None:
        with WHOLE, self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle = 0
                threading.Thread(target=self._work, args=(self._errands,), name="edl-ckpt-s3", daemon=True).start()
            self._errands.put(errand)

    def _work(self, errands: Queue[Errand]) -> None:
        while True:
            try:
                errand = errands.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if not self._idle:  # an errand is on its way to this thread
                        continue
                    self._idle -= 1
                return
            if not errand.dropped:
                errand.run()
            del errand  # or the last buffer stays until the next request
            with self._lock:
                self._idle += 1


def _received(answer: dict[str, Any], wanted: memoryview | int | None, errand: Errand) -> dict[str, Any]:
    """Return an answer with its body, all of it; DamagedError when it is not of the size that it must have."""
    if "Body" in answer:
        size = len(wanted) if isinstance(wanted, memoryview) else wanted
        with closing(answer["Body"]) as body:
            answer["Body"] = _receive(body, wanted, errand) if isinstance(wanted, memoryview) else body.read()
            arrived = len(answer["Body"]) + len(body.read(1))
        if size not in {None, arrived}:
            raise DamagedError(f"{arrived} bytes arrived in place of {size}")
    return answer


def _receive(body: Any, buffer: memoryview, errand: Errand) -> memoryview:
    """Receive a body into a buffer and return the part of it that was filled."""
    filled = 0
    while filled < len(buffer):
        if errand.dropped:  # the connection is closed, and the rest is never sent
            raise LockedError("stopped")
        count = body.readinto(buffer[filled : filled + _SLICE_BYTES])
        if not count:
            break
        filled += count
    return buffer[:filled]


def _renew_all() -> None:
    for transport in _TRANSPORTS:
        transport.renew()


os.register_at_fork(after_in_child=_renew_all)
