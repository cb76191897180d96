"""Requests beside botocore's model have its answers, its errors and its signatures; what is unusual goes through it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError

from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.s3.direct import Direct, _check_completed
from edl_ckpt.core.storage.s3.transport import Transport
from edl_ckpt.core.storage.s3.wire import DamagedError
from s3_fixtures import ENVIRONMENT, Bucket
from s3_proxy import Call, Fault, Forward, Reply, status, truncate

_KEYS = ["run/a b+c%41&=#?.x", "run/ü/~(é)'*!.y", "run/\n\x07.z", "run/plain/1", "run/plain/2"]


class _Pair:
    """botocore's client, and the requests beside it after the first one."""

    def __init__(self, s3: Bucket) -> None:
        self.s3 = s3
        settings = Config(retries={"max_attempts": 0}, response_checksum_validation="when_required")
        self.client = botocore.session.Session().create_client("s3", config=settings)
        self.direct = Direct(self.client)
        with self.direct.learning("head_object", {"Bucket": s3.name, "Key": "run/plain/1"}):
            self.client.head_object(Bucket=s3.name, Key="run/plain/1")
        s3.proxy.reset()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any] | None:
        """Return the answer of the direct request, None when it is none."""
        return self.direct.answer(method, {"Bucket": self.s3.name, **parameters})

    def both(self, method: str, **parameters: Any) -> Iterator[Any]:
        """Yield what the direct request and botocore return, or the errors that they raise, without the connection."""
        for ask in (self.ask, lambda method, **p: getattr(self.client, method)(Bucket=self.s3.name, **p)):
            try:
                answer = ask(method, **parameters)
                assert answer is not None
                kept = {"ETag", "ContentRange", "ContentLength", "LastModified", "Metadata", "IsTruncated"}
                shown = {name: value for name, value in answer.items() if name in kept}
                if "Body" in answer:
                    shown["Body"] = answer["Body"].read()
                    answer["Body"].close()
                rows = answer.get("Contents", ())
                shown["Contents"] = [[row[n] for n in ("Key", "Size", "LastModified", "ETag")] for row in rows]
                yield shown | {"CommonPrefixes": list(answer.get("CommonPrefixes", ()))}
            except ClientError as error:
                response: Any = error.response
                yield response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"], error.operation_name


@pytest.fixture
def pair(s3: Bucket) -> _Pair:
    """Return a client of a bucket with keys that must be quoted."""
    for number, key in enumerate(_KEYS):
        s3.put(key, bytes(range(10)), {"number": str(number)})
    return _Pair(s3)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        *(("get_object", {"Key": key, "Range": "bytes=2-5"}) for key in _KEYS),
        ("get_object", {"Key": _KEYS[0]}),
        ("get_object", {"Key": "run/plain/1", "IfMatch": '"no"'}),
        ("get_object", {"Key": "run/plain/1", "Range": "bytes=99-"}),
        ("get_object", {"Key": "absent"}),
        ("head_object", {"Key": _KEYS[1]}),
        ("head_object", {"Key": "absent"}),
        ("list_objects_v2", {}),
        ("list_objects_v2", {"Prefix": "run/", "Delimiter": "/"}),
        ("list_objects_v2", {"Prefix": "run/a b+"}),
        ("list_objects_v2", {"Prefix": "absent"}),
    ],
)
def test_answers_are_those_of_botocore(pair: _Pair, method: str, parameters: dict[str, str]) -> None:
    """Bodies, sizes, ETags, times, metadata, keys and errors are the same, with one request each."""
    ours, reference = pair.both(method, **parameters)
    assert ours == reference
    assert pair.s3.proxy.count() == 2


def test_uploads_are_those_of_botocore(pair: _Pair) -> None:
    """An upload that was begun here has its metadata; its parts have botocore's ETags, signatures and errors."""
    calls: list[Call] = []

    def note(call: Call, forward: Forward) -> Reply | None:
        calls.append(call)
        return forward(call)

    pair.s3.proxy.fail(Fault(note, times=None))
    keys = [key for key in _KEYS if "\n" not in key]  # moto begins no upload of such a name
    for key in keys:
        begun = pair.ask("create_multipart_upload", Key=key, Metadata={"mark": "x y"})
        assert begun is not None
        part: dict[str, Any] = {"Key": key, "UploadId": begun["UploadId"], "PartNumber": 1}
        md5 = base64.b64encode(hashlib.md5(b"some bytes").digest()).decode()
        body = {"Body": bytearray(b"some bytes"), "ContentMD5": md5}
        ours, reference = pair.both("upload_part", **part, **body)
        assert ours == reference
        refused, reference = pair.both("upload_part", **(part | {"UploadId": "none"}), **body)
        assert refused == reference
        parts = {"Parts": [{"PartNumber": 1, "ETag": ours["ETag"]}]}
        ended = pair.ask("complete_multipart_upload", Key=key, UploadId=begun["UploadId"], MultipartUpload=parts)
        assert ended is not None
        assert (pair.s3.get(key), pair.s3.metadata(key)) == (b"some bytes", {"mark": "x y"})
    assert len(calls) == 6 * len(keys)
    for call in calls:
        headers = {name.lower(): value for name, value in call.headers}
        assert headers["authorization"].rpartition("Signature=")[2] == _signature(call, headers)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"  \n<Error><Code>InternalError</Code></Error>", "InternalError"),
        (b"\n\n<?xml version='1.0'?><Error xmlns='urn:s3'><Code>SlowDown</Code></Error>", "SlowDown"),
        (b" <CompleteMultipartUploadResult><ETag>x-1</ETag></CompleteMultipartUploadResult>", None),
        (b"", DamagedError),
        (b"<CompleteMulti", DamagedError),
    ],
)
def test_an_error_with_a_good_status(data: bytes, code: Any) -> None:
    """S3 may begin its answer to the end of an upload with blanks and 200, and say later that it failed."""
    if code is None:
        _check_completed(data, "CompleteMultipartUpload")
    elif code is DamagedError:
        with pytest.raises(DamagedError):
            _check_completed(data, "CompleteMultipartUpload")
    else:
        with pytest.raises(ClientError, match=code):
            _check_completed(data, "CompleteMultipartUpload")


