"""Signatures are those that botocore makes, whatever is signed."""

from __future__ import annotations

import calendar
import time
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.storage.s3.signing import UNSIGNED_BODY, Scope, body_sum, signed_headers

_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
_NAMES = st.text("abcxyz-", min_size=1, max_size=8).map(lambda text: f"x-amz-meta-{text}")


@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST"]),
    key=st.text(max_size=20),
    arguments=st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=4),
    headers=st.dictionaries(_NAMES, _TEXT, max_size=3),
    body=st.binary(max_size=40),
    token=st.sampled_from([None, "a-token"]),
    host=st.sampled_from(["127.0.0.1:9000", "bucket.s3.eu-west-3.amazonaws.com"]),
    is_signed=st.booleans(),
)
def test_a_signature_is_that_of_botocore(
    method: str,
    key: str,
    arguments: dict[str, str],
    headers: dict[str, str],
    body: bytes,
    token: str | None,
    host: str,
    is_signed: bool,
) -> None:
    """The same request with the same credentials at the same time has the same signature and headers."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.config import Config
    from botocore.credentials import Credentials

    target = "/" + quote(key, safe="/~")
    if arguments:
        target += "?" + urlencode(arguments, quote_via=quote, safe="~")
    credentials = Credentials("AKIDEXAMPLE", "very-secret", token).get_frozen_credentials()
    theirs = AWSRequest(method, f"http://{host}{target}", dict(headers), body)
    theirs.context["client_config"] = Config(s3={"payload_signing_enabled": is_signed})
    S3SigV4Auth(credentials, "s3", "eu-west-3").add_auth(theirs)
    moment = theirs.headers["X-Amz-Date"]
    ours = signed_headers(
        method,
        target,
        {"host": host, **headers},
        body=body_sum(body) if is_signed else UNSIGNED_BODY,
        scope=Scope("eu-west-3", "s3"),
        credentials=credentials,
        now=calendar.timegm(time.strptime(moment, "%Y%m%dT%H%M%SZ")),
    )
    assert ours["authorization"] == theirs.headers["Authorization"]
    assert {name: text for name, text in ours.items() if name != "host"} == {
        name.lower(): text for name, text in theirs.headers.items()
    }


@pytest.mark.parametrize("offset", [0.0, 0.9])
def test_the_time_of_a_signature_is_in_whole_seconds(offset: float) -> None:
    """A moment within a second signs as its beginning does."""
    from botocore.credentials import Credentials

    credentials = Credentials("AKIDEXAMPLE", "very-secret").get_frozen_credentials()
    headers = signed_headers(
        "GET", "/b", {"host": "h"}, body="", scope=Scope("r", "s3"), credentials=credentials, now=86400.0 + offset
    )
    assert headers["x-amz-date"] == "19700102T000000Z"
