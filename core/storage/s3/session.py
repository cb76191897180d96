"""botocore's client for the options of a location: credentials, endpoint, region and configuration are botocore's.

They come from the usual environment of AWS, or from `--storage-option`.
"""

from __future__ import annotations

import gzip
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant

_TEXT_OPTIONS: Final = {
    "endpoint_url": "endpoint_url",
    "region": "region_name",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
}
"""The arguments of botocore's client by our names of them."""
_SECONDS_OPTIONS: Final = {"connect_timeout": 10.0, "read_timeout": 60.0}


class Service:
    """botocore's client of a service for some options, and what writes and reads single requests as it does.

    Making one may fetch credentials over the network.
    """

    def __init__(self, profile: str | None, arguments: Mapping[str, str], config: Mapping[str, Any]) -> None:
        from botocore.config import Config
        from botocore.serialize import create_serializer
        from botocore.session import Session

        session = Session(profile=profile)
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        parsers = session.get_component("response_parser_factory")
        # dateutil, which botocore uses otherwise, takes four fifths of the time of a listing.
        parsers.set_parser_defaults(timestamp_parser=moment)
        self.client = session.create_client("s3", **arguments, config=Config(**config))
        self.parser = parsers.create_parser("rest-xml")
        self.serializer = create_serializer("rest-xml", include_validation=False)
        self.agent, self.connect_seconds = config["user_agent"], config["connect_timeout"]
        self.read_seconds = config["read_timeout"]
        configured = (self.client.meta.config.s3 or {}).get("payload_signing_enabled")
        self.signs_bodies = configured is not False
        """Whether requests have the SHA-256 of their bodies."""
        self.signs_parts = configured is True
        """The same of parts, whose checksum is among the signed headers: only where the user configures it."""
        self._authorities = session.get_config_variable("ca_bundle") or True
        self._is_explicit = "aws_access_key_id" in arguments
        is_asked = "signature_version" not in config and not self._is_explicit
        self._credentials = session.get_credentials() if is_asked else None

    def must_refresh(self) -> bool:
        """Say whether the credentials must be fetched anew before a request can be signed."""
        refresh_needed = getattr(self._credentials, "refresh_needed", None)
        return refresh_needed is not None and bool(refresh_needed())

    def identity(self) -> tuple[str, str, str]:
        """Return the address of the service, its region, and where the credentials come from; '' without any.

        No secret is among them: the last is botocore's name of a source, such as `env` or `iam-role`.
        """
        meta, source = self.client.meta, "explicit" if self._is_explicit else ""
        if self._credentials is not None:
            source = str(self._credentials.method)
        return str(meta.endpoint_url), str(meta.region_name or ""), source

    def trust(self) -> ssl.SSLContext:
        """Return what botocore trusts: the authorities of the user's bundle, or its own."""
        from botocore.httpsession import create_urllib3_context, get_cert_path

        context: ssl.SSLContext = create_urllib3_context()
        context.check_hostname = True
        context.load_verify_locations(get_cert_path(self._authorities))
        return context


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
            found = _model(file_path)
            return super().load_file(file_path) if found is None else found

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


@cache
def _model(path: str) -> Any:
    """Return what a file of botocore says, None where there is none; two clients of a process share it."""
    for ending, opened in ((".json", open), (".json.gz", gzip.open)):
        with suppress(FileNotFoundError), opened(path + ending, "rb") as file:
            return json.loads(file.read())
    return None


def moment(value: Any) -> datetime:
    """Return a time as S3 writes it: ISO 8601, or in headers that of e-mail; botocore reads all others."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(TypeError, ValueError):
            moment = parse(value)
            if moment.tzinfo is not None:
                return moment
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed
