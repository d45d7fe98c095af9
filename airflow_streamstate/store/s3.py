"""S3, or a server that speaks its protocol, by boto3: with ``launch.emr_client`` the only module that knows boto3.

boto3's clients try once: ``store.server`` repeats, which knows whether a request may be sent twice, waits by the
injected clock, and reads back what may have landed (Law 8). boto3's own retries would hide all three.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, CredentialProvider, DeferredRefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from botocore.session import get_session

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.store.options import ResolvedS3, S3Options, SparkSettings, s3a_settings
from airflow_streamstate.store.s3_errors import NAMED_ENDPOINT, PLAIN_STS, ROLE_PREFIX, as_error, classify
from airflow_streamstate.store.server import (
    REQUEST,
    FoundObject,
    GotObject,
    RequestFailure,
    ServerAnswer,
    ServerClient,
    ServerStore,
    WriteCondition,
    read_body,
    reported,
    until_answered,
)
from airflow_streamstate.store.transfer import UPLOAD_PART_BYTES, UPLOADS_AT_ONCE, in_parts, part_bytes_of, side_by_side

COPY_TIMEOUT_SECONDS = 300.0
POOL_CONNECTIONS = 32
DEFAULT_REGION = "us-east-1"
_LASTING_CREDENTIALS = ("explicit", "env", "shared-credentials-file", "config-file")
"""boto3's names for credentials that do not expire by themselves."""
SINGLE_COPY_BYTES = 5 * 1024**3
"""S3 copies no larger object in one request."""
PART_BYTES = 256 * 1024**2
WRITE_ID = "streamstate-write"
"""The metadata with the id of the put that wrote an object."""

WHOLE_CRC32 = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}
"""As for a body that is put whole: the standard library can compute it."""
_ENDED = "NoSuchUpload"
_ACTIONS = {
    "open": "CreateClient",
    "get": "GetObject",
    "head": "HeadObject",
    "list": "ListBucket",
    "put": "PutObject",
    "delete": "DeleteObject",
    "copy": "CopyObject",
    "list uploads": "ListBucketMultipartUploads",
    "end upload": "AbortMultipartUpload",
}
"""Operations as a policy of S3 names them."""


