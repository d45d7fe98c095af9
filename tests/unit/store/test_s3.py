"""What ServerStore is without a server; its promises are held in ``tests/contract/store``."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from airflow_streamstate.store.options import ResolvedS3, S3Options
from airflow_streamstate.store.s3 import Requests, Upload, boto_errors, checksum_in, make_clients, resolve
from airflow_streamstate.store.s3_errors import as_error
from airflow_streamstate.store.server import RequestFailure, ServerAnswer
from airflow_streamstate.store.transfer import MOST_PARTS, UPLOADS_AT_ONCE
from support.fake_clock import FakeClock
from support.s3_server import options_for

NAMES = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_MAX_ATTEMPTS",
    "AWS_RETRY_MODE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (boto.EndpointConnectionError(endpoint_url="u"), ServerAnswer.NOT_DONE),
        (boto.ConnectTimeoutError(endpoint_url="u"), ServerAnswer.NOT_DONE),
        (boto.ReadTimeoutError(endpoint_url="u"), ServerAnswer.UNKNOWN),
        (boto.ConnectionClosedError(endpoint_url="u"), ServerAnswer.UNKNOWN),
        (boto.ResponseStreamingError(error="cut"), ServerAnswer.UNKNOWN),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), ServerAnswer.UNKNOWN),
        (boto.FlexibleChecksumError(error_msg="other bytes"), ServerAnswer.UNKNOWN),
        (ResponseParserError("no XML"), ServerAnswer.UNKNOWN),
        (boto.SSLError(endpoint_url="u", error="bad"), ServerAnswer.UNKNOWN),
        (boto.SSLError(endpoint_url="u", error="[SSL: CERTIFICATE_VERIFY_FAILED]"), ServerAnswer.REFUSED),
        (boto.CredentialRetrievalError(provider="process", error_msg="busy"), ServerAnswer.NOT_DONE),
        (boto.MetadataRetrievalError(error_msg="no answer"), ServerAnswer.NOT_DONE),
        (boto.NoCredentialsError(), ServerAnswer.REFUSED),
        (boto.ProfileNotFound(profile="none"), ServerAnswer.REFUSED),
        (boto.ParamValidationError(report="bad bucket"), ServerAnswer.REFUSED),
    ],
)
def test_each_client_error_becomes_an_answer(error: Exception, answer: ServerAnswer) -> None:
    """Only where nothing can have been sent is a write certainly not done."""
    with pytest.raises(RequestFailure) as caught, boto_errors():
        raise error
    assert caught.value.answer is answer
    assert caught.value.status == 0


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        ({"Code": "PermanentRedirect", "Region": "eu-west-1"}, {}),
        ({"Code": "301"}, {"x-amz-bucket-region": "eu-west-1"}),
    ],
)
def test_the_region_that_a_server_names_is_told(error: dict[str, str], headers: dict[str, str]) -> None:
    """A redirect reports where the bucket is, in its body or in its head."""
    response = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 301, "HTTPHeaders": headers}}
    with pytest.raises(RequestFailure) as caught, boto_errors():
        raise boto.ClientError(response, "HeadObject")
    assert caught.value.region == "eu-west-1"


def test_every_request_is_sent_once_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client has retries of its own, whatever the environment asks for (Law 8), and none waits for ever (Law 6)."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    for client in make_clients(options_for("http://127.0.0.1:9")):
        assert client.meta.config.retries["total_max_attempts"] == 1
        assert 0 < client.meta.config.connect_timeout <= 10
        assert 0 < client.meta.config.read_timeout <= 300


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a connection sets wins, and what it leaves out is the environment's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://env:1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    assert resolve(S3Options()) == ResolvedS3("eu-north-1", "http://env:1", "env-key", "env-secret", "env-token")
    said = S3Options("eu-west-3", "http://said:2", "said-key", "said-secret")
    assert resolve(said) == ResolvedS3("eu-west-3", "http://said:2", "said-key", "said-secret", None)


@pytest.mark.parametrize(
    ("environment", "endpoint_url", "region"),
    [
        ({"AWS_ENDPOINT_URL": "http://all:1", "AWS_DEFAULT_REGION": "r-1"}, "http://all:1", "r-1"),
        ({"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:2"}, "http://s3:2", "us-east-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, None, "eu-west-1"),
        ({"AWS_ENDPOINT_URL_S3": "http://s3:2", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, None, "us-east-1"),
        ({}, None, "us-east-1"),
    ],
)
def test_the_usual_variables_are_honoured(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], endpoint_url: str | None, region: str
) -> None:
    """Endpoint and region come from AWS's own variables, the one for S3 before the one for all, as documented."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    resolved = resolve(S3Options())
    assert (resolved.endpoint_url, resolved.region) == (endpoint_url, region)
    assert resolved.access_key_id is None


