"""A location as a value: a path or URL, and the options of its storage.

It is made once, by the command line or by the caller of the library, and travels with listings, versions and plans.
Options may hold credentials, so they never appear in `repr`, in a message or in a plan.

What a storage can do, as facts for people: each with a verdict, and what is slower or weaker without it.

The file system that a local path lies on: what Linux says of its mounts, and what is known of it without a write.

The kernel reports changes (inotify) that were made through itself. On a file system of a network it reports none that
another machine made.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import extra_hint, size
from edl_ckpt.core.storage.faults import storage_errors

_URL_SCHEMES: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "hdfs", "webhdfs", "http", "https", "ftp", "sftp", "file", "memory"}
)
"""The common schemes of fsspec: `Path("s3://bucket/run")` is 's3:/bucket/run'."""
_SECRET_NAME: Final = LatePattern(
    r"(?:^|[^a-z])(?:sig|sas|key|auth|code)(?:$|[^a-z])|signature|token|secret|passw|passphrase|credential|private"
    r"|api_?key|access_?key|account_?key|x-amz-|x-goog-|awsaccesskeyid|googleaccessid|authorization",
    re.IGNORECASE,
)
"""What the names of secrets in a query have in them."""
_BETWEEN: Final = LatePattern(r"[&;#?]")
_SHOWN_NAME: Final = 40
OPEN_OPTIONS: Final = frozenset({"endpoint_url", "region", "connect_timeout", "read_timeout"})
"""The options that are no credentials, nor names of any: only they travel to other processes."""
_LOCAL_SCHEMES: Final = frozenset({"", "file", "local"})


def check_no_password(url: str) -> None:
    """Raise UsageError, which does not repeat the URL, when it contains a password, a secret key or a signature.

    A URL is printed, and written into plans and journals. `s3://arn:...` and a port are no passwords. Of a query, the
    names tell: those of signed URLs of S3, Azure and Google, and whatever calls itself a token or a key.

    >>> check_no_password("s3://bucket/run@100"), check_no_password("ftp://host:21/run")
    (None, None)
    >>> check_no_password("https://host/x.npz?sv=2024&sig=abc")
    Traceback (most recent call last):
    edl_ckpt.core.base.errors.UsageError: a URL must not contain a secret ('sig' in its query)
    download the file first, or give the credentials in the environment or in a profile
    """
    if named := _secret_in_query(url):
        hint = "download the file first, or give the credentials in the environment or in a profile"
        raise UsageError(f"a URL must not contain a secret ({named!r} in its query)", hint=hint)
    for rest in url.split("://")[1:]:  # `zip://a::s3://...` has two
        host, colon, word = rest.partition("/")[0].rpartition("]")[2].partition(":")
        if colon and host != "arn" and not word.isdigit() and not rest.startswith(":"):
            raise UsageError(
                "a URL must not contain a password or a secret key",
                hint="give it in the environment (AWS_SECRET_ACCESS_KEY), in a profile, or in the storage options of "
                "your own edl-ckpt.toml",
            )


def _secret_in_query(url: str) -> str:
    """Return the name of the first secret in the query of a URL, '' without one."""
    query = url.partition("://")[2].partition("?")[2]
    if not query:
        return ""
    from urllib.parse import unquote  # most URLs have no query

    for item in _BETWEEN.split(query):
        name, has_value, value = item.partition("=")
        if has_value and value and _SECRET_NAME.search(unquote(name)):
            return unquote(name)[:_SHOWN_NAME]
    return ""


def as_url(place: object) -> str:
    """Return a path or URL as a text; UsageError for anything else, and for a URL in a `pathlib.Path`, which spoils it.

    >>> from pathlib import PurePosixPath
    >>> as_url(PurePosixPath("runs") / "a"), as_url("s3://bucket/run")
    ('runs/a', 's3://bucket/run')
    """
    if isinstance(place, str):
        return place
    text = os.fspath(place) if isinstance(place, os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(f"expected a path, a URL or a location, got {place!r:.80}")
    scheme, colon, _ = text.partition(":/")
    if colon and scheme in _URL_SCHEMES:
        check_no_password(text.replace(":/", "://", 1))
        raise UsageError(f"{text!r}: a pathlib.Path cannot be a URL", hint="give the URL as a text")
    return text


@dataclass(frozen=True, slots=True)
class Location:
    """A checkpoint_dir, or another place on storage: `url` is a path or any fsspec URL.

    `options` go to S3 or fsspec and mean nothing on a local path. Raises UsageError for a URL with a password in it.

    >>> Location("s3://bucket/run", {"secret": "hidden"})
    Location(url='s3://bucket/run')
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    system: str = field(default="", repr=False, compare=False)
    """The only checkpoint system whose files are looked at; '' for all that are known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", as_url(self.url))
        check_no_password(self.url)

    def without_credentials(self) -> Location:
        """Return this location for another process, which takes credentials from its own environment.

        >>> Location("s3://bucket/run", {"secret": "hidden", "region": "eu"}).without_credentials().options
        {'region': 'eu'}
        """
        options = {name: self.options[name] for name in self.options if name in OPEN_OPTIONS}
        return Location(self.url, options, self.system)

    @staticmethod
    def of(place: Location | str | os.PathLike[str]) -> Location:
        """Return a path, a URL or a location as a location.

        >>> Location.of("runs/a")
        Location(url='runs/a')
        """
        return place if isinstance(place, Location) else Location(as_url(place))

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """Return what stands before '://', '' for a plain path."""
        return self.url.partition("://")[0] if "://" in self.url else ""

    @property
    def is_far(self) -> bool:
        """Return True for storage where each read takes a request."""
        return self.local_path is None

    @property
    def local_path(self) -> str | None:
        """Return the path on this machine's file system, None on other storage.

        >>> Location("file:///data/run").local_path, Location("s3://bucket/run").local_path
        ('/data/run', None)
        """
        if self.scheme not in _LOCAL_SCHEMES:
            return None
        return self.url.partition("://")[2] if self.scheme else self.url

    @property
    def absolute(self) -> str:
        """Return the path as an absolute one, or the URL: the same from whichever directory it is read."""
        path = self.local_path
        return self.url if path is None else os.path.abspath(path)

    def pinned(self) -> Location:
        """Return this location with an absolute path: it stays the same place when the process changes its directory.

        >>> Location("s3://bucket/run").pinned(), Location("/data/run").pinned()
        (Location(url='s3://bucket/run'), Location(url='/data/run'))
        """
        path = self.local_path
        if not path or os.path.isabs(path):
            return self
        # Not `abspath`: a path may go up again behind a symbolic link.
        return self.with_url(os.path.join(os.getcwd(), path))

    def with_url(self, url: str) -> Location:
        """Return another place on the same storage, with the same options.

        >>> Location("s3://bucket/run", {"profile": "ops"}).with_url("s3://bucket/other").options
        {'profile': 'ops'}
        """
        return Location(url, self.options, self.system)

    def split(self) -> tuple[Location, str]:
        """Return the directory that this lies in, and the name it has there.

        >>> Location("s3://bucket/model.npz").split()
        (Location(url='s3://bucket'), 'model.npz')
        >>> Location("model.npz").split()
        (Location(url='.'), 'model.npz')
        """
        path = self.local_path
        if path is not None:
            folder, name = os.path.split(os.path.normpath(path))
            return self.with_url(folder or "."), name
        folder, _, name = self.url.rstrip("/").rpartition("/")
        return self.with_url(folder), name

    def is_same_place(self, other: Location) -> bool:
        """Say whether two locations are one place, as far as their names tell."""
        mine, theirs = self.local_path, other.local_path
        if mine is not None and theirs is not None:
            return os.path.realpath(mine) == os.path.realpath(theirs)
        return self.url.rstrip("/") == other.url.rstrip("/")


LocationLike: TypeAlias = Location | str | os.PathLike[str]
"""What the public functions take for a location: a location, or a path or URL without storage options."""


class Verdict(enum.StrEnum):
    """What a fact means for the commands."""

    FINE = "fine"
    WEAKER = "weaker"
    """Commands work, and something is slower or less safe."""
    BROKEN = "broken"
    """Commands fail."""
    UNKNOWN = "unknown"
    """It was not tried, or the storage does not say."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One property: its name, what was found, and why that matters, '' where nothing follows from it."""

    name: str
    value: str
    verdict: Verdict = Verdict.FINE
    why: str = ""


