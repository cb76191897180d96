"""A coordinator for processes of one machine: they meet through a directory, and talk on 127.0.0.1. No threads.

The oldest living member leads: it has rank 0, and its socket stays open from round to round. A member that joins knocks
there, so the leader sees it after the next step. A killed process loses its connections and its lock at once; a stopped
one is lost after `timeout_seconds`.

The sockets of a round have the form of a star, with rank 0 in the middle. Each message is a frame: one byte for its
direction, the number of the exchange, the size, and the bytes. A closed connection is a lost member. Rank 0 then closes
all the others, so that everybody notices.

A directory on one machine in which the members of a job find each other.

Each member has a file `member-N` and holds the kernel's lock on it, which ends with the process, however it ends. N
counts up and is never used again, so the lowest living number is the member that has been there longest: the leader.
It writes its port and a secret into `leader.json`. The file `done` ends the run.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import logging
import os
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Array, as_array
from edl_ckpt.core.base.errors import NotFoundError, UnavailableError, UsageError
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.training.elastic.loop import Coordinator, MembershipError, StopException

_PREFIX: Final = "member-"
_COUNTER: Final = "counter"
_LEADER: Final = "leader.json"
_DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class Leader:
    """Where the leader listens on 127.0.0.1, and the secret that a member of the job must know."""

    number: int
    port: int
    secret: str
    """In hex."""


class Registry:
    """One member's view of the directory; the directory and its files are for this user alone."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.number = 0
        """The number of this member, 0 before it has joined."""
        self._fd = -1

    def join(self) -> None:
        """Become a member, if this is none yet."""
        if self.number:
            return
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        new = os.path.join(self.directory, f"new-{secrets.token_hex(8)}")
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # before it has its name, so that no process takes it for dead
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with open(os.open(os.path.join(self.directory, _COUNTER), flags, 0o600), "rb+", buffering=0) as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            self.number = int(counter.read() or b"0") + 1
            os.rename(new, self._member(self.number))
            os.pwrite(counter.fileno(), str(self.number).encode("ascii"), 0)

    def leave(self) -> None:
        """Be no member any more."""
        if self.number:
            with suppress(OSError):
                os.unlink(self._member(self.number))
            self.forget()

    def forget(self) -> None:
        """Close the lock's file; what a forked child does, which has a copy of it and is no member."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.number = -1, 0

    def alive(self) -> list[int]:
        """Return the numbers of all living members, in order, and remove the files of the others.

        Raises NotFoundError when this member's own file was removed.
        """
        with storage_errors(self.directory):
            names = {name.removeprefix(_PREFIX) for name in os.listdir(self.directory) if name.startswith(_PREFIX)}
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
        if self.number and self.number not in numbers:
            raise NotFoundError("files of the members were removed", path=self.directory)
        living = [number for number in numbers if self._is_alive(number)]
        for number in set(numbers) - set(living):  # none of them comes back, because numbers are not used again
            with suppress(OSError):
                os.unlink(self._member(number))
        return living

    def leader(self) -> Leader | None:
        """Return what the last leader wrote, None when there was none."""
        try:
            with open(os.path.join(self.directory, _LEADER), encoding="ascii") as file:
                return Leader(**json.load(file))
        except FileNotFoundError:
            return None

    def announce(self, leader: Leader) -> None:
        """Write where this member listens."""
        new = os.path.join(self.directory, f"new-{secrets.token_hex(8)}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(asdict(leader), file)
        os.rename(new, os.path.join(self.directory, _LEADER))

    def finish(self) -> None:
        """End the run for everybody."""
        os.close(os.open(os.path.join(self.directory, _DONE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def is_finished(self) -> bool:
        """Say whether some member has ended the run."""
        return os.path.exists(os.path.join(self.directory, _DONE))

    def _member(self, number: int) -> str:
        return os.path.join(self.directory, f"{_PREFIX}{number}")

    def _is_alive(self, number: int) -> bool:
        """Say whether a member holds its lock. The test takes a shared one: two at once do not disturb each other."""
        if number == self.number:
            return True
        try:
            with open(self._member(number), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False


_HOST: Final = "127.0.0.1"
_SECRET_BYTES: Final = 32
_HELLO: Final = struct.Struct(f"<{_SECRET_BYTES}sQ")
"""From a member to the leader: the secret, and the member's number."""
_WELCOME: Final = struct.Struct("<QQ")
"""The answer: rank and world size."""
_FRAME: Final = struct.Struct("<cQQ")
_UP: Final = b"u"
_DOWN: Final = b"d"
_HELLO_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02
_BACKLOG: Final = 128
_LOG: Final = logging.getLogger("edl_ckpt")


