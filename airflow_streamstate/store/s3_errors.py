"""The meaning of S3's answers, decided from plain values, without boto3."""

from __future__ import annotations

from typing import Any

from airflow_streamstate.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store.server import RequestFailure, ServerAnswer

_ABSENT = ("NoSuchKey", "NoSuchVersion", "404")
_BUSY = ("ConditionalRequestConflict", "OperationAborted")
_SLOW_DOWN = (
    "SlowDown",
    "SlowDownRead",  # as MinIO reports it
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequests",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
)
_NO_ACCESS = (
    "NoSuchBucket",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestExpired",
    "NoCredentialsError",
    "PartialCredentialsError",
    "InvalidAccessKeyId",
    "XAdminUserNotFound",
)
"""Refusals of the whole bucket, which may pass while a process runs."""
_TIMED_OUT = ("RequestTimeout", "RequestTimeoutException")
_NO_TIME = ("ReadTimeoutError", "ConnectTimeoutError")
_NO_CREDENTIALS_NOW = ("CredentialRetrievalError", "MetadataRetrievalError", "TokenRetrievalError")


def classify(status: int, code: str) -> ServerAnswer:
    """The meaning of a response that is no success."""
    if status == 412:
        return ServerAnswer.PRECONDITION
    if status == 404 and code in _ABSENT:
        return ServerAnswer.ABSENT
    if code in _BUSY:
        return ServerAnswer.BUSY
    if status in (429, 507) or code in _SLOW_DOWN:  # 507: out of space, as MinIO and WebDAV report it
        return ServerAnswer.NOT_DONE
    if status in (501, 505):  # not implemented: it never will be
        return ServerAnswer.REFUSED
    if status >= 500 or status == 408 or code in _TIMED_OUT:
        return ServerAnswer.UNKNOWN
    return ServerAnswer.REFUSED


def as_error(
    failure: RequestFailure, *, action: str, bucket: str, key: str, doubtful: bool = False
) -> StreamStateError:
    """The package's error for a failure.

    Args:
        action: the operation, as a policy of S3 names it.
        key: the key in the store; "" without one.
        doubtful: whether a write of this call may have landed.
    """
    facts: dict[str, Any] = {"action": action, "bucket": bucket, "key": key}
    facts |= {"code": failure.code, "reason": failure.reason}
    if failure.region:
        facts["region"] = failure.region
    if doubtful:
        return OutcomeUnknownError("S3 did not say whether the write landed", **facts)
    if failure.answer is not ServerAnswer.REFUSED:
        message, next_step = _obstacle(failure)
        return UnavailableError(message, next_step=next_step, **facts)
    message, next_step = _refusal(failure)
    kind = StoreRefusedError if _is_no_access(failure) else InvalidRequestError
    return kind(message, next_step=next_step, **facts)


def _is_no_access(failure: RequestFailure) -> bool:
    """Whether the whole bucket is refused or missing, whatever the request."""
    is_of_one_object = failure.code == "InvalidObjectState"
    return (failure.status in (401, 403) and not is_of_one_object) or failure.code in _NO_ACCESS


def _obstacle(failure: RequestFailure) -> tuple[str, str]:
    if failure.code.startswith(ROLE_PREFIX):
        return "the credentials of the role could not be fetched", "Try again in a moment; look at AWS STS."
    if failure.answer is ServerAnswer.PRECONDITION:
        return "the object changed while it was copied", "Try again; take a newer position of a running query."
    if failure.status == 507:
        return "the S3 server is full", "Make room there, then try again."
    if failure.status == 429 or failure.code in _SLOW_DOWN:
        return (
            "S3 asks for fewer requests",
            "Try again in a moment; if it stays so, a longer command_poll_seconds makes fewer.",
        )
    if failure.code in _NO_CREDENTIALS_NOW:
        return "the credentials for S3 could not be fetched", "Try again in a moment; look at where they come from."
    if failure.code in _NO_TIME or failure.code in _TIMED_OUT:
        return "S3 did not answer in time", "Try again in a moment; look at the network and the endpoint."
    if failure.status:
        return "S3 cannot serve the request now", "Try again in a moment."
    return "S3 cannot be reached", "Try again in a moment; look at the network and the endpoint."


