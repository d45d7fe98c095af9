"""boto3's clients and errors: the only module that knows it.

The clients try once: every repetition is the store's own, which knows whether a request may be sent twice, waits by
its clock, and reads back what may have landed (Law 8). boto3's own retries would hide all three.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from airflow_streamstate.clock import Clock
from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.options import ResolvedS3, S3Options
from airflow_streamstate.store.s3_errors import NAMED_ENDPOINT, classify
from airflow_streamstate.store.tries import until_answered

COPY_TIMEOUT_SECONDS = 300.0
POOL_CONNECTIONS = 32
DEFAULT_REGION = "us-east-1"
_LASTING_CREDENTIALS = ("explicit", "env", "shared-credentials-file", "config-file")
"""How boto3 calls credentials that do not end by themselves."""


@contextmanager
def boto_errors() -> Iterator[None]:
    """The one place where boto3's errors become the room's own; callers decide what an answer means for them."""
    try:
        yield
    except ClientError as error:
        raise _of_response(error.response) from error
    except SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise RequestFailure(Answer.REFUSED, 0, "CertificateError", str(error)) from error
        # At its beginning as a rule, but not only there.
        raise RequestFailure(Answer.UNKNOWN, 0, type(error).__name__, str(error)) from error
    except (ConnectionError, CredentialRetrievalError, MetadataRetrievalError, TokenRetrievalError) as error:
        # No connection was made (the first is botocore's), or nothing to sign with: nothing was sent.
        raise RequestFailure(Answer.NOT_DONE, 0, type(error).__name__, str(error)) from error
    except (HTTPClientError, IncompleteReadError, FlexibleChecksumError, ResponseParserError) as error:
        raise RequestFailure(Answer.UNKNOWN, 0, type(error).__name__, str(error)) from error
    except BotoCoreError as error:
        raise RequestFailure(Answer.REFUSED, 0, type(error).__name__, str(error)) from error


@dataclass(frozen=True)
class Requests:
    """Requests about one bucket.

    Attributes:
        client: boto3's, which tries once.
        bucket: its name.
        clock: for pauses between tries.
    """

    client: Any
    bucket: str
    clock: Clock

    def send(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """One of boto3's operations, until there is an answer that lasts; raises RequestFailure."""
        return until_answered(self.clock, partial(self.send_once, operation, **request))

    def send_once(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """The same, with whatever answer; raises RequestFailure."""
        with boto_errors():
            answer: Mapping[str, Any] = getattr(self.client, operation)(Bucket=self.bucket, **request)
            return answer


def _of_response(response: Mapping[str, Any]) -> RequestFailure:
    about, details = response.get("ResponseMetadata", {}), response.get("Error", {})
    status, code = int(about.get("HTTPStatusCode", 0)), str(details.get("Code", ""))
    region = details.get("Region") or about.get("HTTPHeaders", {}).get("x-amz-bucket-region") or ""
    return RequestFailure(classify(status, code), status, code, str(details.get("Message", "")), str(region))


def make_clients(options: S3Options) -> tuple[Any, Any]:
    """A client for everything, and one for copies, which take their time. Both try once.

    Clients are safe between threads; sessions are not, so nothing keeps the session.

    Raises:
        RequestFailure: boto3 takes the options for wrong.
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


def resolve(options: S3Options) -> ResolvedS3:
    """What boto3 makes of the options, its environment, files and roles: for others who have to reach the same place.

    Raises:
        RequestFailure: boto3 takes the options for wrong.
    """
    with boto_errors():
        session = _session(options)
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
        )


def _session(options: S3Options) -> Any:
    return options.session or boto3.Session(
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        profile_name=options.profile_name,
    )


def _client(session: Any, options: S3Options, config: Config) -> Any:
    # boto3 itself knows AWS_DEFAULT_REGION only.
    region = options.region or os.environ.get("AWS_REGION") or session.region_name
    try:
        client = session.client("s3", region_name=region, endpoint_url=options.endpoint_url, config=config)
    except ValueError as error:  # botocore's word for an endpoint that is no URL
        shown = re.sub(r"//[^/\s]*@", "//***@", str(error))
        raise RequestFailure(Answer.REFUSED, 0, type(error).__name__, shown) from None
    if "@" in client.meta.endpoint_url.partition("://")[2].partition("/")[0]:
        # It would be in errors, and in Spark's settings under a name that nobody takes for a secret's.
        raise RequestFailure(Answer.REFUSED, 0, NAMED_ENDPOINT, "it is not shown")
    return client


def _is_amazon(endpoint_url: str) -> bool:
    host = endpoint_url.partition("://")[2].partition("/")[0].partition(":")[0]
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