@pytest.mark.parametrize("url", ["http://ada:hunter2@h:9000", "http://hunter2@h", "no//u:hunter2@h"])
def test_an_endpoint_with_a_password_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """It would be in errors and in Spark's settings, wherever it came from."""
    for ask in (lambda: resolve(S3Options(endpoint_url=url)), lambda: make_clients(S3Options())):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        with pytest.raises(RequestFailure) as caught:
            ask()
        assert caught.value.answer is ServerAnswer.REFUSED
        assert "hunter2" not in str(as_error(caught.value, action="s3:GetObject", bucket="b", key="k"))


@pytest.fixture
def aws_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files of a machine that has one profile."""
    config, keys = tmp_path / "config", tmp_path / "credentials"
    config.write_text(
        "[profile mine]\nregion = eu-south-1\nservices = own\n[services own]\ns3 =\n  endpoint_url = http://f:3\n"
    )
    keys.write_text("[mine]\naws_access_key_id = file-key\naws_secret_access_key = file-secret\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))


@pytest.mark.usefixtures("aws_files")
@pytest.mark.parametrize("profile_name", ["mine", None])
def test_profiles_are_honoured(monkeypatch: pytest.MonkeyPatch, profile_name: str | None) -> None:
    """AWS_PROFILE gives keys, region and endpoint; a profile of the options does, before keys of the environment."""
    if profile_name is None:
        monkeypatch.setenv("AWS_PROFILE", "mine")
    else:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    found = resolve(S3Options(profile_name=profile_name))
    assert found == ResolvedS3("eu-south-1", "http://f:3", "file-key", "file-secret")


@pytest.mark.usefixtures("aws_files")
def test_a_missing_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the options and by AWS_PROFILE."""
    with pytest.raises(RequestFailure) as caught:
        resolve(S3Options(region="r", profile_name="none"))
    assert caught.value.answer is ServerAnswer.REFUSED
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(RequestFailure) as caught:
        make_clients(S3Options())
    assert (caught.value.answer, caught.value.code) == (ServerAnswer.REFUSED, "ProfileNotFound")


def test_credentials_that_renew_themselves_are_not_taken_out() -> None:
    """The keys of a role expire: handed over, they would expire in the middle of a run."""
    session = boto3.Session(region_name="eu-west-3")
    session._session.set_credentials("k", "s", "t")
    session._session.get_credentials().method = "assume-role"
    assert resolve(S3Options(session=session)) == ResolvedS3(region="eu-west-3")


@pytest.mark.parametrize(
    ("answer", "checksum"),
    [
        (
            {"ChecksumCRC32": "NhCmhg==", "ETag": '"5d41402abc4b2a76b9719d911017c592"'},
            f"crc32:{zlib.crc32(b'hello'):08x}",  # so that the standard library can compare
        ),
        ({"ChecksumCRC64NVME": "M3eFcAZSQlc=", "ChecksumType": "FULL_OBJECT"}, "crc64nvme:3377857006524257"),
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592"'}, "md5:5d41402abc4b2a76b9719d911017c592"),
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592-3"'}, "etag:5d41402abc4b2a76b9719d911017c592-3"),
        ({"ChecksumCRC32": "NhCmhg==-3", "ETag": '"x-3"'}, "etag:x-3"),
        ({"ChecksumCRC32": "NhCmhg==", "ChecksumType": "COMPOSITE", "ETag": '"x-3"'}, "etag:x-3"),
        (
            {"ETag": '"5d41402abc4b2a76b9719d911017c592"', "ServerSideEncryption": "aws:kms"},
            "etag:5d41402abc4b2a76b9719d911017c592",
        ),
        (
            {"ETag": '"5d41402abc4b2a76b9719d911017c592"', "ServerSideEncryption": "AES256"},
            "md5:5d41402abc4b2a76b9719d911017c592",
        ),
    ],
)
def test_a_checksum_says_what_it_is(answer: dict[str, str], checksum: str) -> None:
    """Only what covers the bytes themselves is reported as a checksum; an encrypted object's tag is no digest."""
    assert checksum_in(answer) == checksum