def judged(name: str, value: str, why: str, *, weak: bool, verdict: Verdict = Verdict.WEAKER) -> Fact:
    """Return a fact with a verdict, and what follows from it, where it is weak; without both where it is fine."""
    return Fact(name, value, verdict, why) if weak else Fact(name, value)


def yes(name: str, why: str, *, able: bool, verdict: Verdict = Verdict.WEAKER) -> Fact:
    """Return the fact of something that a storage can or cannot do; `why` is what follows where it cannot.

    >>> yes("rename", "no trash", able=True), yes("rename", "no trash", able=False).why
    (Fact(name='rename', value='yes', verdict=<Verdict.FINE: 'fine'>, why=''), 'no trash')
    """
    return judged(name, "yes" if able else "no", why, weak=not able, verdict=verdict)


_MOUNTS: Final = "/proc/self/mountinfo"
_OCTAL: Final = LatePattern(r"\\([0-7]{3})")
_REPORTING: Final = frozenset({
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs",
})  # fmt: skip
"""File systems of this machine alone. Any other one may be a network's, under whatever name."""
_LITTLE_BYTES: Final = 1 << 30
_FEW_FILES: Final = 10_000
_FLEETING: Final = {
    "tmpfs": "files here take memory, and are lost at a restart",
    "ramfs": "files here take memory, and are lost at a restart",
    "overlay": "often the layer of a container: files here are then lost with it",
}
_SHARED: Final = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "gluster", "9p", "virtiofs", "afs", "beegfs")


