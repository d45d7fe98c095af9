"""The meaning of answers of GCS and Azure Blob, decided from plain values, without a client library."""

from __future__ import annotations

import re
from typing import Any

from airflow_streamstate.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store.server import Answer, RequestFailure

NO_CREDENTIALS = "NoCredentials"
CREDENTIALS_AWAY = "CredentialsAway"
BAD_KEY = "BadKey"
NO_KEY_FILE = "NoKeyFile"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([\w.]+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>\s*([^<]{1,300})", re.DOTALL)
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_URL = re.compile(r"https?://\S+")
_TAKEN = ("BlobAlreadyExists", "ConditionNotMet", "UpdateConditionNotMet", "TargetConditionNotMet")
_NO_PLACE = ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ResourceNotFound", "AccountNotFound")
_BAD_CREDENTIALS = ("AuthenticationFailed", "InvalidAuthenticationInfo")
_OVERTAKEN = ("InvalidBlockList",)
"""Blocks of this put are gone: this put, or another one of the same object, was completed meanwhile."""
_SLOW_DOWN = ("ServerBusy", "SlowDown", "TooManyRequests", "RateLimitExceeded")


def classify(status: int, code: str) -> Answer:
    """The meaning of a response that is no success."""
    if status == 412 or code in _TAKEN:
        return Answer.PRECONDITION
    if status == 404:
        return Answer.REFUSED if code in _NO_PLACE else Answer.ABSENT
    if status == 409 or code in _OVERTAKEN:
        return Answer.REFUSED if code in _NO_PLACE else Answer.BUSY
    if status == 429 or code in _SLOW_DOWN:
        return Answer.NOT_DONE
    if status in (501, 505):  # not implemented: it never will be
        return Answer.REFUSED
    if status >= 500 or status == 408:
        return Answer.UNKNOWN
    return Answer.REFUSED


def said_in(body: str) -> tuple[str, str]:
    """Code and message in the XML of an answer; "" for each that is not there."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    return "" if code is None else code[1], "" if message is None else message[1].strip().partition("\n")[0]


def failure_in(kind: str, text: str) -> RequestFailure:
    """The failure in an error of the client library, by the name of its class and its text.

    The reason is without addresses, which may hold a signature.
    """
    said = text.partition("\n\nDebug source")[0]
    if "token request" in said or "managed identity" in said.lower():
        return RequestFailure(Answer.NOT_DONE, 0, CREDENTIALS_AWAY, _URL.sub("…", said)[:300])
    if "Wanted range starting at" in said:  # from the client itself, for an object that ends before
        return RequestFailure(Answer.REFUSED, 416, "InvalidRange", said[:300])
    status = int(found[1]) if (found := _STATUS.search(said)) else 0
    code, reason = said_in(said)
    reason = reason or _URL.sub("…", said)[:300]
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return RequestFailure(Answer.PRECONDITION, status or 412, code or kind, reason)
    if status:
        return RequestFailure(classify(status, code), status, code or str(status), reason)
    if kind == "FileNotFoundError":
        return RequestFailure(Answer.ABSENT, 404, "404", reason)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return RequestFailure(Answer.REFUSED, 0, NO_CREDENTIALS if kind == "UnauthenticatedError" else kind, reason)
    connection = found[1] if (found := _KIND.search(text)) else ""
    if connection == "Connect":
        answer = Answer.REFUSED if "certificate" in text.lower() else Answer.NOT_DONE
        return RequestFailure(answer, 0, "CertificateError" if answer is Answer.REFUSED else "ConnectError", reason)
    if connection or "HTTP error" in said:
        return RequestFailure(Answer.UNKNOWN, 0, f"{connection or 'Http'}Error", reason)
    return RequestFailure(Answer.REFUSED, 0, kind, reason)


def as_error(
    failure: RequestFailure, *, service: str, action: str, place: str, key: str, doubtful: bool = False
) -> StreamStateError:
    """The package's error for a failure.

    Args:
        service: "GCS" or "Azure Blob".
        action: the request, in one word.
        place: the URI of the bucket or container.
        key: the key in the store; "" where there is none.
        doubtful: whether a write of this call may have landed.
    """
    facts: dict[str, Any] = {"action": action, "place": place, "key": key}
    facts |= {"code": failure.code, "reason": failure.reason}
    if doubtful:
        return OutcomeUnknownError(f"{service} did not say whether the write landed", **facts)
    if failure.answer is not Answer.REFUSED:
        message, next_step = _obstacle(failure, service)
        return UnavailableError(message, next_step=next_step, **facts)
    message, next_step = _refusal(failure, service)
    kind = StoreRefusedError if _is_no_access(failure) else InvalidRequestError
    return kind(message, next_step=next_step, **facts)


def _is_no_access(failure: RequestFailure) -> bool:
    """Whether the whole bucket or container is refused or missing, whatever the request."""
    codes = (
        *_NO_PLACE,
        NO_CREDENTIALS,
        BAD_KEY,
        "PermissionDeniedError",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
    )
    return failure.status in (401, 403) or failure.code in codes


def _obstacle(failure: RequestFailure, service: str) -> tuple[str, str]:
    if failure.answer is Answer.NOT_DONE and failure.status:
        return f"{service} asks for fewer requests", "Try again in a moment."
    if failure.code == CREDENTIALS_AWAY:
        return (
            f"the credentials for {service} could not be fetched",
            "Try again in a moment; look at where they come from.",
        )
    if failure.status:
        return f"{service} cannot serve the request now", "Try again in a moment."
    if failure.code == "TimeoutError":
        return f"{service} did not answer in time", "Try again in a moment; look at the network and the endpoint."
    return f"{service} cannot be reached", "Try again in a moment; look at the network and the endpoint."


_REFUSALS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_NO_PLACE, ("there is no such bucket or container", "Create it, or correct the URI.")),
    "NoSparkName": (
        "Spark reaches Azure only under a URI that names the account",
        "Give the abfss URI for checkpoints.",
    ),
    "NoAccount": (
        "no storage account is named",
        "Set azure_account in the connection or AZURE_STORAGE_ACCOUNT_NAME, or give an abfss URI, which names it.",
    ),
    BAD_KEY: ("the key of the service account cannot be used", "Give the JSON file that Google made, unchanged."),
    NO_KEY_FILE: (
        "checkpoints on GCS need the key of the service account as a file",
        "Give gcs_key_path, a file that drivers and executors see, in place of gcs_service_account_key.",
    ),
}


def _refusal(failure: RequestFailure, service: str) -> tuple[str, str]:
    if failure.code in _REFUSALS:
        return _REFUSALS[failure.code]
    if failure.code == "PlainHttp":
        return (
            f"the endpoint of {service} is plain http on another machine, and a token would go there",
            "Give an https endpoint, or one on this machine.",
        )
    if failure.code == "EndpointWithUser":
        return f"the endpoint of {service} holds a user or a password", "Give the endpoint without it."
    if failure.code == NO_CREDENTIALS:
        return (
            f"there are no credentials for {service}",
            "Set them in the connection or in the environment, or give this machine a role.",
        )
    if failure.code == "CertificateError":
        return f"the certificate of the {service} server is not trusted", "Install its authority's certificate here."
    if failure.status == 401 or failure.code in _BAD_CREDENTIALS:
        return (
            f"{service} does not accept these credentials",
            "Correct them; a wrong clock of this machine has the same effect.",
        )
    if failure.status == 403 or failure.code == "PermissionDeniedError":
        return f"{service} denied the request", "Allow reading, writing, listing and deleting there."
    return f"{service} refused the request", ""