PART_BYTES = 100
BODY = bytes(range(250)) * 10


class Client:
    """What S3 would answer; fails where it is configured to."""

    def __init__(
        self, failing: str = "", answer: ServerAnswer = ServerAnswer.REFUSED, code: str = "AccessDenied"
    ) -> None:
        self.failing = failing
        self.failure = RequestFailure(answer, 403, code, "struck")
        self.seen: list[str] = []
        self.parts: dict[int, bytes] = {}
        self.there: dict[str, Any] = {"ETag": '"anothers"', "Metadata": {}}

    def _met(self, operation: str) -> None:
        self.seen.append(operation)
        if operation == self.failing:
            raise self.failure

    def create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._met("create_multipart_upload")
        return {"UploadId": "one"}

    def upload_part(self, **request: Any) -> dict[str, Any]:
        self._met("upload_part")
        self.parts[request["PartNumber"]] = request["Body"]
        return {"ETag": f'"{request["PartNumber"]}"'}

    def complete_multipart_upload(self, **request: Any) -> dict[str, Any]:
        self._met("complete_multipart_upload")
        numbers = [part["PartNumber"] for part in request["MultipartUpload"]["Parts"]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert request["UploadId"] == "one"
        return {"ETag": '"whole"'}

    def abort_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._met("abort_multipart_upload")
        return {}

    def head_object(self, **_: Any) -> dict[str, Any]:
        self._met("head_object")
        return self.there


def upload(client: Client, patient: Client | None = None) -> Upload:
    clock = FakeClock()
    quick, slow = Requests(client, "streams", clock), Requests(patient or client, "streams", clock)
    return Upload(quick, slow, "home/a", "write-1")


def pieces(body: bytes = BODY) -> Iterator[bytes]:
    return (body[start : start + 33] for start in range(0, len(body), 33))


def test_few_parts_are_under_way() -> None:
    """No piece is asked for while as many parts as may be are under way: only these are held, whatever the size."""
    count = 50
    asked = threading.Condition()
    given = 0
    ahead: list[int] = []

    class Slow(Client):
        """Answers for a part once as many pieces as possible were taken."""

        def upload_part(self, **request: Any) -> dict[str, Any]:
            with asked:
                assert asked.wait_for(lambda: given >= min(count, request["PartNumber"] + UPLOADS_AT_ONCE - 1), 20)
            return super().upload_part(**request)

    client = Slow()

    def counted() -> Iterator[bytes]:
        nonlocal given
        for _ in range(count):
            with asked:
                given += 1
                ahead.append(given - len(client.parts))
                asked.notify_all()
            yield bytes(PART_BYTES)

    upload(client).run(counted(), count * PART_BYTES, PART_BYTES)
    assert len(client.parts) == count
    assert max(ahead) == UPLOADS_AT_ONCE


def test_the_parts_are_the_body() -> None:
    """In order, of one size; and of what has too many of them they are larger."""
    client = Client()
    assert upload(client).run(pieces(), len(BODY), PART_BYTES) == '"whole"'
    assert b"".join(client.parts[number] for number in sorted(client.parts)) == BODY
    assert {len(part) for part in client.parts.values()} == {PART_BYTES}
    many = Client()
    upload(many).run([bytes(MOST_PARTS + 1)], MOST_PARTS + 1, 1)
    assert len(many.parts) <= MOST_PARTS


@pytest.mark.parametrize("failing", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
@pytest.mark.parametrize("answer", [ServerAnswer.REFUSED, ServerAnswer.NOT_DONE, ServerAnswer.UNKNOWN])
def test_what_failed_is_aborted(failing: str, answer: ServerAnswer) -> None:
    """Only a completion may have landed: no reader sees a part. (Law 8)"""
    client = Client(failing, answer)
    with pytest.raises(RequestFailure) as caught:
        upload(client).run(pieces(), len(BODY), PART_BYTES)
    is_doubtful = failing == "complete_multipart_upload" and answer is ServerAnswer.UNKNOWN
    assert (caught.value.answer is ServerAnswer.UNKNOWN) == is_doubtful
    assert ("abort_multipart_upload" in client.seen) == (failing != "create_multipart_upload")


def test_only_what_takes_its_time_is_waited_for_with_patience() -> None:
    """Parts and the completion: a server that is silent from the beginning is left as soon as with any put. (Law 6)"""
    quick, patient = Client(), Client("complete_multipart_upload", ServerAnswer.UNKNOWN)
    with pytest.raises(RequestFailure):
        upload(quick, patient).run(pieces(), len(BODY), PART_BYTES)
    assert set(quick.seen) == {"create_multipart_upload", "head_object", "abort_multipart_upload"}
    assert set(patient.seen) == {"upload_part", "complete_multipart_upload"}


def test_what_the_pieces_raise_is_raised() -> None:
    """The upload is aborted when no part is under way any more."""

    class StopError(Exception):
        """The caller cancels."""

    def stopping() -> Iterator[bytes]:
        yield from pieces(BODY[: len(BODY) // 2])
        raise StopError

    client = Client()
    with pytest.raises(StopError):
        upload(client).run(stopping(), len(BODY), PART_BYTES)
    assert client.seen[-1] == "abort_multipart_upload"
    assert "complete_multipart_upload" not in client.seen


MINE = {"ETag": '"mine"', "Metadata": {"streamstate-write": "write-1"}}


class Lost(Client):
    """Completes, and the answer is lost; what is asked after that is answered as configured."""

    def __init__(self, then: RequestFailure) -> None:
        super().__init__()
        self.answers = [RequestFailure(ServerAnswer.UNKNOWN, 500, "InternalError", "lost"), *[then] * 9]

    def complete_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._met("complete_multipart_upload")
        raise self.answers.pop(0)


THEN = [
    RequestFailure(ServerAnswer.REFUSED, 404, "NoSuchUpload", "it has ended"),
    RequestFailure(ServerAnswer.REFUSED, 403, "AccessDenied", "no more"),
    RequestFailure(ServerAnswer.NOT_DONE, 503, "SlowDown", "later"),
]


@pytest.mark.parametrize("then", THEN, ids=["over", "denied", "slow"])
def test_a_completion_that_landed_is_known_by_its_write_id(then: RequestFailure) -> None:
    """Its answer was lost; what is there shows whose it is, before anything is asked again. (Law 8)"""
    client = Lost(then)
    client.there = MINE
    assert upload(client).run(pieces(), len(BODY), PART_BYTES) == '"mine"'
    assert client.seen.count("complete_multipart_upload") == 1


@pytest.mark.parametrize("then", THEN, ids=["over", "denied", "slow"])
def test_a_doubt_stays_one(then: RequestFailure) -> None:
    """Whatever a later try returns: another's object is there, and the first try may have been before it. (Law 8)"""
    with pytest.raises(RequestFailure) as caught:
        upload(Lost(then)).run(pieces(), len(BODY), PART_BYTES)
    assert caught.value.answer is ServerAnswer.UNKNOWN


@pytest.mark.parametrize("failing", ["upload_part", "complete_multipart_upload"])
def test_an_upload_that_was_ended_elsewhere_can_be_begun_anew(failing: str) -> None:
    """As by a rule of the bucket: nothing was changed, and the caller has made no mistake."""
    with pytest.raises(RequestFailure) as caught:
        upload(Client(failing, ServerAnswer.REFUSED, "NoSuchUpload")).run(pieces(), len(BODY), PART_BYTES)
    assert caught.value.answer is ServerAnswer.NOT_DONE