class Round:
    """One round. Rank 0 has the sockets of ranks 1, 2, ... in order; every other rank has the socket of rank 0."""

    def __init__(self, rank: int, sockets: Sequence[socket.socket], *, timeout_seconds: float) -> None:
        self._rank = rank
        self._sockets = list(sockets)
        self._exchange = 0
        self._closed = False
        for each in self._sockets:
            each.settimeout(timeout_seconds)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of every rank, in order, on rank 0, and nothing on the others; returns at once there."""
        with self._exchanging():
            if self._rank == 0:
                return [data, *(self._receive(each, _UP) for each in self._sockets)]
            self._send(_UP, data)
        return []

    def share(self, data: bytes = b"") -> bytes:
        """Return the data of rank 0 on every rank."""
        with self._exchanging():
            if self._rank != 0:
                return self._receive(self._sockets[0], _DOWN)
            self._send(_DOWN, data)
        return data

    def close(self) -> None:
        """Leave the round; the others notice when they next wait for a message."""
        self._closed = True
        for each in self._sockets:
            each.close()

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Count an exchange; any failure ends the round for this member, and so for all."""
        if self._closed:
            raise MembershipError("this member has left the round")
        self._exchange += 1
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                fault = "gave no answer in time" if isinstance(error, TimeoutError) else f"was lost: {error}"
                raise MembershipError(f"a member {fault}") from None
            raise

    def _send(self, direction: bytes, data: bytes) -> None:
        frame = _FRAME.pack(direction, self._exchange, len(data))
        for each in self._sockets:
            each.sendall(frame)
            each.sendall(data)

    def _receive(self, source: socket.socket, expected: bytes) -> bytes:
        direction, exchange, size = _FRAME.unpack(_received(source, _FRAME.size))
        if (direction, exchange) != (expected, self._exchange):
            raise UsageError("the members do not call the same methods of their coordinators in the same order")
        return _received(source, size)


