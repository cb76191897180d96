"""Blocking requests to S3: by the thread that asks (`wire`), or in threads that their callers need not wait for.

botocore signs, resolves endpoints and regions, keeps the connections, refreshes the credentials, and takes proxies and
certificates from the environment. A blocked socket cannot be interrupted by another thread. So threads of this module
wait for the network, and whoever is stopped by a signal leaves its request behind: nobody looks at its result.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from queue import Empty, Queue  # SimpleQueue may wait beyond its timeout when another thread was faster
from typing import Any, Final
from weakref import WeakSet

from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.interruption import WHOLE
from edl_ckpt.core.parallel import answered, awaited, stop_requested
from edl_ckpt.core.storage.s3.direct import Direct
from edl_ckpt.core.storage.s3.wire import DamagedError, Reply, Wire

CONNECTIONS: Final = 256
"""Connections that stay open for the next request; no command has so many workers."""
IDLE_SECONDS: Final = 10.0
"""A thread that waits longer for the next request ends: a program may open many locations, one after the other."""
_SLICE_BYTES: Final = 1 << 20
"""Bytes that are received at a time."""


_TRANSPORTS: Final[WeakSet[Transport]] = WeakSet()


class Errand:
    """A request on its way. `dropped` is set when nobody waits for its result any more."""

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
    """The client of one process for one set of options. It is safe in several threads, and is made anew after a fork.

    `make` makes botocore's client; its errors are those of the first request.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.renew()
        _TRANSPORTS.add(self)

    def renew(self) -> None:
        """Begin with neither a client nor threads, as a forked process must: those of its parent are not its own."""
        self._client: tuple[Any, Direct] | None = None
        self._errands: Queue[Errand] = Queue()
        self._lock = threading.Lock()
        self._idle = 0

    def call(
        self, method: str, parameters: Mapping[str, Any], buffer: memoryview | None = None, *, size: int | None = None
    ) -> dict[str, Any]:
        """Make one request of S3's interface and return its answer, with its body: bytes, or received into `buffer`.

        A buffer must be filled to its end, and a body of another `size` is a DamagedError. Raises LockedError when a
        signal stops the command meanwhile.
        """
        answer = self._answer(method, parameters, buffer, size)
        answered()
        return answer

    def _answer(
        self, method: str, parameters: Mapping[str, Any], buffer: memoryview | None, size: int | None
    ) -> dict[str, Any]:
        direct = None if self._client is None else self._client[1]
        wire = None if direct is None else direct.wire(method, parameters)
        if direct is not None and wire is not None:
            answer = direct.answer(method, parameters, functools.partial(self._send, wire))
            if answer is not None:
                return _received(answer, buffer, size, stop_requested)

        def make(errand: Errand) -> dict[str, Any]:
            return _received(self._made(method, parameters), buffer, size, lambda: errand.dropped)

        return self._wait(Errand(make))

    def _send(self, wire: Wire, request: Any) -> Reply:
        """Send a request in this thread; only a new connection is waited for."""
        connection = wire.take()
        if connection.sock is None:
            self._wait(Errand(lambda _: wire.connect(connection)))
        return wire.send(connection, request)

    def _made(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request, directly where that is possible; a body is still to be received."""
        client, direct = self._connected()
        answer: dict[str, Any] | None = direct.answer(method, parameters)
        if answer is None:
            with direct.learning(method, parameters):
                answer = getattr(client, method)(**parameters)
        return answer

    def _connected(self) -> tuple[Any, Direct]:
        with self._lock:
            if self._client is None:
                client = self._make()
                self._client = client, Direct(client)
            return self._client

    def identity(self) -> tuple[str, str, str]:
        """Return the address of the service, its region, and where the credentials come from; '' without any.

        No secret is among them: the last is botocore's name of a source, such as `env` or `iam-role`.
        """
        client, _ = self._connected()
        signer = client._request_signer  # noqa: SLF001 - botocore has no other door to what a client signs with
        credentials = signer._credentials  # noqa: SLF001
        source = "" if credentials is None else str(credentials.method)
        return str(client.meta.endpoint_url), str(client.meta.region_name or ""), source

    def _wait(self, errand: Errand) -> dict[str, Any]:
        """Have a request made by a thread, and return its result; leave it when the user interrupts the command."""
        self._hand_over(errand)
        try:
            return awaited(errand.future)
        finally:
            errand.dropped = True

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


def _received(
    answer: dict[str, Any], buffer: memoryview | None, size: int | None, is_over: Callable[[], bool]
) -> dict[str, Any]:
    """Return an answer with its body, all of it; DamagedError when it is not of the size that it must have."""
    if "Body" in answer:
        with closing(answer["Body"]) as body:
            answer["Body"] = body.read() if buffer is None else _receive(body, buffer, is_over)
        wanted = size if buffer is None else len(buffer)
        if wanted not in {None, len(answer["Body"])}:
            raise DamagedError(f"{len(answer['Body'])} of {wanted} bytes arrived")
    return answer


def _receive(body: Any, buffer: memoryview, is_over: Callable[[], bool]) -> memoryview:
    """Receive a body into a buffer and return the part of it that was filled, one byte more for a body too long."""
    at = 0
    while at < len(buffer):
        if is_over():  # the connection is closed, and the rest is never sent
            raise LockedError("stopped")
        count = body.readinto(buffer[at : at + _SLICE_BYTES])
        if not count:
            break
        at += count
    if body.read(1):
        raise DamagedError(f"more than {len(buffer)} bytes arrived")
    return buffer[:at]


def _renew_all() -> None:
    for transport in _TRANSPORTS:
        transport.renew()


os.register_at_fork(after_in_child=_renew_all)