class S3Client(ServerClient):
    """One bucket. Versions are entity tags.

    Args:
        single_copy_bytes: the largest object that the server copies in one request.
        part_bytes: the size of the parts that larger ones are copied in.

    Raises:
        InvalidRequestError: boto3 refuses the options.
    """

    deletes_at_once = 1000
    lists_markers = True

    def __init__(
        self,
        bucket: str,
        options: S3Options | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        single_copy_bytes: int = SINGLE_COPY_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.uri = f"s3://{bucket}"
        self.clock = clock
        self.bucket = bucket
        self._options = options or S3Options()
        with reported(self, "open"):
            self.boto, copying_client = make_clients(self._options)
        self._requests = Requests(self.boto, bucket, clock)
        self._patient = Requests(copying_client, bucket, clock)
        self._copier = Copier(self._patient, single_copy_bytes=single_copy_bytes, part_bytes=part_bytes)

    def error_of(self, failure: RequestFailure, act: str, key: str, doubtful: bool) -> StreamStateError:
        return as_error(failure, action=_ACTIONS[act], bucket=self.bucket, key=key, doubtful=doubtful)

    def for_spark(self) -> SparkSettings:
        resolved = resolve(self._options, self.boto)
        if resolved.sts_endpoint_url.startswith("http://"):
            raise RequestFailure(ServerAnswer.REFUSED, 0, PLAIN_STS, f"{resolved.sts_endpoint_url} is not HTTPS")
        return s3a_settings(resolved, self.bucket)

    def get(self, name: str, most_bytes: int | None = None) -> GotObject:
        def send() -> GotObject:
            answer = self._requests.send_once("get_object", Key=name)
            body = _body_of(answer, self.clock, most_bytes)
            return GotObject(body, answer["ETag"], _write_id_in(answer), answer.get("LastModified"))

        return self.answered(send)

    def get_range(self, name: str, start: int, size_bytes: int) -> bytes:
        def send() -> bytes:
            wanted = f"bytes={start}-{start + size_bytes - 1}"
            return _body_of(self._requests.send_once("get_object", Key=name, Range=wanted), self.clock)

        return self.answered(send)

    def head(self, name: str, *, checksum: bool = False) -> FoundObject:
        mode = {"ChecksumMode": "ENABLED"} if checksum else {}
        return _found_in(self._requests.send("head_object", Key=name, **mode))

    def describe(self, name: str, *, checksum: bool = False) -> FoundObject:
        mode = {"ChecksumMode": "ENABLED"} if checksum else {}
        answer = self._requests.send("get_object", Key=name, **mode)
        answer["Body"].close()
        return _found_in(answer)

    def objects(self, start: str) -> Iterator[tuple[str, int, str]]:
        for page in self._pages("list_objects_v2", Prefix=start):
            for item in page.get("Contents", ()):
                yield item["Key"], item["Size"], item["ETag"]

    def folders(self, start: str) -> list[str]:
        pages = self._pages("list_objects_v2", Prefix=start, Delimiter="/")
        return [common["Prefix"] for page in pages for common in page.get("CommonPrefixes", ())]

    def put(self, name: str, body: bytes, write_id: str, condition: WriteCondition | None) -> str:
        extra: dict[str, Any] = {"Metadata": {WRITE_ID: write_id}}
        if condition is not None:
            extra |= {"IfNoneMatch": "*"} if condition.version is None else {"IfMatch": condition.version}
        return str(self._requests.send_once("put_object", Key=name, Body=body, **extra)["ETag"])

    def put_parts(self, name: str, pieces: Iterable[bytes], size_bytes: int, part_bytes: int) -> str:
        upload = Upload(self._requests, self._patient, name, self.clock.new_uuid())
        return upload.run(pieces, size_bytes, part_bytes)

    def copy(self, source: str, target: str, size_bytes: int | None) -> str:
        return self._copier.copy(source, target, size_bytes)

    def delete(self, name: str, version: str | None) -> None:
        condition = {} if version is None else {"IfMatch": version}
        try:
            self._requests.send_once("delete_object", Key=name, **condition)
        except RequestFailure as failure:
            if failure.answer is not ServerAnswer.ABSENT:
                raise

    def delete_some(self, names: Sequence[str]) -> None:
        left = list(names)

        def send() -> None:
            nonlocal left
            some = {"Objects": [{"Key": name} for name in left], "Quiet": True}
            errors = self._requests.send_once("delete_objects", Delete=some).get("Errors", ())
            left = [error["Key"] for error in errors]
            if errors:
                code = str(errors[0].get("Code", ""))
                status = 503 if code in ("InternalError", "ServiceUnavailable") else 403 if "Denied" in code else 400
                raise RequestFailure(classify(status, code), status, code, str(errors[0].get("Message", "")))

        self.answered(send)

    def left_uploads(self, start: str, before: datetime) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        marker: dict[str, str] = {}
        while True:
            page = self._requests.send("list_multipart_uploads", Prefix=start, **marker)
            found += [(one["Key"], one["UploadId"]) for one in page.get("Uploads", ()) if one["Initiated"] < before]
            marker = {name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")}
            if not page.get("IsTruncated") or not marker:
                return found

    def end_upload(self, name: str, upload_id: str) -> None:
        abort_upload(self._requests, name, upload_id)

    def _pages(self, operation: str, **request: str) -> Iterator[Mapping[str, Any]]:
        while True:
            page = self._requests.send(operation, **request)
            if page.get("IsTruncated") and not page.get("NextContinuationToken"):
                # Half a list must not be taken for the whole.
                raise RequestFailure(
                    ServerAnswer.REFUSED, 200, "NoContinuationToken", "the server does not continue listing"
                )
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]


def s3_store(
    bucket: str,
    prefix: str = "",
    options: S3Options | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    single_copy_bytes: int = SINGLE_COPY_BYTES,
    part_bytes: int = PART_BYTES,
    upload_part_bytes: int = UPLOAD_PART_BYTES,
) -> ServerStore:
    """The store of one prefix of a bucket; arguments and errors as ``S3Client`` and ``ServerStore``."""
    client = S3Client(bucket, options, clock=clock, single_copy_bytes=single_copy_bytes, part_bytes=part_bytes)
    return ServerStore(client, prefix, upload_part_bytes=upload_part_bytes)


def _body_of(answer: Mapping[str, Any], clock: Clock, most_bytes: int | None = None) -> bytes:
    body, is_whole = answer["Body"], False
    try:
        with boto_errors():
            found = read_body(body.read, int(answer.get("ContentLength") or 0), clock, most_bytes)
        is_whole = True
        return found
    finally:
        if not is_whole:
            body.close()  # and its connection: what is left of it is not waited for


def _write_id_in(answer: Mapping[str, Any]) -> str:
    return str(answer.get("Metadata", {}).get(WRITE_ID, ""))


def _found_in(answer: Mapping[str, Any]) -> FoundObject:
    size_bytes, version = int(answer["ContentLength"]), str(answer["ETag"])
    return FoundObject(
        size_bytes, version, checksum_in(answer), answer.get("LastModified"), write_id=_write_id_in(answer)
    )


# Requests of boto3.


@contextmanager
def boto_errors() -> Iterator[None]:
    """Translate boto3's errors of the block into RequestFailure."""
    try:
        yield
    except ClientError as error:
        failure = _of_response(error.response)
        if error.operation_name == "AssumeRole":  # before anything was sent to S3
            answer = failure.answer if failure.answer is ServerAnswer.REFUSED else ServerAnswer.NOT_DONE
            failure = replace(failure, answer=answer, code=f"{ROLE_PREFIX}{failure.code}")
        raise failure from error
    except SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise RequestFailure(ServerAnswer.REFUSED, 0, "CertificateError", str(error)) from error
        # Mostly, but not only, at the beginning of a connection.
        raise RequestFailure(ServerAnswer.UNKNOWN, 0, type(error).__name__, str(error)) from error
    except (ConnectionError, CredentialRetrievalError, MetadataRetrievalError, TokenRetrievalError) as error:
        # No connection (the first is botocore's class), or nothing to sign with: nothing was sent.
        raise RequestFailure(ServerAnswer.NOT_DONE, 0, type(error).__name__, str(error)) from error
    except (HTTPClientError, IncompleteReadError, FlexibleChecksumError, ResponseParserError) as error:
        raise RequestFailure(ServerAnswer.UNKNOWN, 0, type(error).__name__, str(error)) from error
    except BotoCoreError as error:
        raise RequestFailure(ServerAnswer.REFUSED, 0, type(error).__name__, str(error)) from error


@dataclass(frozen=True)
class Requests:
    """Requests about one bucket, by a client of boto3's that tries once."""

    client: Any
    bucket: str
    clock: Clock

    def send(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """One of boto3's operations, as ``until_answered``."""
        return until_answered(self.clock, partial(self.send_once, operation, **request))

    def send_once(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """The same, once; raises RequestFailure."""
        with boto_errors():
            answer: Mapping[str, Any] = getattr(self.client, operation)(Bucket=self.bucket, **request)
            return answer


def _of_response(response: Mapping[str, Any]) -> RequestFailure:
    about, details = response.get("ResponseMetadata", {}), response.get("Error", {})
    status, code = int(about.get("HTTPStatusCode", 0)), str(details.get("Code", ""))
    region = details.get("Region") or about.get("HTTPHeaders", {}).get("x-amz-bucket-region") or ""
    return RequestFailure(classify(status, code), status, code, str(details.get("Message", "")), str(region))


def make_clients(options: S3Options) -> tuple[Any, Any]:
    """A client for everything, and one with a long timeout for copies. Both try once.

    Clients are safe between threads; sessions are not, so nothing keeps the session.

    Raises:
        RequestFailure: boto3 refuses the options.
    """
    with boto_errors():
        session = _session(options)

        def client(read_timeout_seconds: float) -> Any:
            config = Config(
                connect_timeout=options.connect_timeout_seconds,
                read_timeout=read_timeout_seconds,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=POOL_CONNECTIONS,
                user_agent_extra="airflow-streamstate",
            )
            return _client(session, options, config)

        return (
            client(options.read_timeout_seconds),
            client(max(options.read_timeout_seconds, COPY_TIMEOUT_SECONDS)),
        )


def resolve(options: S3Options, client: Any = None) -> ResolvedS3:
    """The options as boto3 resolves them with its environment, files and roles: for other clients of the same bucket.

    Args:
        client: one that was made of these options; None to make one, which takes 0.1 s.

    Raises:
        RequestFailure: boto3 refuses the options.
    """
    with boto_errors():
        session = _own_session(options)
        if client is None:
            client = _client(session, options, Config(retries={"mode": "standard", "total_max_attempts": 1}))
        credentials = session.get_credentials()
        lasting = credentials is not None and credentials.method in _LASTING_CREDENTIALS
        frozen = credentials.get_frozen_credentials() if lasting else None
        # Only a virtual host in Amazon's own domain is Amazon's.
        own_endpoint = None if _is_amazon(client.meta.endpoint_url) else client.meta.endpoint_url
        return ResolvedS3(
            region=DEFAULT_REGION if client.meta.region_name == "aws-global" else client.meta.region_name,
            endpoint_url=own_endpoint,
            access_key_id=frozen.access_key if frozen else None,
            secret_access_key=frozen.secret_key if frozen else None,
            session_token=frozen.token if frozen else None,
            role=options.role,
            sts_endpoint_url="" if options.role is None else _AssumedRole(session, options).sts().meta.endpoint_url,
        )


def _session(options: S3Options) -> Any:
    own = _own_session(options)
    if options.role is None:
        return own
    core = get_session()
    core.get_component("credential_provider").insert_before("env", _AssumedRole(own, options))
    return boto3.Session(botocore_session=core, region_name=own.region_name)


def _without_traceback(record: logging.LogRecord) -> bool:
    # botocore logs each failed renewal with a traceback; the error itself reaches the caller, who reports it.
    record.exc_info = None
    return True


class _AssumedRole(CredentialProvider):  # type: ignore[misc]
    """Credentials of the options' role, asked for with those of a session, and again before they end."""

    METHOD = "assume-role"

    def __init__(self, own: Any, options: S3Options) -> None:
        super().__init__()
        logging.getLogger("botocore.credentials").addFilter(_without_traceback)
        self._own = own
        self._options = options

    def load(self) -> Any:
        source, role = self._own.get_credentials(), self._options.role
        if source is None or role is None:
            raise NoCredentialsError
        asked = {"RoleSessionName": role.session_name, "DurationSeconds": role.duration_seconds}
        fetcher = AssumeRoleCredentialFetcher(
            self.sts,
            source,
            role.arn,
            extra_args={**asked, "ExternalId": role.external_id} if role.external_id else asked,
        )
        return DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)

    def sts(self, service: str = "sts", **credentials: Any) -> Any:
        """A client of AWS STS, as botocore asks for one."""
        config = Config(
            connect_timeout=self._options.connect_timeout_seconds,
            read_timeout=self._options.read_timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        return self._own.client(
            service,
            region_name=_region(self._own, self._options) or DEFAULT_REGION,
            endpoint_url=self._sts_url(),
            config=config,
            **credentials,
        )

    def _sts_url(self) -> str | None:
        """Another server than AWS gives roles, too; None for AWS and for what boto3's own variable names."""
        url = self._options.endpoint_url
        return None if url is None or _is_amazon(url) or os.environ.get("AWS_ENDPOINT_URL_STS") else url


def _own_session(options: S3Options) -> Any:
    return options.session or boto3.Session(
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        profile_name=options.profile_name,
    )


def _client(session: Any, options: S3Options, config: Config) -> Any:
    try:
        client = session.client(
            "s3", region_name=_region(session, options), endpoint_url=options.endpoint_url, config=config
        )
    except ValueError as error:  # botocore's word for an endpoint that is no URL
        shown = re.sub(r"//[^/\s]*@", "//***@", str(error))
        raise RequestFailure(ServerAnswer.REFUSED, 0, type(error).__name__, shown) from None
    if "@" in client.meta.endpoint_url.partition("://")[2].partition("/")[0]:
        # It would show in errors, and in Spark's settings under a name that is not redacted.
        raise RequestFailure(ServerAnswer.REFUSED, 0, NAMED_ENDPOINT, "it is not shown")
    return client


def _region(session: Any, options: S3Options) -> str | None:
    # boto3 itself knows AWS_DEFAULT_REGION only.
    return options.region or os.environ.get("AWS_REGION") or session.region_name


def _is_amazon(endpoint_url: str) -> bool:
    host = endpoint_url.partition("://")[2].partition("/")[0].partition(":")[0]
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


# Uploads to S3 in parts: only the parts under way are held in memory.
#
# Nothing is at the target before the upload is completed, so a part may be sent twice. A failed upload is aborted; the
# parts of a killed process stay, unseen, until they are collected or a rule of the bucket ends them.


class Upload:
    """One upload of one object.

    Args:
        patient: requests with a long timeout, for parts and the completion.
        target: its whole key.
        write_id: of this put; reading back recognises the object by it.
    """

    def __init__(self, requests: Requests, patient: Requests, target: str, write_id: str) -> None:
        self._requests = requests
        self._patient = patient
        self._target = target
        self._write_id = write_id
        self._upload: dict[str, str] = {}

    def run(self, pieces: Iterable[bytes], size_bytes: int, part_bytes: int) -> str:
        """Put the pieces in parts of this size or larger; the entity tag. Raises as ``ServerClient.put_parts``."""
        try:
            try:
                begun = self._send("create_multipart_upload", Metadata={WRITE_ID: self._write_id}, **WHOLE_CRC32)
                self._upload = {"UploadId": begun["UploadId"]}
                parts, crc32 = self._send_parts(pieces, part_bytes_of(size_bytes, part_bytes))
            except RequestFailure as failure:
                if failure.answer is ServerAnswer.UNKNOWN:  # of a part: no reader sees it
                    raise replace(failure, answer=ServerAnswer.NOT_DONE) from failure
                raise _gone_is_not_done(failure) from failure
            return self._complete(parts, crc32)
        except BaseException:
            if self._upload:
                with suppress(RequestFailure):  # what stays costs space only
                    abort_upload(self._requests, self._target, self._upload["UploadId"])
            raise

    def _send_parts(self, pieces: Iterable[bytes], part_bytes: int) -> tuple[list[dict[str, Any]], int]:
        """Send all parts, some at a time; their answers in order, and the CRC-32 of the whole."""
        sent: list[dict[str, Any]] = []
        crc32 = 0
        under_way: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="streamstate-upload") as pool:
            try:
                for number, part in enumerate(in_parts(pieces, part_bytes), 1):
                    crc32 = zlib.crc32(part, crc32)
                    under_way.append(pool.submit(partial(self._send_part, number, part)))
                    if len(under_way) == UPLOADS_AT_ONCE:
                        sent.append(under_way.popleft().result())
                sent += [future.result() for future in under_way]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return sent, crc32

    def _send_part(self, number: int, part: bytes) -> dict[str, Any]:
        answer = self._patient.send(
            "upload_part", Key=self._target, **self._upload, PartNumber=number, Body=part, ChecksumAlgorithm="CRC32"
        )
        checksum = {"ChecksumCRC32": answer["ChecksumCRC32"]} if answer.get("ChecksumCRC32") else {}
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _complete(self, parts: list[dict[str, Any]], crc32: int) -> str:
        whole = {}
        if all("ChecksumCRC32" in part for part in parts):  # the server keeps checksums, and compares them
            whole = {
                "ChecksumType": WHOLE_CRC32["ChecksumType"],
                "ChecksumCRC32": base64.b64encode(crc32.to_bytes(4, "big")).decode(),
            }
        request = {"Key": self._target, **self._upload, "MultipartUpload": {"Parts": parts}, **whole}
        doubtful = False
        for attempt in REQUEST.begin(self._requests.clock):
            try:
                return str(self._patient.send_once("complete_multipart_upload", **request)["ETag"])
            except RequestFailure as failure:
                last = failure
            doubtful = doubtful or last.answer is ServerAnswer.UNKNOWN
            landed = self._landed() if doubtful else None
            if landed is not None:
                return landed
            if not last.answer.may_pass or attempt.is_last:
                break
        # It may land yet, or was overwritten since (Law 8).
        raise replace(last, answer=ServerAnswer.UNKNOWN) if doubtful else _gone_is_not_done(last)

    def _landed(self) -> str | None:
        """The entity tag where a completion with a lost answer has landed; else None."""
        try:
            found = self._send("head_object")
        except RequestFailure:
            return None
        return str(found["ETag"]) if _write_id_in(found) == self._write_id else None

    def _send(self, operation: str, **request: Any) -> Any:
        return self._requests.send(operation, Key=self._target, **request)


def _gone_is_not_done(failure: RequestFailure) -> RequestFailure:
    """NOT_DONE for an upload that a rule of the bucket ended in the meantime: it can start again."""
    return replace(failure, answer=ServerAnswer.NOT_DONE) if failure.code == _ENDED else failure


def abort_upload(requests: Requests, target: str, upload_id: str) -> None:
    """End an upload and free its parts; absence is success. Raises RequestFailure."""
    try:
        requests.send("abort_multipart_upload", Key=target, UploadId=upload_id)
    except RequestFailure as failure:
        if failure.code != _ENDED:
            raise


# Copies on S3, all by the server, large objects part by part. A copy may be done twice, so one with a lost answer is
# sent again. Its answer has the checksum, so that a copy costs one request.

_CHECKSUMS = ("SHA256", "CRC64NVME", "CRC32C", "CRC32", "SHA1")


class Copier:
    """The copies of one bucket; arguments as ``S3Client``, and requests with a long timeout."""

    def __init__(
        self,
        requests: Requests,
        *,
        single_copy_bytes: int = SINGLE_COPY_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._bucket = requests.bucket
        self._send = requests.send
        self._single_copy_bytes = single_copy_bytes
        self._part_bytes = part_bytes

    def copy(self, source: str, target: str, size_bytes: int | None = None) -> str:
        """As ``ServerClient.copy``; where the size is unknown, a refusal shows whether the source was too large."""
        if size_bytes is not None and size_bytes > self._single_copy_bytes:
            return self._copy_parts(source, target)
        try:
            # The standard library can compute CRC-32; by default AWS chooses another.
            answer = self._send("copy_object", CopySource=self._place(source), Key=target, ChecksumAlgorithm="CRC32")
        except RequestFailure as failure:
            if failure.answer is not ServerAnswer.REFUSED or not self._is_large(source):
                raise
            return self._copy_parts(source, target)
        return checksum_in({**answer, **answer["CopyObjectResult"]})

    def _is_large(self, source: str) -> bool:
        with suppress(RequestFailure):  # then the copy's own refusal is raised
            return int(self._send("head_object", Key=source)["ContentLength"]) > self._single_copy_bytes
        return False

    def _copy_parts(self, source: str, target: str) -> str:
        """Copy one version of the source part by part; nothing is at the target before all parts are copied."""
        found = self._send("head_object", Key=source)
        size_bytes, version = int(found["ContentLength"]), found["ETag"]
        part_bytes = part_bytes_of(size_bytes, self._part_bytes)
        # No checksum of the whole: versitygw 1.8 takes that of the source for the one of each part.
        upload = {"Key": target, "UploadId": self._send("create_multipart_upload", Key=target)["UploadId"]}

        def copy_part(number: int) -> dict[str, Any]:
            start = (number - 1) * part_bytes
            answer = self._send(
                "upload_part_copy",
                **upload,
                PartNumber=number,
                CopySource=self._place(source),
                CopySourceRange=f"bytes={start}-{min(start + part_bytes, size_bytes) - 1}",
                CopySourceIfMatch=version,
            )
            return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

        numbers = range(1, -(-size_bytes // part_bytes) + 1)
        parts: list[dict[str, Any]] = []
        try:
            parts = side_by_side([partial(copy_part, number) for number in numbers])
            self._send("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
        except RequestFailure as failure:
            if failure.code != "NoSuchUpload" or not self._has_landed(target, parts):
                with suppress(RequestFailure):  # what stays costs space only; a lifecycle rule of the bucket removes it
                    self._send("abort_multipart_upload", **upload)
                raise
        return checksum_in(self._send("head_object", Key=target, ChecksumMode="ENABLED"))

    def _has_landed(self, target: str, parts: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a completion with a lost answer has landed (Law 8): its tag is a digest of the tags of its parts."""
        try:
            digests = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in parts)
            found = self._send("head_object", Key=target)["ETag"]
        except (ValueError, RequestFailure):
            return False
        return bool(found == f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"')

    def _place(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": name}


def checksum_in(answer: Mapping[str, Any]) -> str:
    """The checksum of a whole object in an answer of S3, as ``ManyAtOnce.checksum_of`` describes it."""
    for name in _CHECKSUMS:
        value = str(answer.get(f"Checksum{name}") or "")
        # A checksum over the checksums of parts, which ends in their number, is none of the bytes.
        if value and answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in value:
            return f"{name.lower()}:{base64.b64decode(value).hex()}"
    tag = str(answer.get("ETag", "")).strip('"')
    is_encrypted = "SSECustomerAlgorithm" in answer or str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    is_digest = len(tag) == 32 and not set(tag) - set("0123456789abcdef") and not is_encrypted
    return f"{'md5' if is_digest else 'etag'}:{tag}"
