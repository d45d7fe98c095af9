"""What each answer of S3 means."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store.s3_errors import as_error, classify
from airflow_streamstate.store.server import RequestFailure, ServerAnswer

ANSWERS = [
    (404, "NoSuchKey", ServerAnswer.ABSENT),
    (404, "404", ServerAnswer.ABSENT),
    (404, "NoSuchBucket", ServerAnswer.REFUSED),
    (412, "PreconditionFailed", ServerAnswer.PRECONDITION),
    (409, "ConditionalRequestConflict", ServerAnswer.BUSY),
    (409, "OperationAborted", ServerAnswer.BUSY),
    (409, "BucketAlreadyExists", ServerAnswer.REFUSED),
    (429, "TooManyRequests", ServerAnswer.NOT_DONE),
    (503, "SlowDown", ServerAnswer.NOT_DONE),
    (507, "XMinioStorageFull", ServerAnswer.NOT_DONE),
    (500, "InternalError", ServerAnswer.UNKNOWN),
    (502, "", ServerAnswer.UNKNOWN),
    (503, "ServiceUnavailable", ServerAnswer.UNKNOWN),
    (400, "RequestTimeout", ServerAnswer.UNKNOWN),
    (408, "", ServerAnswer.UNKNOWN),
    (503, "SlowDownWrite", ServerAnswer.NOT_DONE),
    (501, "NotImplemented", ServerAnswer.REFUSED),
    (404, "XAdminUserNotFound", ServerAnswer.REFUSED),
    (409, "ObjectParentIsFile", ServerAnswer.REFUSED),
    (404, "NoSuchUpload", ServerAnswer.REFUSED),
    (400, "InvalidRequest", ServerAnswer.REFUSED),
    (403, "AccessDenied", ServerAnswer.REFUSED),
    (403, "403", ServerAnswer.REFUSED),
    (301, "PermanentRedirect", ServerAnswer.REFUSED),
]


@pytest.mark.parametrize(("status", "code", "answer"), ANSWERS)
def test_each_answer_has_one_meaning(status: int, code: str, answer: ServerAnswer) -> None:
    """Absent, lost, busy, not done, unknown and refused are distinguished by status and code."""
    assert classify(status, code) is answer


@pytest.mark.parametrize("answer", [answer for answer in ServerAnswer if answer is not ServerAnswer.REFUSED])
def test_what_is_not_refused_may_be_tried_again(answer: ServerAnswer) -> None:
    """Every answer that is no refusal ends as unavailable, or as unknown where a write may have landed. (Law 8)"""
    failure = RequestFailure(answer, 500, "Code", "words")
    assert type(as_error(failure, action="PutObject", bucket="b", key="k")) is UnavailableError
    assert type(as_error(failure, action="PutObject", bucket="b", key="k", doubtful=True)) is OutcomeUnknownError


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "NoSuchBucket", "there is no such bucket"),
        (400, "ExpiredToken", "the credentials for S3 have expired"),
        (403, "ExpiredToken", "the credentials for S3 have expired"),
        (0, "NoCredentialsError", "there are no credentials for S3"),
        (403, "AccessDenied", "S3 denied the request"),
        (403, "SignatureDoesNotMatch", "S3 did not accept the signature"),
        (403, "InvalidAccessKeyId", "S3 does not know this access key"),
        (404, "XAdminUserNotFound", "S3 does not know this access key"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is not that of S3"),
        (403, "InvalidObjectState", "the object was moved to an archive"),
        (400, "KMS.DisabledException", "the bucket's encryption key cannot be used"),
        (0, "ProfileNotFound", "there is no such AWS profile"),
        (0, "CertificateError", "the certificate of the S3 server is not trusted"),
        (409, "ObjectParentIsFile", "an object and a folder cannot have the same name on this server"),
        (501, "NotImplemented", "this server does not know the request"),
        (301, "301", "the bucket is in another region"),
        (400, "AuthorizationHeaderMalformed", "the bucket is in another region"),
    ],
)
def test_a_refusal_says_what_to_mend(status: int, code: str, words: str) -> None:
    """The refusals that have their own remedy name it, with bucket, action and key."""
    error: StreamStateError = as_error(
        RequestFailure(ServerAnswer.REFUSED, status, code, "words"), action="PutObject", bucket="b", key="k"
    )
    # A whole bucket that is refused, or is gone, may come back while a process runs.
    is_of_the_bucket = status in (403, 404) or code in ("ExpiredToken", "NoCredentialsError")
    is_refused_whole = is_of_the_bucket and code != "InvalidObjectState"
    assert type(error) is (StoreRefusedError if is_refused_whole else InvalidRequestError)
    assert error.message == words
    assert error.next_step
    assert error.context == {"action": "PutObject", "bucket": "b", "key": "k", "code": code, "reason": "words"}


def test_another_refusal_keeps_the_servers_words() -> None:
    """A refusal that is not in the table has the server's own code and words."""
    error = as_error(
        RequestFailure(ServerAnswer.REFUSED, 400, "Odd", "very odd"), action="PutObject", bucket="b", key="k"
    )
    assert 'code=Odd reason="very odd"' in str(error)


@pytest.mark.parametrize(
    ("answer", "status", "code", "words"),
    [
        (ServerAnswer.NOT_DONE, 503, "SlowDown", "S3 asks for fewer requests"),
        (ServerAnswer.NOT_DONE, 429, "", "S3 asks for fewer requests"),
        (ServerAnswer.NOT_DONE, 507, "XMinioStorageFull", "the S3 server is full"),
        (ServerAnswer.UNKNOWN, 0, "ReadTimeoutError", "S3 did not answer in time"),
        (ServerAnswer.NOT_DONE, 0, "ConnectTimeoutError", "S3 did not answer in time"),
        (ServerAnswer.UNKNOWN, 400, "RequestTimeout", "S3 did not answer in time"),
        (ServerAnswer.UNKNOWN, 0, "ConnectionClosedError", "S3 cannot be reached"),
        (ServerAnswer.NOT_DONE, 0, "EndpointConnectionError", "S3 cannot be reached"),
        (ServerAnswer.UNKNOWN, 500, "InternalError", "S3 cannot serve the request now"),
        (ServerAnswer.NOT_DONE, 0, "CredentialRetrievalError", "the credentials for S3 could not be fetched"),
        (ServerAnswer.PRECONDITION, 412, "PreconditionFailed", "the object changed while it was copied"),
    ],
)
def test_an_obstacle_says_what_to_look_at(answer: ServerAnswer, status: int, code: str, words: str) -> None:
    """Temporary refusals are distinguished, each with its next step."""
    error = as_error(RequestFailure(answer, status, code, "words"), action="GetObject", bucket="b", key="k")
    assert type(error) is UnavailableError
    assert error.message == words
    assert error.next_step


def test_the_buckets_own_region_is_told() -> None:
    """A redirect that names the region is reported with it."""
    failure = RequestFailure(ServerAnswer.REFUSED, 301, "PermanentRedirect", "words", "eu-west-1")
    assert as_error(failure, action="GetObject", bucket="b", key="k").context["region"] == "eu-west-1"
