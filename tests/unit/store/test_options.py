"""Options for S3."""

from __future__ import annotations

from airflow_streamstate.store.options import S3Options


def test_options_show_no_credential() -> None:
    """Options that end up in a log hold no secret there."""
    options = S3Options(
        region="eu-west-1", access_key_id="AKIA", secret_access_key="hidden", session_token="hidden", session="hidden"
    )
    assert "eu-west-1" in repr(options)
    assert "AKIA" not in repr(options)
    assert "hidden" not in repr(options)
