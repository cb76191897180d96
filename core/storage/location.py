"""A location as a value: a path or URL, and the options of its storage.

It is made once, by the command line or by the caller of the library, and travels with listings, versions and plans.
Options may hold credentials, so they never appear in `repr`, in a message or in a plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.patterns import LatePattern

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
    """Return the name of the first secret in the query or the fragment of a URL, '' without one."""
    rest = url.partition("://")[2]
    query = "&".join((rest.partition("?")[2], rest.partition("#")[2])).strip("&")
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
