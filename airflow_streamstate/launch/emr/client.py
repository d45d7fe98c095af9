"""AWS for launchers: clients, objects on S3, and errors as ours. With ``store.s3`` the only module that knows boto3."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
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
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)

CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
_SETTINGS = (NoCredentialsError, NoRegionError, ParamValidationError, PartialCredentialsError, ProfileNotFound)
_PASSING = ("Throttl", "TooManyRequests", "RequestLimit", "SlowDown", "RequestTimeout", "ServiceUnavailable")
_CHUNK = 1 << 16


def new_session(profile: str, region: str) -> Any:
    """A ``boto3.Session`` of boto3's own chain; "" for what the chain says."""
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
        return session.client(service, region_name=region or None, endpoint_url=endpoint_url or None, config=config)


@contextmanager
def translated(act: str, *, starts: bool = False) -> Iterator[None]:
    """boto3's errors as ours.

    Args:
        act: the operation, for people.
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
    except BotoCoreError as error:
        if starts and isinstance(error, ReadTimeoutError | ConnectionClosedError):
            raise _open(act, _one_line(error)) from None
        raise UnavailableError(
            "AWS did not answer", operation=act, reason=_one_line(error), next_step="Do the same again later."
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
    text = str(answer.get("Error", {}).get("Message", "")) if isinstance(answer, dict) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__


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
        with translated("HeadBucket"):
            self._client.head_bucket(Bucket=self.bucket)

    def create(self, name: str, body: bytes) -> bool:
        """Write an object if there is none; whether there was none."""
        try:
            with translated("PutObject"):
                try:
                    self._client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=body, IfNoneMatch="*")
                except ClientError as error:
                    if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                        return False
                    raise
        except ConflictError:
            return False
        return True

    def read(self, name: str) -> tuple[bytes, datetime] | None:
        """The content of an object, and when it was written; None where there is none."""
        with translated("GetObject"):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + name)
            except self._client.exceptions.NoSuchKey:
                return None
            return answer["Body"].read(), answer["LastModified"]

    def names(self) -> list[tuple[str, datetime]]:
        """All objects, by name, with the time of each."""
        with translated("ListObjectsV2"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
            return [
                (item["Key"].removeprefix(self.prefix), item["LastModified"])
                for page in pages
                for item in page.get("Contents", ())
            ]

    def delete(self, name: str) -> None:
        with translated("DeleteObject"):
            self._client.delete_object(Bucket=self.bucket, Key=self.prefix + name)

    def tail(self, name: str, tail_bytes: int) -> bytes:
        """The last bytes of what an object holds, unpacked if its name ends with ``.gz``."""
        with translated("GetObject"):
            body = self._client.get_object(Bucket=self.bucket, Key=self.prefix + name)["Body"]
            unpack = zlib.decompressobj(wbits=31).decompress if name.endswith(".gz") else bytes
            kept = b""
            try:
                for chunk in body.iter_chunks(_CHUNK):
                    kept = (kept + unpack(chunk))[-tail_bytes:]
            except zlib.error:
                return kept  # EMR is still writing it
            return kept