@dataclass(eq=False, repr=False)
class LocalCoordinator(Coordinator):
    """A member of a job on this machine; use it as a context manager, which leaves the job at the end.

    All members name the same `directory`, which belongs to one run: when a member has no more data, the run has ended
    for good. Once there are `min_members`, a round waits `last_call_seconds` for more, TorchElastic's last call, and
    `straggler_seconds` for members that live and are not there yet. It begins at once with `max_members`; members that
    are left over wait. `rendezvous_seconds` is the longest wait for a round, `timeout_seconds` the longest wait for an
    answer within one, so it must be longer than a step and a save.
    """

    directory: str | os.PathLike[str]
    _: KW_ONLY
    min_members: int = 1
    max_members: int | None = None
    rendezvous_seconds: float = 600.0
    last_call_seconds: float = 0.0
    straggler_seconds: float = 30.0
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.min_members < 1 or (self.max_members is not None and self.max_members < self.min_members):
            known = f"{self.min_members} and {self.max_members}"
            raise UsageError(f"expected 1 <= min_members <= max_members, got {known}")
        if not (self.last_call_seconds >= 0 and self.straggler_seconds >= 0):
            raise UsageError("last_call_seconds and straggler_seconds must be at least 0")
        self.rank = self.world_size = 0
        self._registry = Registry(os.fspath(self.directory))
        self._group: Round | None = None
        self._listener: socket.socket | None = None
        self._secret = b""
        self._waiting: dict[int, socket.socket] = {}
        """On the leader: members that knocked and are in no round yet, by number."""
        self._stopped = False
        _OPEN.add(self)

    def __repr__(self) -> str:
        return f"<LocalCoordinator {self._registry.directory}, rank {self.rank} of {self.world_size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rendezvous_barrier(self) -> None:
        """Meet the others; see `Coordinator`. Raises UnavailableError when too few come within `rendezvous_seconds`."""
        self._leave_round()
        deadline = time.monotonic() + self.rendezvous_seconds
        while not self.should_stop_training():
            self._registry.join()
            oldest = self._registry.alive()[0]
            if self._lead(deadline) if oldest == self._registry.number else self._follow(oldest, deadline):
                return
            self._check_time(deadline)
            time.sleep(_LOOK_SECONDS)
        raise StopException

    def barrier(self) -> None:
        """Wait until every member is here."""
        self._round.gather(b"")
        self._round.share()

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """Return the data of one rank on all."""
        if not 0 <= root < self.world_size:
            raise UsageError(f"no rank {root} in a round of {self.world_size}")
        if root:
            found = self._round.gather(data if root == self.rank else b"")
            data = found[root] if found else b""
        return self._round.share(data)

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the data of every rank on all, in the order of ranks."""
        found = self._round.gather(data)
        sizes = np.frombuffer(self._round.share(np.array([len(d) for d in found], "<i8").tobytes()), "<i8")
        whole = self._round.share(b"".join(found))
        ends = np.cumsum(sizes).tolist()
        return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def all_reduce(self, array: Array) -> npt.NDArray[Any]:
        """Return the sum of the arrays of all members, added in the order of ranks; shapes and dtypes must be equal."""
        mine = np.ascontiguousarray(as_array(array))
        found = self._round.gather(mine.tobytes())
        if any(len(data) != mine.nbytes for data in found):
            raise UsageError("the members add arrays of different sizes")
        total = mine.copy() if found else mine
        for data in found[1:]:
            total += np.frombuffer(data, mine.dtype).reshape(mine.shape)
        summed = self._round.share(total.tobytes() if found else b"")
        return np.frombuffer(summed, mine.dtype).reshape(np.shape(as_array(array))).copy()

    def should_rendezvous(self, state: object) -> bool:  # noqa: ARG002 - the interface
        """Wait for all members; True on all when a process knocked and there is room."""
        self._round.gather(b"")
        room = self.max_members is None or self.world_size < self.max_members
        return self._round.share(b"again" if self.rank == 0 and room and self._knocks() else b"") != b""

    def should_stop_training(self) -> bool:
        """Return True when a member has ended the run."""
        if not self._stopped and self._registry.is_finished():
            self._stopped = True
            if self.world_size == 0:
                _LOG.warning("%s: this run has ended; a new run needs another directory", self._registry.directory)
        return self._stopped

    def signal_training_done(self) -> None:
        """End the run for all, and leave it."""
        self._registry.finish()
        self.close()

    def on_error(self, error: Exception) -> None:
        """Write the error to the log `edl_ckpt`, and leave the round, so that the others notice."""
        level = logging.INFO if isinstance(error, MembershipError) else logging.WARNING
        _LOG.log(level, "rank %d of %d: %s: %s", self.rank, self.world_size, type(error).__name__, error)
        self._leave_round()

    def close(self) -> None:
        """Leave the job; a coordinator can be used again afterwards, as a new member."""
        self._close_sockets()
        self._registry.leave()

    @property
    def _round(self) -> Round:
        if self._group is None:
            raise MembershipError("this member is in no round")
        return self._group

    def _leave_round(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _close_sockets(self) -> None:
        self._leave_round()
        for each in self._waiting.values():
            each.close()
        self._waiting.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _check_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"no round began within {self.rendezvous_seconds:g} s; it needs {self.min_members} living members and a"
                f" leader that answers, and {len(self._registry.alive())} live",
                path=self._registry.directory,
            )

    def _follow(self, oldest: int, deadline: float) -> bool:
        """Knock at the leader and wait for a round; False when it is not there, or not there any more."""
        leader = self._registry.leader()
        if leader is None or leader.number != oldest:
            return False  # it has not noticed yet that it leads
        peer = socket.socket()
        try:
            peer.settimeout(_HELLO_SECONDS)
            peer.connect((_HOST, leader.port))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.sendall(_HELLO.pack(bytes.fromhex(leader.secret), self._registry.number))
            peer.settimeout(max(deadline - time.monotonic(), _LOOK_SECONDS))
            self.rank, self.world_size = _WELCOME.unpack(_received(peer, _WELCOME.size))
        except OSError:
            peer.close()
            return False
        self._group = Round(self.rank, [peer], timeout_seconds=self.timeout_seconds)
        return True

    def _lead(self, deadline: float) -> bool:
        """Collect the members of a round and welcome them; False when one was lost, or the run ended, meanwhile."""
        if self._listener is None:
            self._listener = socket.create_server((_HOST, 0), backlog=_BACKLOG)
            self._secret = secrets.token_bytes(_SECRET_BYTES)
            self._registry.announce(Leader(self._registry.number, self._listener.getsockname()[1], self._secret.hex()))
        enough_since = None
        while not self.should_stop_training():
            self._knocks(_LOOK_SECONDS)
            here = sorted(self._waiting)[: None if self.max_members is None else self.max_members - 1]
            size, now = len(here) + 1, time.monotonic()
            if size < self.min_members:
                enough_since = None
                self._check_time(deadline)
                continue
            enough_since = now if enough_since is None else enough_since
            seconds = self.last_call_seconds
            if not set(self._registry.alive()) <= {self._registry.number, *here}:
                seconds = max(seconds, self.straggler_seconds)
            if size == self.max_members or now >= min(enough_since + seconds, deadline):
                return self._welcome(here)
        return False

    def _welcome(self, here: list[int]) -> bool:
        peers = [self._waiting.pop(number) for number in here]
        group = Round(0, peers, timeout_seconds=self.timeout_seconds)
        try:
            for rank, peer in enumerate(peers, start=1):
                peer.sendall(_WELCOME.pack(rank, len(peers) + 1))
        except OSError:
            group.close()
            return False
        self.rank, self.world_size, self._group = 0, len(peers) + 1, group
        return True

    def _knocks(self, wait_seconds: float = 0.0) -> bool:
        """Accept new members, waiting so long for the first, drop those that have gone, and say whether any waits."""
        assert self._listener is not None  # noqa: S101 - only the leader asks
        self._listener.settimeout(wait_seconds)
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # none, or one that has gone already
                break
            if number := self._greet(peer):
                if number in self._waiting:
                    self._waiting[number].close()  # it gave up, and knocks again
                self._waiting[number] = peer
            self._listener.settimeout(0)
        for number in [number for number, each in self._waiting.items() if _is_closed(each)]:
            self._waiting.pop(number).close()
        return bool(self._waiting)

    def _greet(self, peer: socket.socket) -> int:
        """Return the number of a member that knocked; 0 for a stranger, whose connection is closed."""
        peer.settimeout(_HELLO_SECONDS)
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secret, number = _HELLO.unpack(_received(peer, _HELLO.size))
        except OSError:
            secret, number = b"", 0
        if not hmac.compare_digest(secret, self._secret):
            peer.close()
            return 0
        return int(number)


def _received(source: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes from a socket; ConnectionError when the other side has closed it."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = source.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        view = view[count:]
    return bytes(data)


def _is_closed(peer: socket.socket) -> bool:
    """Say whether a member that waits has gone: it sends nothing before it is welcomed."""
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


_OPEN: Final[weakref.WeakSet[LocalCoordinator]] = weakref.WeakSet()


def _forget_all() -> None:
    """Close what a forked child has got copies of: they would keep a killed parent alive for the others."""
    for each in list(_OPEN):
        each._close_sockets()  # noqa: SLF001 - of this module
        each._registry.forget()  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_all)
