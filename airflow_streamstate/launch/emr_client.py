"""AWS clients and options of the EMR launchers; with ``store.s3`` the only module that imports boto3."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import boto3
import urllib3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
)

from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    MalformedMessageError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.launch.interface import read_options
from airflow_streamstate.launch.rest import ANSWER_BYTES, TooSlowError, shown, within

if TYPE_CHECKING:
    from typing_extensions import Self


CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
"""For a connection, and for the next byte: boto3 has no limit for a whole answer, ``asked`` has."""
CALL_SECONDS = 25.0
OBJECT_BYTES = 1 << 16
"""Of one of our own objects."""
LISTED_AT_MOST = 10_000
_SETTINGS = (NoCredentialsError, NoRegionError, ParamValidationError, PartialCredentialsError, ProfileNotFound)
_PASSING = ("Throttl", "TooManyRequests", "RequestLimit", "SlowDown", "RequestTimeout", "ServiceUnavailable")
_CHUNK = 1 << 16
_SLOWEST_BYTES_PER_SECOND = 50_000
Answer = TypeVar("Answer")


def new_session(profile: str, region: str) -> Any:
    """A ``boto3.Session`` of boto3's own chain; "" for what the chain finds."""
    with translated("session"):
        return boto3.Session(profile_name=profile or None, region_name=region or None)


def new_client(session: Any, service: str, region: str, endpoint_url: str) -> Any:
    """A client of one service, which tries three times, for seconds."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    with translated(service):
        client = session.client(service, region_name=region or None, endpoint_url=endpoint_url or None, config=config)
    # botocore has no setting for the size of an answer, and its events come before and after it is read.
    client._endpoint.http_session = _Limited(client._endpoint.http_session)
    return client


class _Limited:
    """botocore's session of HTTP, of whose answers only so much is read. Objects of S3 are read by their reader."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        is_streamed, request.stream_output = request.stream_output, True
        answer = self._session.send(request)
        if is_streamed and answer.status_code < 300:
            return answer
        body = bytearray()
        try:
            for chunk in answer.raw.stream(_CHUNK):
                body += chunk
                if len(body) > ANSWER_BYTES:
                    answer.raw.close()
                    raise HTTPClientError(error=f"its answer has more than {ANSWER_BYTES} bytes")
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise HTTPClientError(error=error) from None
        answer._content = bytes(body)
        return answer

    def close(self) -> None:
        self._session.close()


def asked(act: str, call: Callable[[], Answer], *, starts: bool = False, seconds: float | None = None) -> Answer:
    """What a call of boto3 returns; it must end within that time.

    Args:
        act, starts: as of ``translated``.
        seconds: None for CALL_SECONDS.
    """
    with translated(act, starts=starts):
        return within(CALL_SECONDS if seconds is None else seconds, call)