def test_signatures_are_right(pair: _Pair) -> None:
    """Each request as it arrives has the signature that AWS's description of Signature Version 4 gives it."""
    calls: list[Call] = []

    def note(call: Call, forward: Forward) -> Reply | None:
        calls.append(call)
        return forward(call)

    pair.s3.proxy.fail(Fault(note, times=None))
    for key in _KEYS:
        list(pair.both("get_object", Key=key, Range="bytes=0-3"))
        list(pair.both("list_objects_v2", Prefix=key, Delimiter="/"))
    assert len(calls) == 4 * len(_KEYS)
    for call in calls:
        headers = {name.lower(): value for name, value in call.headers}
        assert headers["authorization"].rpartition("Signature=")[2] == _signature(call, headers)


def test_a_part_is_hashed_once_unless_that_is_refused(pair: _Pair) -> None:
    """The MD5 of a part is signed, and it has no SHA-256; after a refusal botocore signs that too, and then we do."""
    seen: list[dict[str, str]] = []

    def note(call: Call, forward: Forward) -> Reply | None:
        seen.append({name.lower(): value for name, value in call.headers})
        if seen[-1]["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" and len(seen) > 1:
            return status(403, "SignatureDoesNotMatch")(call, forward)
        return forward(call)

    begun = pair.client.create_multipart_upload(Bucket=pair.s3.name, Key="run/part")
    part = {"Bucket": pair.s3.name, "Key": "run/part", "UploadId": begun["UploadId"], "PartNumber": 1}
    md5 = base64.b64encode(hashlib.md5(b"some bytes").digest()).decode()
    transport = Transport(lambda: pair.client)
    transport.call("head_object", {"Bucket": pair.s3.name, "Key": "run/plain/1"})  # which shows the way
    pair.s3.proxy.fail(Fault(note, operation="upload_part", times=None))
    answers = [transport.call("upload_part", {**part, "Body": b"some bytes", "ContentMD5": md5}) for _ in range(3)]
    assert {answer["ETag"].strip('"') for answer in answers} == {hashlib.md5(b"some bytes").hexdigest()}
    whole = hashlib.sha256(b"some bytes").hexdigest()
    assert [headers["x-amz-content-sha256"] for headers in seen] == [*2 * ["UNSIGNED-PAYLOAD"], whole, whole]
    for headers in seen:
        assert headers["content-md5"] == md5
        assert "content-md5" in headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")


@pytest.mark.parametrize("wanted", [True, False])
def test_signing_of_bodies_can_be_asked_for(pair: _Pair, wanted: bool) -> None:
    """`payload_signing_enabled` in the configuration of AWS decides, as it does for botocore."""
    pair.client.meta.config.s3 = {"payload_signing_enabled": wanted}
    calls: list[Call] = []

    def note(call: Call, forward: Forward) -> Reply | None:
        calls.append(call)
        return forward(call)

    direct = Direct(pair.client)
    with direct.learning("head_object", {"Bucket": pair.s3.name, "Key": "run/plain/1"}):
        pair.client.head_object(Bucket=pair.s3.name, Key="run/plain/1")
    pair.s3.proxy.fail(Fault(note, times=None))
    begun = pair.client.create_multipart_upload(Bucket=pair.s3.name, Key="run/part")
    part = {"Bucket": pair.s3.name, "Key": "run/part", "UploadId": begun["UploadId"], "PartNumber": 1}
    md5 = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    assert direct.answer("upload_part", {**part, "Body": b"x", "ContentMD5": md5}) is not None
    headers = {name.lower(): value for name, value in calls[-1].headers}
    assert (headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD") != wanted


def _signature(call: Call, headers: dict[str, str]) -> str:
    """Compute a signature by the steps of AWS's description."""
    path, _, query = call.target.partition("?")
    fields = dict(part.strip().split("=", 1) for part in headers["authorization"].partition(" ")[2].split(","))
    pairs = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in parse_qsl(query, keep_blank_values=True))
    names = fields["SignedHeaders"].split(";")
    canonical = [
        call.request.method,
        quote(unquote(path), safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(headers[name].split())}" for name in names),
        "",
        fields["SignedHeaders"],
        headers["x-amz-content-sha256"],
    ]
    scope = fields["Credential"].partition("/")[2]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = f"AWS4{ENVIRONMENT['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


@pytest.mark.parametrize("number", [301, 307, 400, 401, 403])
def test_what_is_unusual_goes_through_botocore(pair: _Pair, number: int) -> None:
    """Redirects and refused signatures are botocore's business, and its next answer shows the way again."""
    transport = Transport(lambda: pair.client)

    def requests() -> int:
        before = pair.s3.proxy.count()
        assert transport.call("get_object", {"Bucket": pair.s3.name, "Key": "run/plain/1"})["Body"] == bytes(range(10))
        return pair.s3.proxy.count() - before

    assert requests() == 1  # which shows the way
    armed = pair.s3.proxy.fail(Fault(status(number, "PermanentRedirect")))
    assert (requests(), requests(), armed.hits) == (2, 1, 1)


@pytest.mark.parametrize("key", ["run//x", "run/../x", "/x", "run/./x", "run/"])
def test_paths_that_could_be_folded_go_through_botocore(pair: _Pair, key: str) -> None:
    """A key that a client or a proxy might take for another one is left to botocore, and so are other parameters."""
    assert pair.ask("get_object", Key=key) is None
    assert pair.ask("get_object", Key="run/plain/1", VersionId="1") is None
    assert pair.direct.answer("get_object", {"Bucket": "another", "Key": "x"}) is None
    assert pair.ask("put_object", Key="x", Body="") is None
    assert pair.s3.proxy.count() == 0


def test_credentials_are_asked_for_each_time(pair: _Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that are renewed while a command runs sign the next request."""
    asked: list[int] = []

    def frozen() -> Any:
        asked.append(1)
        return found

    credentials = pair.client._request_signer._credentials
    found = credentials.get_frozen_credentials()
    monkeypatch.setattr(credentials, "get_frozen_credentials", frozen)
    for _ in range(3):
        assert pair.ask("head_object", Key="run/plain/1") is not None
    assert len(asked) == 3


@pytest.mark.parametrize("signature", [botocore.UNSIGNED, "s3", "s3v4a", "v4-s3express"])
def test_other_signatures_are_left_to_botocore(pair: _Pair, signature: object) -> None:
    """Where botocore signs in another way, or not at all, no request is direct any more."""
    parameters = {"Bucket": pair.s3.name, "Key": "run/plain/1"}
    assert pair.ask("head_object", Key="run/plain/1") is not None
    with pair.direct.learning("head_object", parameters):
        request = SimpleNamespace(url="http://x/run/plain/1", headers={})
        pair.direct._note(request=request, signature_version=signature, signing_name="s3", region_name="x")
    assert pair.ask("head_object", Key="run/plain/1") is None


def test_a_listing_that_is_damaged_is_asked_for_again(pair: _Pair) -> None:
    """Half a page of a listing is damage; so is a page that is no XML, or lacks a size."""
    store = open_store(pair.s3.url)
    names = store.names("")
    for text in (b"<a><", b"<a/><b/>", b"<a><Contents><Key>x</Key></Contents></a>", None):
        kind = truncate if text is None else partial(_reply, text)
        armed = pair.s3.proxy.fail(Fault(kind, operation="list"))
        assert store.names("") == names
        assert armed.hits == 1


def _reply(text: bytes, _call: Call, _forward: Forward) -> Reply:
    return Reply(200, (("Content-Length", str(len(text))),), text)


@pytest.mark.parametrize(
    ("bucket", "config"),
    [
        ("bucket", {}),
        ("dotted.bucket", {"use_dualstack_endpoint": True}),
        ("arn:aws:s3:eu-west-1:123456789012:accesspoint/ap", {}),
    ],
)
def test_addresses_are_those_of_botocore(bucket: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On AWS too, with the bucket in the name of the host, in the path, or behind an access point; nothing is sent."""
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    client = botocore.session.Session().create_client("s3", "eu-west-1", config=Config(**config))
    sent: list[str] = []

    def answer(request: Any, **_: Any) -> AWSResponse:
        sent.append(request.url)
        raw = SimpleNamespace(headers={}, stream=lambda: iter([b"<a/>"]), read=lambda: b"<a/>", close=lambda: None)
        return AWSResponse(request.url, 200, {"ETag": '"x"'}, raw)

    client.meta.events.register("before-send.s3", answer)
    direct = Direct(client)
    direct._send = answer
    cases = {"head_object": {"Key": "a b/ü+1"}, "list_objects_v2": {"Prefix": "a b/", "Delimiter": "/"}}
    for method, parameters in cases.items():
        with direct.learning(method, {"Bucket": bucket, **parameters}):
            getattr(client, method)(Bucket=bucket, **parameters)
        assert direct.answer(method, {"Bucket": bucket, **parameters}) is not None
        reference, ours = (urlsplit(url) for url in sent[-2:])
        assert ours[:3] == reference[:3]
        assert sorted(parse_qsl(ours.query)) == sorted(parse_qsl(reference.query))
