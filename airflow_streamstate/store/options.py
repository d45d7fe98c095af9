"""How to reach S3, GCS and Azure Blob; importable without a client library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class S3Options:
    """What a connection says about S3; everything else comes from boto3's usual chain.

    Attributes:
        region: else ``AWS_REGION``, else boto3's own chain.
        endpoint_url: another server than AWS; else ``AWS_ENDPOINT_URL_S3`` and its like.
        profile_name: of the machine's AWS files, in place of keys; drivers get it, too (``AWS_PROFILE``).
        session: a ``boto3.Session`` for the clients, for credentials that renew themselves.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    region: str | None = None
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile_name: str | None = None
    session: Any = field(default=None, repr=False, compare=False)
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 10.0


@dataclass(frozen=True)
class ResolvedS3:
    """The result of boto3's chain: where S3 is, and the credentials if they do not expire.

    Attributes:
        endpoint_url: another server than AWS; None for AWS.
        access_key_id, secret_access_key, session_token: lasting credentials; all None where a role or another provider
            renews them, which each process then has to ask itself.
    """

    region: str
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class GCSOptions:
    """How to reach Google Cloud Storage, with the application default credentials of this machine.

    Attributes:
        endpoint_url: another server than Google's, used without credentials; else ``STORAGE_EMULATOR_HOST``.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    endpoint_url: str | None = None
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0


@dataclass(frozen=True)
class AzureOptions:
    """How to reach Azure Blob Storage; everything else comes from the environment (``store.azure``).

    Attributes:
        account_name: the storage account; else ``AZURE_STORAGE_ACCOUNT_NAME``.
        account_key: its key; else ``AZURE_STORAGE_ACCOUNT_KEY``, else ``AZURE_STORAGE_SAS_TOKEN``, else azure-identity.
        endpoint_url: another server than Azure's; else ``AZURE_STORAGE_ENDPOINT``.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    endpoint_url: str | None = None
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0
