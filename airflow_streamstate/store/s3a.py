"""Spark's settings for the same bucket with the same credentials, by Hadoop's connectors: no boto3, no environment.

Everything is set for the one bucket (``fs.s3a.bucket.NAME.…``), so that a script's own settings for other buckets stay.
Names and classes are those of hadoop-aws 3.4 and newer (AWS SDK 2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Protocol, runtime_checkable

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.store.options import ResolvedS3, S3Role

KEYS_PROVIDER = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
SESSION_PROVIDER = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
ROLE_PROVIDER = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"
CHAIN_PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""The SDK's own chain: environment, web identity, profiles, container, instance, as boto3's."""


@dataclass(frozen=True)
class SparkSettings:
    """Spark configuration for one bucket or container.

    Attributes:
        conf: without credentials.
        secret_conf: credentials, for the launch's properties file, which only its owner can read, never for a command
            line. Spark hands them to its executors itself, and hides them in its UI and event log by their names.
    """

    conf: Mapping[str, str]
    secret_conf: Mapping[str, str] = field(repr=False)


@runtime_checkable
class ReachedBySpark(Protocol):
    """A store on a server that Spark reaches by a connector of Hadoop's."""

    def for_spark(self) -> SparkSettings:
        """The settings by which Spark reaches the same bucket.

        Raises:
            InvalidRequestError: the options are wrong, or Spark has no URI for this place.
        """


def s3a_settings(resolved: ResolvedS3, bucket: str) -> SparkSettings:
    """The settings by which S3A reaches this bucket as boto3 does.

    Lasting credentials are handed over. Those of a role would expire in the middle of a run, so the driver and its
    executors ask for their own: by the machine's chain, or where a role is named by S3A, which renews them.
    """
    settings = {"endpoint.region": resolved.region, "input.stream.type": "classic"}
    if resolved.endpoint_url:
        # Most other servers have no host name per bucket; boto3 uses paths, too.
        settings |= {"endpoint": resolved.endpoint_url, "path.style.access": "true"}
    secrets: dict[str, str] = {}
    if resolved.access_key_id and resolved.secret_access_key:
        settings["aws.credentials.provider"] = SESSION_PROVIDER if resolved.session_token else KEYS_PROVIDER
        secrets = {"access.key": resolved.access_key_id, "secret.key": resolved.secret_access_key}
        if resolved.session_token:
            secrets["session.token"] = resolved.session_token
    else:
        settings["aws.credentials.provider"] = CHAIN_PROVIDER
    if resolved.role is not None:
        settings |= _role_settings(resolved, resolved.role, settings["aws.credentials.provider"])
    return SparkSettings(_for_bucket(bucket, settings), _for_bucket(bucket, secrets))


def _role_settings(resolved: ResolvedS3, role: S3Role, provider: str) -> dict[str, str]:
    settings = {
        "aws.credentials.provider": ROLE_PROVIDER,
        "assumed.role.credentials.provider": provider,
        "assumed.role.arn": role.arn,
        "assumed.role.session.name": role.session_name,
        "assumed.role.session.duration": f"{role.duration_seconds}s",
        "assumed.role.sts.endpoint.region": resolved.region,
        "assumed.role.sts.endpoint": resolved.sts_endpoint_url.removeprefix("https://"),
    }
    return {**settings, "assumed.role.external.id": role.external_id} if role.external_id else settings


SERVER_SCHEMES = ("s3://", "gs://", "abfs://", "abfss://")
"""The schemes of the stores that Spark reaches by a connector."""


def s3a_uri(uri: str) -> str:
    """A store's ``s3://`` URI as Spark writes it; any other URI unchanged."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


def _for_bucket(bucket: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def plain_uri(path: str) -> str:
    """A folder's URI in one spelling, whatever the script's: ``s3`` for ``s3a``, no ``file:``."""
    path = re.sub(r"^s3[an]://", "s3://", path.strip())
    path = re.sub(r"^file:/+", "/", path)
    return path.rstrip("/") or "/"
