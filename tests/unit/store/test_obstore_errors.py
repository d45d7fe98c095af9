"""What answers of GCS and Azure Blob mean; each row as the client library, or the server, said it."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, StoreRefusedError, UnavailableError
from airflow_streamstate.store.obstore_errors import as_error, classify, failure_in
from airflow_streamstate.store.server import Answer, RequestFailure

ADDRESS = "https://account.blob.core.windows.net/streams/a?sig=hidden"


def answered(status: int, code: str) -> str:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>It is so.</Message></Error>'
    return (
        f"Object at a: Error performing PUT {ADDRESS} in 4ms - Server returned non-2xx status code: {status} X: {body}"
    )


def broken(kind: str) -> str:
    return (
        f"Generic GCS error: Error performing PUT {ADDRESS} in 4ms - HTTP error: error sending request"
        f"\n\nDebug source:\nHttp(\n HttpError {{\n   kind: {kind},\n source: {ADDRESS} }})"
    )


@pytest.mark.parametrize(
    ("status", "code", "answer"),
    [
        (412, "ConditionNotMet", Answer.PRECONDITION),
        (409, "BlobAlreadyExists", Answer.PRECONDITION),
        (409, "conflict", Answer.BUSY),
        (404, "NoSuchKey", Answer.ABSENT),
        (404, "BlobNotFound", Answer.ABSENT),
        (404, "", Answer.ABSENT),
        (404, "NoSuchBucket", Answer.REFUSED),
        (404, "ContainerNotFound", Answer.REFUSED),
        (409, "ContainerBeingDeleted", Answer.REFUSED),
        (429, "", Answer.NOT_DONE),
        (503, "ServerBusy", Answer.NOT_DONE),
        (503, "", Answer.UNKNOWN),
        (500, "InternalError", Answer.UNKNOWN),
        (408, "", Answer.UNKNOWN),
        (501, "NotImplemented", Answer.REFUSED),
        (403, "AuthenticationFailed", Answer.REFUSED),
        (400, "", Answer.REFUSED),
        (400, "InvalidBlockList", Answer.BUSY),
    ],
)
def test_each_status_has_its_meaning(status: int, code: str, answer: Answer) -> None:
    """From the server's own words, and the same from obstore's error that repeats them."""
    assert classify(status, code) is answer
    if code:
        found = failure_in("GenericError", answered(status, code))
        assert (found.answer, found.status, found.code, found.reason) == (answer, status, code, "It is so.")


@pytest.mark.parametrize(
    ("kind", "text", "answer", "code"),
    [
        ("AlreadyExistsError", answered(412, "PreconditionFailed"), Answer.PRECONDITION, "PreconditionFailed"),
        ("PreconditionError", "no", Answer.PRECONDITION, "PreconditionError"),
        ("FileNotFoundError", "Object at location a not found", Answer.ABSENT, "404"),
        ("GenericError", broken("Connect"), Answer.NOT_DONE, "ConnectError"),
        ("GenericError", broken("Timeout"), Answer.UNKNOWN, "TimeoutError"),
        ("GenericError", broken("Request"), Answer.UNKNOWN, "RequestError"),
        ("GenericError", "Generic: HTTP error: request or response body error", Answer.UNKNOWN, "HttpError"),
        ("GenericError", f"Error performing token request: GET {ADDRESS}", Answer.NOT_DONE, "CredentialsAway"),
        ("UnauthenticatedError", "lacked credentials", Answer.REFUSED, "NoCredentials"),
        ("GenericError", "Invalid Access Key", Answer.REFUSED, "GenericError"),
    ],
)
def test_what_never_reached_the_server_is_told_from_what_may_have(
    kind: str, text: str, answer: Answer, code: str
) -> None:
    """Only a connection that was never made is "not done"; whatever else breaks may have landed. (Law 8)"""
    found = failure_in(kind, text)
    assert (found.answer, found.code) == (answer, code)
    assert "hidden" not in found.reason


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (RequestFailure(Answer.REFUSED, 404, "NoSuchBucket", ""), StoreRefusedError, "no such bucket or container"),
        (RequestFailure(Answer.REFUSED, 0, "NoCredentials", ""), StoreRefusedError, "no credentials for GCS"),
        (RequestFailure(Answer.REFUSED, 403, "403", ""), StoreRefusedError, "denied"),
        (RequestFailure(Answer.REFUSED, 401, "401", ""), StoreRefusedError, "does not accept these credentials"),
        (RequestFailure(Answer.REFUSED, 0, "CertificateError", ""), InvalidRequestError, "certificate"),
        (RequestFailure(Answer.NOT_DONE, 429, "429", ""), UnavailableError, "fewer requests"),
        (RequestFailure(Answer.NOT_DONE, 0, "ConnectError", ""), UnavailableError, "cannot be reached"),
        (RequestFailure(Answer.NOT_DONE, 0, "CredentialsAway", ""), UnavailableError, "could not be fetched"),
        (RequestFailure(Answer.UNKNOWN, 0, "TimeoutError", ""), UnavailableError, "did not answer in time"),
        (RequestFailure(Answer.UNKNOWN, 500, "500", ""), UnavailableError, "cannot serve"),
    ],
)
def test_each_failure_says_what_to_do(failure: RequestFailure, kind: type[Exception], words: str) -> None:
    """A sentence of fact, the place and the key, and a next step; of a write that may have landed, only that."""
    error = as_error(failure, service="GCS", action="get", place="gs://b", key="k")
    assert type(error) is kind
    assert words in error.message
    assert error.next_step
    assert error.context["place"] == "gs://b"
    doubtful = as_error(failure, service="GCS", action="put", place="gs://b", key="k", doubtful=True)
    assert isinstance(doubtful, OutcomeUnknownError)
