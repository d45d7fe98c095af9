"""From resolved options to Spark's S3A."""

from __future__ import annotations

import pytest

from airflow_streamstate.launch.command import format_properties
from airflow_streamstate.protocol.redaction import is_secret_name
from airflow_streamstate.store.options import ResolvedS3
from airflow_streamstate.store.s3a import s3a_settings, s3a_uri

START = "spark.hadoop.fs.s3a.bucket.streams."
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


def test_keys_and_an_endpoint_of_ones_own() -> None:
    """Endpoint, region, path style, provider and the keys: all that S3A needs, for that bucket alone."""
    settings = s3a_settings(ResolvedS3("eu-west-1", "http://127.0.0.1:9000", "key", "secret"), "streams")
    assert settings.conf == {
        f"{START}endpoint": "http://127.0.0.1:9000",
        f"{START}endpoint.region": "eu-west-1",
        f"{START}path.style.access": "true",
        f"{START}input.stream.type": "classic",
        f"{START}aws.credentials.provider": SIMPLE,
    }
    assert settings.secret_conf == {f"{START}access.key": "key", f"{START}secret.key": "secret"}


def test_amazons_own_endpoint_is_left_to_s3a() -> None:
    """On AWS the region alone says where; nothing is forced into paths."""
    settings = s3a_settings(ResolvedS3("eu-west-1"), "streams")
    assert f"{START}endpoint" not in settings.conf
    assert f"{START}path.style.access" not in settings.conf
    assert settings.conf[f"{START}endpoint.region"] == "eu-west-1"


def test_a_session_goes_with_its_token() -> None:
    """Temporary keys need their token, and the provider that takes it."""
    settings = s3a_settings(ResolvedS3("r", None, "key", "secret", "token"), "streams")
    assert settings.conf[f"{START}aws.credentials.provider"] == TEMPORARY
    assert settings.secret_conf[f"{START}session.token"] == "token"


def test_a_role_hands_over_nothing() -> None:
    """Where credentials renew themselves, the driver asks the SDK's chain, and no key is written anywhere."""
    settings = s3a_settings(ResolvedS3("r"), "streams")
    assert settings.secret_conf == {}
    assert settings.conf[f"{START}aws.credentials.provider"].endswith("DefaultCredentialsProvider")


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
