"""``airflow_streamstate.plan.model``: which options are kept."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.model import PACE_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS, kept_options
from airflow_streamstate.protocol.redaction import is_secret_name, redact_uri


@pytest.mark.parametrize("kept", [SOURCE_OPTIONS, SINK_OPTIONS, PACE_OPTIONS])
def test_no_kept_option_is_a_credential(kept: frozenset[str]) -> None:
    """By its name; and all names are in lower case, as they are looked up."""
    assert [name for name in kept if is_secret_name(name) or name != name.lower()] == []


def test_what_is_not_listed_is_not_kept() -> None:
    """Whatever it is; a password inside a kept one is hidden."""
    options = {
        "Subscribe": "orders",
        "kafka.sasl.jaas.config": "password=x",
        "kafka.bootstrap.servers": "sasl://ada:hunter2@broker:9092",
        "my.own": "secret",
    }
    assert kept_options(options, SOURCE_OPTIONS, redact_uri) == {
        "subscribe": "orders",
        "kafka.bootstrap.servers": "sasl://***@broker:9092",
    }