@contextmanager
def translated(act: str, *, starts: bool = False) -> Iterator[None]:
    """boto3's errors as ours.

    Args:
        act: the operation, human-readable.
        starts: whether it starts something, so that a lost answer leaves open whether it did.
    """
    try:
        yield
    except _SETTINGS as error:
        raise InvalidRequestError(
            "boto3 refuses these settings of AWS",
            operation=act,
            reason=_one_line(error),
            next_step="Check region, profile and credentials: `aws sts get-caller-identity`.",
        ) from None
    except ClientError as error:
        raise _of_answer(error, act, starts=starts) from None
    except TooSlowError as error:
        if starts:
            raise _open(act, str(error)) from None
        raise UnavailableError(
            "AWS did not answer", operation=act, reason=str(error), next_step="Do the same again later."
        ) from None
    except BotoCoreError as error:
        if starts and isinstance(error, ReadTimeoutError | ConnectionClosedError):
            raise _open(act, _one_line(error)) from None
        raise UnavailableError(
            "AWS did not answer", operation=act, reason=_one_line(error), next_step="Do the same again later."
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"the answer lacks what it should have ({type(error).__name__})"
        if starts:
            raise _open(act, reason) from None
        raise UnavailableError(
            "a server answers otherwise than AWS does",
            operation=act,
            reason=reason,
            next_step="Check the option endpoint_url.",
        ) from None


def _of_answer(error: ClientError, act: str, *, starts: bool) -> StreamStateError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    if code == "ConflictException":
        return ConflictError("AWS has another request with this token", operation=act)
    if status == 429 or any(word in code for word in _PASSING):
        return UnavailableError("AWS asks to wait", operation=act, code=code, next_step="Do the same again later.")
    if status >= 500:
        return _open(act, code) if starts else UnavailableError("AWS failed", operation=act, code=code)
    return InvalidRequestError(
        "AWS refuses this",
        operation=act,
        code=code,
        reason=_one_line(error),
        next_step="Correct the option, or the policy of the role that asks.",
    )


def _open(act: str, reason: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the answer of AWS was lost", operation=act, reason=reason, next_step="Launch again with the same key."
    )


def _one_line(error: Exception) -> str:
    answer = getattr(error, "response", None)
    return shown(answer.get("Error", {}).get("Message", "") if isinstance(answer, dict) else error) or (
        type(error).__name__
    )


class Objects:
    """The objects below one URI, by their names there.

    Args:
        client: of S3.
        uri: ``s3://bucket/prefix``, with or without a slash at its end.
    """

    def __init__(self, client: Any, uri: str) -> None:
        self._client = client
        self.bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""

    def check(self) -> None:
        """Ask for the bucket.

        Raises:
            InvalidRequestError: it is not there, or not for us.
        """
        asked("HeadBucket", lambda: self._client.head_bucket(Bucket=self.bucket))

    def create(self, name: str, body: bytes) -> bool:
        """Write an object if it does not exist; returns whether it was written."""

        def put() -> bool:
            try:
                self._client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=body, IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                    return False
                raise
            return True

        try:
            return asked("PutObject", put, seconds=CALL_SECONDS + len(body) / _SLOWEST_BYTES_PER_SECOND)
        except ConflictError:
            return False

    def read(self, name: str) -> tuple[bytes, datetime] | None:
        """The content of one of our own objects, and when it was written; None if it does not exist.

        Raises:
            MalformedMessageError: it is larger than any that a launcher writes.
        """

        def get() -> tuple[bytes, datetime] | None:
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + name)
            except self._client.exceptions.NoSuchKey:
                return None
            with closing(answer["Body"]) as body:
                return body.read(OBJECT_BYTES + 1), answer["LastModified"]

        found = asked("GetObject", get)
        if found is not None and len(found[0]) > OBJECT_BYTES:
            raise MalformedMessageError("an object of a launch is too large", key=name, most_bytes=OBJECT_BYTES)
        return found

    def names(self) -> list[tuple[str, datetime]]:
        """All objects, by name, with the time of each; the first ten thousand."""

        def listed() -> list[tuple[str, datetime]]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
            found = (
                (item["Key"].removeprefix(self.prefix), item["LastModified"])
                for page in pages
                for item in page.get("Contents", ())
            )
            return list(itertools.islice(found, LISTED_AT_MOST))

        return asked("ListObjectsV2", listed)

    def delete(self, name: str) -> None:
        asked("DeleteObject", lambda: self._client.delete_object(Bucket=self.bucket, Key=self.prefix + name))

    def tail(self, name: str, tail_bytes: int, seconds: float | None = None) -> bytes:
        """The last bytes of what an object holds, unpacked if its name ends with ``.gz``."""

        def read() -> bytes:
            with closing(self._client.get_object(Bucket=self.bucket, Key=self.prefix + name)["Body"]) as body:
                kept = b""
                try:
                    for chunk in _unpacked(body.iter_chunks(_CHUNK), is_packed=name.endswith(".gz")):
                        kept = (kept + chunk)[-tail_bytes:]
                except zlib.error:
                    return kept  # EMR is still writing it
                return kept

        return asked("GetObject", read, seconds=seconds)


