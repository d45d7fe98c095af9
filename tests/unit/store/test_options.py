"""Options for S3."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.protocol.redaction import is_secret_name
from airflow_streamstate.store.options import (
    SECRET_VARIABLES,
    AzureOptions,
    GCSOptions,
    ResolvedS3,
    S3Options,
    StoreOptions,
    secrets_in,
)


@pytest.mark.parametrize(
    "options",
    [
        S3Options("eu-west-1", None, "AKIA", "hidden", "hidden", session="hidden"),
        ResolvedS3("eu-west-1", None, "AKIA", "hidden", "hidden"),
    ],
)
def test_options_show_no_credential(options: S3Options | ResolvedS3) -> None:
    """Options that end up in a log hold no secret there."""
    assert "eu-west-1" in repr(options)
    assert "AKIA" not in repr(options)
    assert "hidden" not in repr(options)


def test_every_secret_of_the_options_is_found_to_be_hidden() -> None:
    """In the options and in a driver's environment alike; also the part of one that a text may show alone."""
    key = json.dumps({"private_key": "hidden-pem"})
    options = StoreOptions(
        S3Options(access_key_id="AKIA", secret_access_key="hidden-s3", session_token="hidden-token"),
        GCSOptions(service_account_key=key),
        AzureOptions("acc", sas_token="sv=1&sig=hidden-signature"),
    )
    shown = {"hidden-s3", "hidden-token", "sv=1&sig=hidden-signature", "hidden-signature", key, "hidden-pem"}
    assert set(options.secrets()) == set(secrets_in(options.credentials())) == shown
    principal = AzureOptions("acc", tenant_id="t", client_id="i", client_secret="hidden-secret")
    assert StoreOptions(azure=principal).secrets() == ("hidden-secret",)
    assert StoreOptions(azure=AzureOptions("acc", "hidden-key")).secrets() == ("hidden-key",)
    assert "hidden" not in repr(options)
    given = {
        name for each in (options, StoreOptions(azure=principal)) for name, value in each.credentials().items() if value
    }
    assert all(is_secret_name(name) for name in given & set(SECRET_VARIABLES))


@pytest.mark.parametrize("key", ["hidden", "[]", '{"private_key": 1}', "{}"])
def test_a_key_that_is_none_is_hidden_as_a_whole(key: str) -> None:
    """Whatever was pasted there."""
    assert StoreOptions(gcs=GCSOptions(service_account_key=key)).secrets() == (key,)