NAMED_ENDPOINT = "EndpointWithUser"
PLAIN_STS = "PlainSTS"
ROLE_PREFIX = "AssumeRole:"
"""Before the code of an answer to a request for a role's credentials."""
_REFUSALS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("NoSuchBucket",), "there is no such bucket", "Create the bucket, or correct the URI."),
    (
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "RequestExpired"),
        "the credentials for S3 have expired",
        "Renew the credentials of this process; those of a role renew themselves.",
    ),
    (
        ("NoCredentialsError", "PartialCredentialsError"),
        "there are no credentials for S3",
        "Set them in the connection, or give this machine a role.",
    ),
    (("ProfileNotFound",), "there is no such AWS profile", "Correct AWS_PROFILE, or write the profile."),
    (
        ("InvalidAccessKeyId", "XAdminUserNotFound"),  # the second is versitygw's, with status 404
        "S3 does not know this access key",
        "Correct the access key id, or the endpoint that it is for.",
    ),
    (
        ("SignatureDoesNotMatch",),
        "S3 did not accept the signature",
        "Correct the secret access key; a proxy that rewrites requests does the same.",
    ),
    (
        ("RequestTimeTooSkewed", "RequestInTheFuture"),
        "the clock of this machine is not that of S3",
        "Set this machine's clock by NTP.",
    ),
    (
        (NAMED_ENDPOINT,),
        "the endpoint of S3 holds a user or a password",
        "Give the endpoint without it, and the keys where boto3 looks for them, or in the connection.",
    ),
    (
        (PLAIN_STS,),
        "Spark's S3A asks for the credentials of a role by HTTPS only",
        "Give an endpoint with https, or no role.",
    ),
    (
        ("CertificateError",),
        "the certificate of the S3 server is not trusted",
        "Name its authority's certificate in AWS_CA_BUNDLE.",
    ),
    (
        ("InvalidObjectState",),
        "the object was moved to an archive",
        "Restore it there, and keep lifecycle rules of the bucket away from the home.",
    ),
    (
        ("ObjectParentIsFile", "ExistingObjectIsDirectory", "XMinioParentIsObject"),
        "an object and a folder cannot have the same name on this server",
        "Choose another key or folder.",
    ),
    (
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
        "the bucket is in another region",
        "Set the bucket's own region.",
    ),
)


def _refusal_of_role(code: str) -> tuple[str, str]:
    if code in ("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"):
        return "the credentials that ask for the role are not accepted", "Correct the access key and its secret."
    if code in ("ExpiredToken", "ExpiredTokenException"):
        return "the credentials that ask for the role have expired", "Renew them."
    if code == "ValidationError":
        return (
            "this is no role that can be assumed",
            "Correct role_arn, role_session_name, role_external_id and role_duration_seconds;"
            " the role's own longest session bounds the last.",
        )
    return (
        "the role may not be assumed",
        "Allow these credentials sts:AssumeRole on the role, and them in its trust policy; correct role_external_id.",
    )


def _refusal(failure: RequestFailure) -> tuple[str, str]:
    if failure.code.startswith(ROLE_PREFIX):
        return _refusal_of_role(failure.code.removeprefix(ROLE_PREFIX))
    for codes, message, next_step in _REFUSALS:
        if failure.code in codes:
            return message, next_step
    if failure.code.startswith("KMS."):
        return "the bucket's encryption key cannot be used", "Allow kms:Decrypt and kms:GenerateDataKey on that key."
    if failure.status == 403:
        return (
            "S3 denied the request",
            "Allow this action on the bucket; without s3:ListBucket an absent object is denied, too.",
        )
    if failure.status == 301:
        return "the bucket is in another region", "Set the bucket's own region."
    if failure.status in (405, 501):
        return (
            "this server does not know the request",
            "Use a server with conditional writes, as AWS S3 has them; `streamstate home doctor` tries.",
        )
    return "S3 refused the request", ""
