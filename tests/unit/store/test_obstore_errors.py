"""What answers of GCS and Azure Blob mean; each row as the client library, or the server, reported it."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, StoreRefusedError, UnavailableError
from airflow_streamstate.store.obstore import as_error, classify, failure_in
from airflow_streamstate.store.server import RequestFailure, ServerAnswer

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
        (412, "ConditionNotMet", ServerAnswer.PRECONDITION),
        (409, "BlobAlreadyExists", ServerAnswer.PRECONDITION),
        (409, "conflict", ServerAnswer.BUSY),
        (404, "NoSuchKey", ServerAnswer.ABSENT),
        (404, "BlobNotFound", ServerAnswer.ABSENT),
        (404, "", ServerAnswer.ABSENT),
        (404, "NoSuchBucket", ServerAnswer.REFUSED),
        (404, "ContainerNotFound", ServerAnswer.REFUSED),
        (409, "ContainerBeingDeleted", ServerAnswer.REFUSED),
        (429, "", ServerAnswer.NOT_DONE),
        (503, "ServerBusy", ServerAnswer.NOT_DONE),
        (503, "", ServerAnswer.UNKNOWN),
        (500, "InternalError", ServerAnswer.UNKNOWN),
        (408, "", ServerAnswer.UNKNOWN),
        (501, "NotImplemented", ServerAnswer.REFUSED),
        (403, "AuthenticationFailed", ServerAnswer.REFUSED),
        (400, "", ServerAnswer.REFUSED),
        (400, "InvalidBlockList", ServerAnswer.BUSY),
    ],
)
def test_each_status_has_its_meaning(status: int, code: str, answer: ServerAnswer) -> None:
    """From the server's own words, and the same from obstore's error that repeats them."""
    assert classify(status, code) is answer
    if code:
        found = failure_in("GenericError", answered(status, code))
        assert (found.answer, found.status, found.code, found.reason) == (answer, status, code, "It is so.")


@pytest.mark.parametrize(
    ("kind", "text", "answer", "code"),
    [
        ("AlreadyExistsError", answered(412, "PreconditionFailed"), ServerAnswer.PRECONDITION, "PreconditionFailed"),
        ("PreconditionError", "no", ServerAnswer.PRECONDITION, "PreconditionError"),
        ("FileNotFoundError", "Object at location a not found", ServerAnswer.ABSENT, "404"),
        ("GenericError", broken("Connect"), ServerAnswer.NOT_DONE, "ConnectError"),
        ("GenericError", broken("Timeout"), ServerAnswer.UNKNOWN, "TimeoutError"),
        ("GenericError", broken("Request"), ServerAnswer.UNKNOWN, "RequestError"),
        ("GenericError", "Generic: HTTP error: request or response body error", ServerAnswer.UNKNOWN, "HttpError"),
        ("GenericError", f"Error performing token request: GET {ADDRESS}", ServerAnswer.NOT_DONE, "CredentialsAway"),
        ("UnauthenticatedError", "lacked credentials", ServerAnswer.REFUSED, "NoCredentials"),
        ("GenericError", "Invalid Access Key", ServerAnswer.REFUSED, "GenericError"),
    ],
)
def test_what_never_reached_the_server_is_told_from_what_may_have(
    kind: str, text: str, answer: ServerAnswer, code: str
) -> None:
    """Only a connection that was never made is "not done"; whatever else breaks may have landed. (Law 8)"""
    found = failure_in(kind, text)
    assert (found.answer, found.code) == (answer, code)
    assert "hidden" not in found.reason


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (
            RequestFailure(ServerAnswer.REFUSED, 404, "NoSuchBucket", ""),
            StoreRefusedError,
            "no such bucket or container",
        ),
        (RequestFailure(ServerAnswer.REFUSED, 0, "NoCredentials", ""), StoreRefusedError, "no credentials for GCS"),
        (RequestFailure(ServerAnswer.REFUSED, 403, "403", ""), StoreRefusedError, "denied"),
        (RequestFailure(ServerAnswer.REFUSED, 401, "401", ""), StoreRefusedError, "does not accept these credentials"),
        (RequestFailure(ServerAnswer.REFUSED, 0, "CertificateError", ""), InvalidRequestError, "certificate"),
        (RequestFailure(ServerAnswer.NOT_DONE, 429, "429", ""), UnavailableError, "fewer requests"),
        (RequestFailure(ServerAnswer.NOT_DONE, 0, "ConnectError", ""), UnavailableError, "cannot be reached"),
        (RequestFailure(ServerAnswer.NOT_DONE, 0, "CredentialsAway", ""), UnavailableError, "could not be fetched"),
        (RequestFailure(ServerAnswer.UNKNOWN, 0, "TimeoutError", ""), UnavailableError, "did not answer in time"),
        (RequestFailure(ServerAnswer.UNKNOWN, 500, "500", ""), UnavailableError, "cannot serve"),
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
