"""A URL with a secret in its query is refused, and is not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.storage import Location

SECRET = "3cr3tV4lu3"
SIGNED = (
    "https://host/x.npz?sv=2024-01-01&se=2026&sig={}",
    "https://bucket.s3.amazonaws.com/x.npz?X-Amz-Credential={}&X-Amz-Date=1",
    "https://bucket.s3.amazonaws.com/x.npz?AWSAccessKeyId=a&Signature={}",
    "https://storage.googleapis.com/b/x.npz?X-Goog-Signature={}",
    "https://host/x.npz?access_token={}",
    "https://host/x.npz?api_key={}",
    "https://host/x.npz?a=1;password={}",
    "s3://bucket/run?token={}",
    "https://host/x.npz?%73ig={}",
    "filecache::https://host/x.npz?sig={}",
    "https://host/x.npz#access_token={}",
    "https://host/x.npz?a=1#sig={}",
)


@pytest.mark.parametrize("url", SIGNED)
def test_a_secret_in_a_query_is_refused_and_not_repeated(url: str) -> None:
    """Whatever the service calls its signature."""
    with pytest.raises(UsageError) as caught:
        Location(url.format(SECRET))
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.path}"


def test_a_path_that_was_a_signed_url_is_not_repeated() -> None:
    """`pathlib.Path` spoils a URL, and the error about that repeats it only without a secret."""
    with pytest.raises(UsageError) as caught:
        Location.of(Path(SIGNED[0].format(SECRET)))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://host/x.npz?version=3", "s3://bucket/what?/run", "/data/a?token=b", "https://host/x?keyword=a&sig="]
)
def test_other_queries_and_keys_stay_as_they_are(url: str) -> None:
    """A path of a disk, and a query without a secret, are no reason to refuse."""
    assert Location(url).url == url
