"""What Spark must be told to reach the same bucket with the same credentials, by S3A and other connectors of Hadoop.

Pure: no boto3, no environment.

Everything is set for the one bucket (``fs.s3a.bucket.NAME.…``), so that a script's own data on other buckets, with
other credentials, is left alone. Names and classes are those of hadoop-aws 3.4 and newer (AWS SDK 2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from airflow_streamstate.store.options import ResolvedS3

KEYS_PROVIDER = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
SESSION_PROVIDER = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
CHAIN_PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""The SDK's own chain: environment, web identity, profiles, container, instance, as boto3's."""


@dataclass(frozen=True)
class SparkSettings:
    """Spark configuration for one bucket or container.

    Attributes:
        conf: what may be seen.
        secret_conf: credentials: for the launch's properties file, which its owner alone can read, never for a command
            line. Spark hands them to its executors itself, and hides them in its UI and event log by their names.
    """

    conf: Mapping[str, str]
    secret_conf: Mapping[str, str] = field(repr=False)


@runtime_checkable
class ReachedBySpark(Protocol):
    """A store on a server, whose objects Spark reads and writes by a connector of Hadoop's."""

    def for_spark(self) -> SparkSettings:
        """With what Spark reaches the same bucket as the store does.

        Raises:
            InvalidRequestError: the options are wrong, or this place has no name that Spark knows.
        """


def s3a_settings(resolved: ResolvedS3, bucket: str) -> SparkSettings:
    """The configuration with which S3A reaches this bucket as boto3 does.

    Credentials that last are handed over. Those of a role are not: they would end in the middle, so the driver and its
    executors ask for their own.

    Args:
        resolved: what boto3's chain came to.
        bucket: the bucket of the home or the checkpoints.
    """
    settings = {"endpoint.region": resolved.region, "input.stream.type": "classic"}
    if resolved.endpoint_url:
        # Own servers have no host name per bucket, as a rule; boto3 takes them like that, too.
        settings |= {"endpoint": resolved.endpoint_url, "path.style.access": "true"}
    secrets: dict[str, str] = {}
    if resolved.access_key_id and resolved.secret_access_key:
        settings["aws.credentials.provider"] = SESSION_PROVIDER if resolved.session_token else KEYS_PROVIDER
        secrets = {"access.key": resolved.access_key_id, "secret.key": resolved.secret_access_key}
        if resolved.session_token:
            secrets["session.token"] = resolved.session_token
    else:
        settings["aws.credentials.provider"] = CHAIN_PROVIDER
    return SparkSettings(_for_bucket(bucket, settings), _for_bucket(bucket, secrets))


SERVER_SCHEMES = ("s3://", "gs://", "abfs://", "abfss://")
"""How URIs of stores begin that Spark reaches by a connector."""


def s3a_uri(uri: str) -> str:
    """A store's ``s3://`` URI as Spark writes it; any other URI unchanged."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


def _for_bucket(bucket: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def plain_uri(path: str) -> str:
    """A folder in the same words, however a script spells it: ``s3a`` is ``s3``, ``file:`` is what has no scheme."""
    path = re.sub(r"^s3[an]://", "s3://", path.strip())
    path = re.sub(r"^file:/+", "/", path)
    return path.rstrip("/") or "/"
