"""Tokens never go over plain http to another machine."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.store.azure import azure_store
from airflow_streamstate.store.gcs import gcs_store
from airflow_streamstate.store.open import is_readable_on_its_way
from airflow_streamstate.store.options import AzureOptions, GCSOptions


@pytest.mark.parametrize(
    ("url", "is_readable"),
    [
        ("http://server.example:9000", True),
        ("HTTP://10.0.0.7", True),
        ("http://169.254.169.254/", True),
        ("http://127.0.0.1.example", True),
        ("http://[::1", True),
        ("https://server.example", False),
        ("http://127.0.0.1:10000/devstoreaccount1", False),
        ("http://[::1]:9000", False),
        ("http://localhost:9000", False),
    ],
)
def test_http_is_for_this_machine(url: str, is_readable: bool) -> None:
    """By the address, whatever a name looks like."""
    assert is_readable_on_its_way(url) is is_readable


def test_a_store_with_a_token_needs_https(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature in the address is one, too; a key that signs never travels."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    far = "http://server.example:9000"
    with pytest.raises(StreamStateError, match="a token would go"):
        gcs_store("bucket", options=GCSOptions(endpoint_url=far, service_account_key="{}"))
    gcs_store("bucket", options=GCSOptions(endpoint_url=far))  # an emulator, without credentials
    for name in ("sas_token", "client_secret"):
        more = {"client_id": "c", "tenant_id": "t"} if name == "client_secret" else {}
        options = AzureOptions(account_name="account", endpoint_url=far, **{name: "s", **more})  # type: ignore[arg-type]
        with pytest.raises(StreamStateError, match="a token would go"):
            azure_store("container", options=options)
    azure_store("container", options=AzureOptions(account_name="account", account_key="a2V5", endpoint_url=far))
