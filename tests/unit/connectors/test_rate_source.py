"""The rate sources."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.plain import RateSource
from airflow_streamstate.connectors.source import Lag, Source


def test_another_rate_is_another_source() -> None:
    """An offset of a rate source represents other values under another rate; unknown formats are not its own."""
    connector = RateSource()
    ten = connector.identify(Source("rate", {"rowspersecond": "10"}))
    assert ten == "rate rowspersecond=10"
    assert connector.identify(Source("rate", {"rowspersecond": "20"})) != ten
    assert connector.identify(Source("kafka")) is None


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ("3", "3", "same"),
        ("4", "3", "ahead"),
        ("-", "0", "behind"),
        ('{"offset":5,"timestamp":1}', '{"offset":9,"timestamp":2}', "behind"),
    ],
)
def test_offsets_are_counts(first: str, second: str, order: str) -> None:
    """Both forms in which Spark writes them are numbers, and nothing is behind no offset at all."""
    assert RateSource().compare(first, second) == order


def test_no_offset_of_it_is_told() -> None:
    """Another source's offset is refused, not guessed at."""
    with pytest.raises(ValueError):
        RateSource().compare('{"logOffset":1}', "3")


def test_rows_are_told_where_an_offset_counts_rows() -> None:
    """Seconds are no rows."""
    connector = RateSource()
    five, nine = '{"offset":5,"timestamp":1}', '{"offset":9,"timestamp":2}'
    assert connector.between(five, nine) == Lag(4)
    assert connector.between(nine, five) == Lag(0)
    assert connector.between("-", five) == Lag(5)
    assert connector.between("5", "9") is None
