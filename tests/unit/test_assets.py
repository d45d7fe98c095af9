"""Streams as assets."""

from __future__ import annotations

import warnings

import pytest
from airflow.providers.common.compat.sdk import Asset

from airflow_streamstate.assets import partitions_asset, stream_asset
from support import airflow_home

assert airflow_home.HOME


def test_a_stream_is_one_asset_however_its_uri_is_written() -> None:
    """Small letters, no slash at the end: another spelling would be another asset, which no event reaches."""
    asset = stream_asset("Streams_Prod", "flights")
    assert asset.uri == "streamstate://streams_prod/flights"
    assert asset.name == "streams_prod/flights"
    assert Asset(uri="STREAMSTATE://streams_prod/flights/").uri == asset.uri


def test_complete_partitions_are_an_asset_of_their_own() -> None:
    """So that a DAG on the hours of a stream does not start with its other events."""
    assert partitions_asset("streams_prod", "flights").uri == "streamstate://streams_prod/flights/complete"


@pytest.mark.parametrize(
    "uri",
    [
        "streamstate://streams_prod",
        "streamstate://streams_prod/flights/d-0001",
        "streamstate://streams_prod/flights/complete/x",
        "streamstate://streams_prod/../../etc",
        "streamstate://streams_prod/Flights",
        "streamstate:///flights",
        "streamstate://streams_prod:99/flights",
        "streamstate://streams_prod/flights?x=1",
    ],
)
def test_what_names_no_stream_is_refused_when_the_dag_is_parsed(uri: str) -> None:
    """With the form that is wanted."""
    with pytest.raises(ValueError, match="streamstate://HOME/STREAM"):
        Asset(uri=uri)


def test_credentials_are_refused_and_not_repeated() -> None:
    """A user by our handler; of a password Airflow itself drops all that is before the host, with a warning."""
    with pytest.raises(ValueError, match="no user and no password") as refused:
        Asset(uri="streamstate://hunter2@streams_prod/flights")
    assert "hunter2" not in str(refused.value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "hunter2" not in Asset(uri="streamstate://me:hunter2@streams_prod/flights").uri


def test_what_cannot_be_in_a_uri_is_refused() -> None:
    """By the function, as by the URI."""
    with pytest.raises(ValueError, match="names no home and stream"):
        stream_asset("my home", "flights")
