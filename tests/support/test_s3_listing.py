"""A listing that we write says what moto's own says."""

from __future__ import annotations

import threading
from email.message import Message
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from s3_fixtures import Bucket, Moto
from s3_proxy import Call, Reply, describe

QUERIES = (
    "prefix=run/",
    "prefix=run/&delimiter=/",
    "prefix=run/&delimiter=/&max-keys=2",
    "prefix=run/&encoding-type=url",
    "start-after=run/b&fetch-owner=true",
    "prefix=nothing",
)


@pytest.mark.parametrize("query", QUERIES)
def test_moto_writes_the_same(moto: Moto, s3: Bucket, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """Names, sizes, times, ETags, prefixes and tokens are those that moto writes itself."""
    from moto.s3.responses import S3Response

    for name in ("run/a", "run/b", "run/c & <d> \"e\" 'f' é\n", "run/d/e", "run/g/h", "run/g/i"):
        s3.put(name, name.encode())
    ours = _reply(moto, s3, query)
    monkeypatch.delattr(S3Response, "serialized")
    theirs = _reply(moto, s3, query)
    assert (ours.status, dict(ours.headers)["Content-Type"]) == (200, dict(theirs.headers)["Content-Type"])
    assert len(ours.body) == int(dict(ours.headers)["Content-Length"])
    assert canonical(ET.fromstring(ours.body)) == canonical(ET.fromstring(theirs.body))


def _reply(moto: Moto, s3: Bucket, query: str) -> Reply:
    target = f"/{s3.name}?list-type=2&{query}"
    request = describe("GET", target, Message(), 0)
    return moto.store(Call(request, target, (("Host", "127.0.0.1"),), b"", threading.Event()))


def canonical(element: ET.Element) -> tuple[str, str, list[Any]]:
    """Return an element as a value in which members of one name keep their order, and no other order counts."""
    members = sorted(element, key=lambda member: member.tag)
    return element.tag, element.text or "", [canonical(member) for member in members]
