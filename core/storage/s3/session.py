"""botocore's clients for the options of a location: credentials, endpoint, region and configuration are botocore's.

They come from the usual environment of AWS, or from `--storage-option`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant

_CONNECTIONS: Final = 256
"""Connections that stay open for the next request; no command has so many workers."""
_TEXT_OPTIONS: Final = {
    "endpoint_url": "endpoint_url",
    "region": "region_name",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
}
"""The arguments of botocore's client by our names of them."""
_SECONDS_OPTIONS: Final = {"connect_timeout": 10.0, "read_timeout": 60.0}


class Clients:
    """The clients of one process for some options; making the first may fetch credentials over the network.

    Parts of uploads have their checksum among the signed headers. So their client does not sign a SHA-256 of each body
    too, unless the user configures `payload_signing_enabled`.
    """

    def __init__(self, profile: str | None, arguments: Mapping[str, str], config: Mapping[str, Any]) -> None:
        from botocore.session import Session

        self._config = config
        self._session = Session(profile=profile)
        self._session.register_component("data_loader", _loader(self._session.get_config_variable("data_path")))
        # dateutil, which botocore uses otherwise, takes four fifths of the time of a listing.
        self._session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
        self._make = partial(self._session.create_client, "s3", **arguments)
        self._is_explicit = "aws_access_key_id" in arguments
        self._client, self._parts = self._new(), None

    def _new(self, **s3: bool) -> Any:
        from botocore.config import Config

        return self._make(config=Config(**self._config, **({"s3": s3} if s3 else {})))

    def of(self, method: str) -> Any:
        """Return the client for a method."""
        if method != "upload_part":
            return self._client
        if self._parts is None:
            configured = self._session.get_config_variable("s3") or {}
            signs = "payload_signing_enabled" in configured
            self._parts = self._client if signs else self._new(payload_signing_enabled=False)
        return self._parts

    def sign_parts(self) -> None:
        """Sign the bodies of parts from now on, for a service that refuses others."""
        self._parts = self._client

    def identity(self) -> tuple[str, str, str]:
        """Return the address of the service, its region, and where the credentials come from; '' without any.

        No secret is among them: the last is botocore's name of a source, such as `env` or `iam-role`.
        """
        meta, source = self._client.meta, "explicit" if self._is_explicit else ""
        if not source and "signature_version" not in self._config:
            credentials = self._session.get_credentials()
            source = "" if credentials is None else str(credentials.method)
        return str(meta.endpoint_url), str(meta.region_name or ""), source


def settings(options: Mapping[str, str], shown: str) -> tuple[str | None, dict[str, str], dict[str, Any]]:
    """Return the profile, the arguments of botocore's client and its configuration, from `--storage-option`s.

    The UsageError for an unknown option hides its value.
    """
    known = {*_TEXT_OPTIONS, *_SECONDS_OPTIONS, "profile", "anon"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"unknown storage option {unknown[0]!r} for S3",
            path=shown,
            hint=meant(unknown[0], known) or f"known options: {', '.join(sorted(known))}",
        )
    try:
        seconds = {name: float(options.get(name, default)) for name, default in _SECONDS_OPTIONS.items()}
    except ValueError:
        raise UsageError("connect_timeout and read_timeout must be numbers of seconds", path=shown) from None
    # Our own retries, which are logged; and our own checksums, because not every S3 service knows the newer ones.
    config = {
        **seconds,
        "retries": {"max_attempts": 0},
        "max_pool_connections": _CONNECTIONS,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "user_agent": "edl-ckpt",  # botocore composes its own for each request: an eighth of a small GET
    }
    if options.get("anon", "").lower() in {"1", "true", "yes"}:
        from botocore import UNSIGNED

        config["signature_version"] = UNSIGNED
    arguments = {_TEXT_OPTIONS[name]: value for name, value in options.items() if name in _TEXT_OPTIONS}
    return options.get("profile"), arguments, config


def _loader(paths: str | None) -> Any:
    """Return botocore's loader of models, which does not look into the folders of 400 services for that of S3.

    Its dictionaries are plain ones, which keep their order too: half of the time of making a client went into others.
    `paths` are those that the user has added.
    """
    from botocore.loaders import JSONFileLoader, Loader

    class Plain(JSONFileLoader):  # type: ignore[misc]
        def load_file(self, file_path: str) -> Any:
            for ending, opened in ((".json", open), (".json.gz", gzip.open)):
                with suppress(FileNotFoundError), opened(file_path + ending, "rb") as file:
                    return json.loads(file.read())
            return super().load_file(file_path)

    class Near(Loader):  # type: ignore[misc]
        FILE_LOADER_CLASS = Plain

        def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - each has a folder
            found = [name for path in filter(os.path.isdir, self.search_paths) for name in os.listdir(path)]
            return sorted(set(found))

    return Near(
        extra_search_paths=[
            os.path.expanduser(os.path.expandvars(path)) for path in (paths or "").split(os.pathsep) if path
        ]
    )


def _moment(value: Any) -> datetime:
    """Return a time as S3 writes it: ISO 8601, or in headers that of e-mail; botocore reads all others."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(TypeError, ValueError):
            moment = parse(value)
            if moment.tzinfo is not None:
                return moment
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed
