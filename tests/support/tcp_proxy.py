"""A proxy on loopback that passes bytes on between a client and a server, until it is cut: the network between both."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class TcpProxy:
    """Listens on a free port, `address`, and connects each client to a server; after `cut` nothing passes."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.is_cut = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Return the address as Dask has it."""
        host, port = self._listener.getsockname()
        return f"tcp://{host}:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                with self._lock:
                    self._sockets += [near, far]
                    is_cut = self.is_cut
                if is_cut:
                    self.cut()
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End every connection, and take no new one."""
        with self._lock:
            self.is_cut = True
            sockets, self._sockets = self._sockets, []
        for each in (*sockets, self._listener):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
