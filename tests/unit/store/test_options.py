"""Options for S3."""

from __future__ import annotations

import pytest

from airflow_streamstate.store.options import ResolvedS3, S3Options


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