def _unpacked(chunks: Iterable[bytes], *, is_packed: bool) -> Iterator[bytes]:
    """The chunks as they are, or unpacked in pieces of limited size: a few bytes may unpack to gigabytes."""
    if not is_packed:
        yield from chunks
        return
    packed = zlib.decompressobj(wbits=31)
    for chunk in chunks:
        rest = chunk
        while rest:
            yield packed.decompress(rest, _CHUNK)
            rest = packed.unconsumed_tail


# The options of the launchers for EMR: where job runs are started, and where their files and logs are. No secrets.

_ID = (re.compile(r"[0-9a-z]{1,64}"), "an id of lower-case letters and digits, as the AWS console shows it")
_S3 = (re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.*()=/-]*)?"), "s3://bucket/prefix")
_ROLE = (
    re.compile(r"arn:aws[a-zA-Z0-9-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+"),
    "the ARN of a role: arn:aws:iam::ACCOUNT:role/NAME",
)
_PLAIN = (re.compile(r"[\w+=,.@-]{1,128}"), "a name without blanks")
_URL = (re.compile(r"https?://[^\s?#@]+"), "a URL without a login: https://host")
_RELEASE = (re.compile(r"[A-Za-z0-9._/-]{1,64}"), "a release of EMR: emr-7.9.0-latest")
_SHAPES = {
    "application_id": _ID,
    "virtual_cluster_id": _ID,
    "execution_role_arn": _ROLE,
    "launch_uri": _S3,
    "log_uri": _S3,
    "region": _PLAIN,
    "profile": _PLAIN,
    "endpoint_url": _URL,
    "release_label": _RELEASE,
}


@dataclass(frozen=True, kw_only=True)
class EmrOptions:
    """What both launchers need.

    Attributes:
        execution_role_arn: the role with whose rights a driver works.
        launch_uri: where the files of drivers are put, for the execution role to read.
        log_uri: where EMR puts logs; "" for ``logs`` below ``launch_uri``.
        region, profile: "" for boto3's own chain, or what the Airflow connection has.
        endpoint_url: another server than AWS, for tests.
    """

    required: ClassVar[tuple[str, ...]] = ("execution_role_arn", "launch_uri")
    execution_role_arn: str = ""
    launch_uri: str = ""
    log_uri: str = ""
    region: str = ""
    profile: str = ""
    endpoint_url: str = ""

    @classmethod
    def from_options(cls, raw: Mapping[str, object]) -> Self:
        """The options of plain JSON.

        Raises:
            InvalidRequestError: a name or a value that they do not have, or one is missing.
        """
        values = read_options("emr", raw, [item.name for item in fields(cls)])
        for name, value in values.items():
            shape, words = _SHAPES[name]
            if not isinstance(value, str) or (value and not shape.fullmatch(value)):
                raise InvalidRequestError(
                    "this option of the launcher for EMR has no such value", option=name, next_step=f"Give {words}."
                )
        missing = [name for name in cls.required if not values.get(name)]
        if missing:
            raise InvalidRequestError(
                "the launcher for EMR lacks an option",
                missing=", ".join(missing),
                next_step=" ".join(f"--launcher-option {name}=…" for name in missing),
            )
        return cls(**values)  # type: ignore[arg-type]  # all are texts, as checked

    @property
    def logs_uri(self) -> str:
        """Where logs are, without a slash at its end."""
        return (self.log_uri or f"{self.launch_uri.rstrip('/')}/logs").rstrip("/")


@dataclass(frozen=True, kw_only=True)
class EmrServerlessOptions(EmrOptions):
    """As ``EmrOptions``, and the application of EMR Serverless."""

    required = ("application_id", *EmrOptions.required)
    application_id: str = ""


@dataclass(frozen=True, kw_only=True)
class EmrOnEksOptions(EmrOptions):
    """As ``EmrOptions``, and the virtual cluster of EMR on EKS with the release that is to run in it."""

    required = ("virtual_cluster_id", "release_label", *EmrOptions.required)
    virtual_cluster_id: str = ""
    release_label: str = ""
