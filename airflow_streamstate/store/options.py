"""How to reach S3, GCS and Azure Blob. Its own module, so that naming the options needs no client library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class S3Options:
    """What a connection says about S3. What is not said here is asked of boto3's usual chain.

    Attributes:
        region: AWS region; else ``AWS_REGION``, else boto3's own chain.
        endpoint_url: another server than AWS; else ``AWS_ENDPOINT_URL_S3`` and its like.
        access_key_id, secret_access_key, session_token: credentials; all None for boto3's chain.
        profile_name: of the machine's AWS files, in place of keys; drivers are told it, too (``AWS_PROFILE``).
        session: a ``boto3.Session`` to make the clients with, for credentials that renew themselves.
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
    """What boto3's chain came to: where S3 is, and the credentials if they do not end by themselves.

    Attributes:
        region: AWS region; boto3's own where none is named.
        endpoint_url: another server than AWS; None for AWS.
        access_key_id, secret_access_key, session_token: credentials that last; all None where they come from a role or
            another provider that renews them, so that everybody has to ask it himself.
    """

    region: str
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class GCSOptions:
    """How to reach Google Cloud Storage. Credentials are Google's application default ones, of this machine.

    Attributes:
        endpoint_url: another server than Google's, which is asked without credentials; else ``STORAGE_EMULATOR_HOST``.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    endpoint_url: str | None = None
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0


@dataclass(frozen=True)
class AzureOptions:
    """How to reach Azure Blob Storage. What is not said here is asked of the environment (``store.azure``).

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