def reports_changes(path: str) -> bool:
    """Say whether the kernel reports every change of a directory: True only where no other machine can write."""
    return type_of(path) in _REPORTING


def type_of(path: str) -> str:
    """Return the type of the file system that a path lies on, '' where the system does not say."""
    with suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return filesystem_type(os.path.realpath(path), file.read())
    return ""


def filesystem_type(path: str, mounts: str) -> str:
    r"""Return the type of the file system that an absolute path lies on; `mounts` is the text of `mountinfo`.

    The last mount of a directory hides those before it. '' stands for an unknown type.

    >>> mounts = "22 1 8:1 / / rw - ext4 /dev/sda rw\n40 22 0:40 / /mnt/a\\040b rw shared:1 - nfs4 server:/x rw"
    >>> filesystem_type("/mnt/a b/run", mounts), filesystem_type("/mnt/a", mounts)
    ('nfs4', 'ext4')
    """
    found, deepest = "", 0
    for line in mounts.splitlines():
        place, _, system = line.partition(" - ")
        fields = place.split(" ")
        if len(fields) < 5 or not system:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= deepest:
            found, deepest = system.partition(" ")[0], len(point)
    return found


def disk_facts(path: str) -> Iterator[Fact]:
    """Yield what the kernel says of a directory and its file system; the errors of looking at it."""
    with storage_errors(path):
        names = os.listdir(path)
        status = os.statvfs(path)
    kind = type_of(path)
    why = _FLEETING.get(kind, "")
    if kind.startswith(_SHARED):
        why = "of a network: a request is slower, and another machine may see a change later"
    unknown = Verdict.FINE if kind else Verdict.UNKNOWN
    yield Fact("file system", kind or "unknown", Verdict.WEAKER if why else unknown, why)
    yield _access(path, read_only=bool(status.f_flag & os.ST_RDONLY))
    yield _room(status)
    free_files = status.f_favail if status.f_files else _FEW_FILES
    if free_files < _FEW_FILES:
        yield Fact("free inodes", str(free_files), Verdict.WEAKER, "each shard and each file of metadata needs one")
    yield _changes(path)
    if len(names) > 100_000:
        yield Fact("entries", str(len(names)), Verdict.WEAKER, "every listing reads all of them")


def _access(path: str, *, read_only: bool) -> Fact:
    """Return whether this user can write there."""
    why = "" if os.access(path, os.W_OK | os.X_OK) else "this user cannot write there: what writes is refused (12)"
    why = "mounted read-only: what writes there is refused" if read_only else why
    return judged("access", "read only" if why else "read and write", why, weak=bool(why))


def _room(status: os.statvfs_result) -> Fact:
    free = status.f_bavail * status.f_frsize
    shown = f"{size(free)} of {size(status.f_blocks * status.f_frsize)}"
    if free == 0:
        return Fact("free space", shown, Verdict.BROKEN, "nothing can be written")
    why = "reshard and import need room for a whole version next to the old one"
    return judged("free space", shown, why, weak=free < _LITTLE_BYTES)


def _changes(path: str) -> Fact:
    """Return how `wait` and `watch` hear of changes."""
    if not reports_changes(path):
        why = "other machines may write there unseen by this kernel, so `wait` and `watch` look every second"
        return Fact("reports changes (inotify)", "no", Verdict.WEAKER, why)
    if find_spec("watchfiles") is None:
        why = f"`wait` and `watch` look every second; {extra_hint('watch')}"
        return Fact("reports changes (inotify)", "yes, without watchfiles", Verdict.WEAKER, why)
    return Fact("reports changes (inotify)", "yes")
