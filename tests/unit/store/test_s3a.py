"""From resolved options to Spark's S3A."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol.redaction import is_secret_name
from airflow_streamstate.store.options import ResolvedS3, S3Role, format_properties, s3a_settings, s3a_uri

START = "spark.hadoop.fs.s3a.bucket.streams."
HADOOP = "org.apache.hadoop.fs.s3a"


KEYS = {f"{START}access.key": "key", f"{START}secret.key": "secret"}


@pytest.mark.parametrize(
    ("resolved", "where", "provider", "secrets"),
    [
        (
            ResolvedS3("eu-west-1", "http://127.0.0.1:9000", "key", "secret"),
            {f"{START}endpoint": "http://127.0.0.1:9000", f"{START}path.style.access": "true"},
            f"{HADOOP}.SimpleAWSCredentialsProvider",
            KEYS,
        ),
        (
            ResolvedS3("eu-west-1", None, "key", "secret", "token"),
            {},
            f"{HADOOP}.TemporaryAWSCredentialsProvider",
            {**KEYS, f"{START}session.token": "token"},
        ),
        (ResolvedS3("eu-west-1"), {}, "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider", {}),
    ],
    ids=["own server", "session", "role"],
)
def test_s3a_gets_all_that_it_needs_for_the_one_bucket(
    resolved: ResolvedS3, where: dict[str, str], provider: str, secrets: dict[str, str]
) -> None:
    """On AWS the region alone decides where; where credentials renew themselves no key is handed over."""
    settings = s3a_settings(resolved, "streams")
    assert settings.conf == {
        **where,
        f"{START}endpoint.region": "eu-west-1",
        f"{START}input.stream.type": "classic",
        f"{START}aws.credentials.provider": provider,
    }
    assert settings.secret_conf == secrets


@pytest.mark.parametrize("external_id", [None, "x-42"])
def test_a_role_is_assumed_by_spark_itself(external_id: str | None) -> None:
    """With the same credentials, at the same STS, under the same name: S3A renews what it gets, as boto3 does."""
    role = S3Role("arn:aws:iam::1:role/r", external_id, "nightly", 1800)
    resolved = ResolvedS3(
        "cn-north-1", None, "key", "secret", role=role, sts_endpoint_url="https://sts.cn-north-1.amazonaws.com.cn"
    )
    settings = s3a_settings(resolved, "streams")
    said = {
        name.removeprefix(f"{START}assumed.role."): value for name, value in settings.conf.items() if "assumed" in name
    }
    assert said == {
        "arn": "arn:aws:iam::1:role/r",
        "session.name": "nightly",
        "session.duration": "1800s",
        "credentials.provider": f"{HADOOP}.SimpleAWSCredentialsProvider",
        "sts.endpoint": "sts.cn-north-1.amazonaws.com.cn",
        "sts.endpoint.region": "cn-north-1",
        **({"external.id": external_id} if external_id else {}),
    }
    assert settings.conf[f"{START}aws.credentials.provider"] == f"{HADOOP}.auth.AssumedRoleCredentialProvider"
    assert settings.secret_conf == KEYS


def test_no_secret_can_be_seen() -> None:
    """What may be seen holds no credential, what is secret is hidden by its name, and survives a properties file."""
    settings = s3a_settings(ResolvedS3("r", "http://u:1", "AKIA+/=", "se=cr:et/+", "to#ken=="), "streams")
    shown = f"{settings} {settings.conf}"
    assert not [secret for secret in ("AKIA", "se=cr", "to#ken") if secret in shown]
    assert all(is_secret_name(name) for name in settings.secret_conf)
    assert not any(is_secret_name(name) for name in settings.conf if "credentials.provider" not in name)
    assert b"secret.key=se=cr:et/+\n" in format_properties(settings.secret_conf)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://b/p/q", "s3a://b/p/q"),
        ("s3://b", "s3a://b"),
        ("/data/s3://x", "/data/s3://x"),
        ("file:///d", "file:///d"),
    ],
)
def test_spark_calls_it_s3a(uri: str, expected: str) -> None:
    """Spark knows a bucket by another scheme; other places keep their names."""
    assert s3a_uri(uri) == expected
